"""acu.doctor.versions: what is installed, and the CUDA that torch was built for."""

from __future__ import annotations

import os
from importlib import metadata

import pytest

from acu import __version__
from acu.doctor.versions import cuda_of, read_versions


def test_versions_are_those_that_are_installed() -> None:
    found = read_versions()
    assert found.acu == __version__
    assert found.torch == metadata.version("torch")
    assert found.vllm is not None
    assert found.glibc == (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")


@pytest.mark.parametrize(
    ("torch", "file", "cuda"),
    [
        ("2.13.0+cu128", "", "12.8"),
        ("2.13.0+cu130", "cuda: Optional[str] = None\n", "13.0"),
        ("2.13.0+cpu", "cuda: Optional[str] = None\n", None),
        ("2.13.0", "debug = False\ncuda: Optional[str] = '12.9'\nhip: Optional[str] = None\n", "12.9"),
        ("2.13.0", "cuda = '12.6'\n", "12.6"),
        ("2.13.0", "", None),
    ],
)
def test_the_cuda_of_a_build(torch: str, file: str, cuda: str | None) -> None:
    assert cuda_of(torch, file) == cuda
