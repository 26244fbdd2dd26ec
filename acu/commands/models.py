"""`acu models`: list, pull, verify, remove and preload the models in the cache."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from acu import models
from acu.commands import exits
from acu.commands.options import add_config_option, file_answers, places_answer
from acu.commands.output import out
from acu.config import load, model_names, process_environment
from acu.errors import ModelError, ModelUnreadable
from acu.hardware import gpu_present
from acu.models.progress import Progress, human
from acu.terminal.lines import columns
from agentflow.config import ModelConfig

DESCRIPTION = """\
The models on this machine. A model is named by the catalogue (`acu models list`), by a hub id (organisation/name), or,
with `pull NAME --from FOLDER`, by you; `verify`, `rm` and `preload` also take the names under which the configuration
serves it, such as `large`. Only safetensors are accepted, and no model brings code of its own.
"""
_PLAIN_EVERY_S = 5.0
_FEWEST_COLUMNS = 4


def add_arguments(subparsers: Any) -> None:
    """Declare the command and its actions."""
    parser = subparsers.add_parser("models", help="list, pull and check models", description=DESCRIPTION)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("list", help="the catalogue, and what is on this machine")
    show.add_argument("--json", action="store_true", help="as JSON")
    pull = actions.add_parser("pull", help="bring models onto this machine")
    pull.add_argument(
        "names", metavar="NAME", nargs="+", help="of the catalogue, or a hub id such as organisation/name"
    )
    pull.add_argument("--force", action="store_true", help="again, even if they are here")
    pull.add_argument("--from", dest="folder", metavar="FOLDER", type=Path, help="copy a local folder as NAME")
    verify = actions.add_parser("verify", help="compare every file with its checksum")
    verify.add_argument("names", metavar="NAME", nargs="*", help="default: all that are here")
    remove = actions.add_parser(
        "rm",
        help="delete models from this machine",
        description="Delete models from this machine, in order. The first that a running daemon serves is kept, and ends the "
        "command.",
    )
    remove.add_argument("names", metavar="NAME", nargs="+", help="as `acu models list` shows it")
    remove.add_argument("--force", action="store_true", help="also models that a running daemon serves")
    preload = actions.add_parser("preload", help="read a model's weights into memory, so that it starts faster")
    preload.add_argument("names", metavar="NAME", nargs=1, help="as `acu models list` shows it, or a folder's path")
    for action in (show, pull, verify, remove, preload):
        add_config_option(action)


def run(args: argparse.Namespace) -> int:
    """Run one action on the cache. Raises ModelError for what fails, StartRefused."""
    file_answers(args.config)
    config = load(process_environment(), file=args.config, gpu_present=gpu_present()).config
    places_answer(config)
    cache_dir = Path(config.gpu.model_cache_dir)
    if args.action == "list":
        rows = listing(cache_dir)
        out(json.dumps(rows, indent=2) if args.json else table(rows, columns(sys.stdout)))
        return exits.OK
    if args.action == "pull":
        return _pull(args, cache_dir)
    named = [meant(name, config.models, cache_dir) for name in args.names]
    if args.action == "rm":
        return _remove(named, cache_dir, served=args.force)
    if args.action == "verify":
        return _verify(named, cache_dir)
    return _preload(named[0], cache_dir)


def meant(name: str, configured: Mapping[str, ModelConfig], cache_dir: Path) -> str:
    """The model that `name` means: a model's own name first, then a key, alias or served name of the configuration."""
    if models.by_name(name) or name.replace("/", "--") in models.names(cache_dir):
        return name
    return next((model.model for key, model in configured.items() if name in model_names(key, model)), name)


def _remove(names: list[str], cache_dir: Path, *, served: bool) -> int:
    for name in names:
        models.remove(name, cache_dir, served=served)
        out(f"{name}: removed")
    return exits.OK


def listing(cache_dir: Path) -> list[dict[str, Any]]:
    """The catalogue, then what else is in the cache: one mapping each, with "state" ready, damaged, unreadable or absent.

    Raises ModelUnreadable for the cache itself.
    """
    there = models.names(cache_dir)
    rows: list[dict[str, Any]] = []
    for entry in models.catalogue():
        row = msgspec.to_builtins(entry)
        row["source"] = str(entry.source)
        absent = {"state": "absent", "path": None, "disk_bytes": 0}
        rows.append(row | (_state(entry.name, cache_dir) if models.folder_name(entry.name) in there else absent))
    known = {row["name"] for row in rows}
    return rows + [_state(name, cache_dir) for name in there if name not in known]


