"""Verdicts on versions: Python, the engine's build, and the driver against the CUDA that it was built for."""

from __future__ import annotations

from collections.abc import Iterator

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, Sign

PYTHONS = ((3, 11), (3, 13))


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `12.8` is (12, 8); empty where there are none."""
    found: list[int] = []
    for part in version.split("."):
        if not part.isascii() or not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)


def python(examination: Examination) -> Iterator[Sign]:
    """A Python that ACU is not made for."""
    first, last = PYTHONS
    if not first <= numbers(examination.versions.python)[:2] <= last:
        yield Sign(
            "error",
            f"Python is {examination.versions.python}, and ACU runs on 3.11 to 3.13",
            "Make the environment on a Python of 3.11 to 3.13.",
            ("scripts/setup --python /usr/bin/python3.12",),
        )


def engine(examination: Examination) -> Iterator[Sign]:
    """No engine is installed, or the one for another machine."""
    versions, cards = examination.versions, examination.machine.gpus
    if versions.vllm is None:
        yield Sign(
            "error",
            "vLLM is not installed",
            "Install it. (`acu serve --engine scripted` does without.)",
            ("scripts/setup",),
        )
    elif cards and versions.torch is not None and versions.cuda is None:
        yield Sign(
            "warning",
            f"the engine is the build for CPUs (torch {versions.torch}), and there is a GPU: {cards[0].name}",
            "Install the build for GPUs.",
            ("scripts/setup --gpu",),
        )
    elif not cards and versions.cuda is not None:
        yield Sign(
            "error",
            f"the engine is the build for CUDA {versions.cuda}, and no GPU can be used",
            "Mend the card first (gpu.driver), or install the build for CPUs.",
            ("scripts/setup --cpu",),
        )


def cuda(examination: Examination) -> Iterator[Sign]:
    """A driver that is older than the CUDA of the engine."""
    driver, wanted = numbers(examination.driver.cuda)[:2], numbers(examination.versions.cuda or "")[:2]
    if not driver or not wanted or driver >= wanted:
        return
    version = f"driver {examination.driver.version} runs CUDA up to {examination.driver.cuda}"
    newer = (
        f"Install a driver for CUDA {examination.versions.cuda} or later and restart the box; or NVIDIA's cuda-compat of that "
        "version."
    )
    run = ("apt-get install -y cuda-drivers",)
    if driver[0] < wanted[0]:
        yield Sign("error", f"{version}, and torch is built for {examination.versions.cuda}", newer, run)
    else:
        yield Sign(
            "note",
            f"{version}, and torch is built for {examination.versions.cuda}: within one major version most of it works, but no "
            "kernel can be compiled when it is needed (PTX)",
            newer,
            run,
        )


CHECKS = (
    Check(
        id="versions.python",
        worst="error",
        looks_at="Python's version",
        verdict=python,
        well=lambda e: f"ACU {e.versions.acu} on Python {e.versions.python}",
        why="What ACU is built on has no builds for others.",
    ),
    Check(
        id="versions.engine",
        worst="error",
        looks_at="whether vLLM is installed, and the build for this box",
        verdict=engine,
        well=lambda e: f"vLLM {e.versions.vllm} is the build for this box",
        why="Without its engine ACU serves no model; the build for CPUs leaves the card idle, and that for CUDA needs one.",
    ),
    Check(
        id="versions.cuda",
        worst="error",
        looks_at="the driver, against the CUDA that torch was built for",
        verdict=cuda,
        well=lambda e: f"the driver (CUDA {e.driver.cuda}) runs torch's CUDA {e.versions.cuda}",
        applies=lambda e: bool(e.driver.cuda and e.versions.cuda),
        why="torch refuses a driver that is too old, and the engine does not start.",
    ),
)