def table(rows: list[dict[str, Any]], width: int | None = None) -> str:
    """The listing for people. The last columns, which are the least needed, are left out where `width` is too narrow."""
    lines = [("NAME", "FOR", "SIZE", "STATE", "CONTEXT", "LICENCE", "LANGUAGES")]
    for row in rows:
        languages = row.get("languages", ("?",))
        lines.append(
            (
                row["name"],
                row.get("role", "?"),
                human(row.get("installed_bytes") or row["disk_bytes"]),
                "to pull" if row["state"] == "absent" else row["state"],
                str(row.get("context_tokens", "?")),
                row.get("licence", "?"),
                languages[0] + (f" +{len(languages) - 1}" if len(languages) > 1 else ""),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    while width is not None and len("  ".join(" " * w for w in widths)) > width and len(widths) > _FEWEST_COLUMNS:
        widths.pop()
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _state(name: str, cache_dir: Path) -> dict[str, Any]:
    try:
        model = models.locate(name, cache_dir)
    except ModelUnreadable:
        return {"name": name, "state": "unreadable", "path": None, "disk_bytes": 0}
    except ModelError:
        return {"name": name, "state": "damaged", "path": None, "disk_bytes": 0}
    return {
        "name": model.name,
        "role": model.role,
        "state": "ready",
        "path": str(model.path),
        "disk_bytes": model.size_bytes,
    }


def _pull(args: argparse.Namespace, cache_dir: Path) -> int:
    if args.folder is not None and len(args.names) != 1:
        raise ModelError("--from copies one folder under one name: give exactly one NAME.")
    for name in args.names:
        started = time.monotonic()
        with progress_bars(name) as progress:
            model = models.pull(name, cache_dir, progress, folder=args.folder, force=args.force)
        seconds = time.monotonic() - started
        out(f"{model.name}: ready, {human(model.size_bytes)} in {model.path} ({seconds:.1f} s)")
    return exits.OK


def _verify(names: list[str], cache_dir: Path) -> int:
    code = exits.OK
    if not (names := names or list(models.names(cache_dir))):
        out(f"no model is in {cache_dir}: there is nothing to verify")
    for name in names:
        try:
            with progress_bars(name) as progress:
                model = models.verify(name, cache_dir, progress)
        except ModelError as error:
            out(f"{name}: {error}")
            code = exits.FAILED
        else:
            out(f"{model.name}: every file is as it was pulled, {human(model.size_bytes)}")
    return code


def _preload(name: str, cache_dir: Path) -> int:
    with progress_bars(name) as progress:
        done = models.preload(models.locate(name, cache_dir).path, progress)
    there = f"; {human(done.cached)} were in memory already" if done.cached else ""
    out(f"{name}: {human(done.bytes)} read in {done.seconds:.2f} s ({done.mb_s:.0f} MB/s){there}")
    return exits.OK


@contextlib.contextmanager
def progress_bars(name: str) -> Iterator[Progress]:
    """A progress callback for one model: a bar on a terminal, now and then a line elsewhere. Both on standard error."""
    if not sys.stderr.isatty():
        yield _Lines(name)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars, name)


class _Bar:
    """One bar, which starts anew with each stage."""

    def __init__(self, bars: Bars, name: str) -> None:
        self._bars = bars
        self._name = name
        self._stage = ""
        self._task = bars.add_task(name, total=None)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._stage = stage
            self._bars.remove_task(self._task)
            self._task = self._bars.add_task(f"{self._name}: {stage}", total=None)
        # A conversion writes nothing for a long while: the bar runs to and fro until there is something to count.
        self._bars.update(self._task, completed=done, total=total if done and total else None)


class _Lines:
    """A line when a stage begins, and one every few seconds while it lasts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stage = ""
        self._began = self._last = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage == self._stage and now - self._last < _PLAIN_EVERY_S:
            return
        if stage != self._stage:
            self._began = now
        amount = f" {human(done)} of {human(total)}" if done and total else ""
        elapsed = f" ({now - self._began:.0f} s)" if now - self._began >= 1 else ""
        sys.stderr.write(f"{self._name}: {stage}{amount}{elapsed}\n")
        sys.stderr.flush()
        self._stage, self._last = stage, now
