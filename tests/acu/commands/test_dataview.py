"""What `acu data` shows to people."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from acu.commands.dataview import (
    _archive_lines,
    _collections,
    _damaged,
    _uploads,
    archived,
    receipt,
    render,
    stage_line,
    understood,
    verified,
)
from dataplane.store import opened
from tests.dataplane import planes


@pytest.mark.parametrize(
    ("stage", "done", "total", "line"),
    [
        ("verifying notes", 0, 0, "verifying notes"),
        ("archiving", 5_000_000, 0, "archiving 5.00 MB"),
        ("verifying notes", 1, 4, "verifying notes [######..................] 1 of 4"),
        ("backing up", 500_000, 1_000_000, "backing up [############............] 500 kB of 1.00 MB"),
    ],
)
def test_a_line_tells_how_far_a_stage_is(stage: str, done: int, total: int, line: str) -> None:
    assert stage_line(stage, done, total) == line


def test_findings_and_receipts_are_told_a_line_each() -> None:
    one = {"tenant": "t", "collection": "c", "where": "shards", "what": "shard 1 is damaged."}
    found = {"collections": 1, "rows": 5, "archive_manifest": 2, "problems": [one], "repaired": [], "healed": [one]}
    assert verified(found).splitlines() == [
        "wrong: t/c: shards: shard 1 is damaged.",
        "made anew when it was opened, or since: t/c: shards: shard 1 is damaged.",
        "1 collections with 5 rows, and the archive's manifest 2: 1 problem; --repair makes anew what can be",
    ]
    assert verified(found, repair=True).endswith("2: 1 problem; this is what could not be repaired")
    told: dict[str, Any] = {
        "time_ms": 0,
        "ids": 0,
        "rows": 1,
        "files": 2,
        "collections": 3,
        "archive": None,
        "searched": {},
        "left": ["archive: away"],
        "beyond": ["b"],
    }
    assert receipt(told, "1 row").splitlines() == [
        "erased: 1 row",
        "at: 1970-01-01 00:00:00 UTC",
        "rows that were there: 1",
        "collections: 3",
        "uploaded files: 2",
        "archive: not rewritten",
        "looked through afterwards: nothing was there",
        "LEFT: archive: away",
        "note: b",
    ]


@pytest.mark.parametrize(
    ("ids", "rows", "headline"),
    [
        (1, 1, "erased: 1 row of the collection c"),
        (3, 2, "erased: 2 rows of the collection c; 1 of the 3 ids were not there"),
        (1, 0, "erased: 0 rows of the collection c; 1 of the 1 ids were not there"),
    ],
)
def test_a_receipt_counts_rows_that_were_there(ids: int, rows: int, headline: str) -> None:
    told: dict[str, Any] = {"time_ms": 0, "ids": ids, "rows": rows, "archive": None, "searched": {}, "left": []}
    lines = receipt({**told, "beyond": []}, "the collection c").splitlines()
    assert lines[0] == headline
    assert "archive: there is none" in lines


def test_damaged_uploads_are_in_the_status() -> None:
    assert _damaged({"uploads": {"damaged_files": 14}}) == "[red]14 files[/], see `acu data verify --deep`"
    reports: list[dict[str, Any]] = [{"uploads": {"damaged_files": 0}}, {"uploads": {}}, {"uploads": None}, {}]
    assert [_damaged(report) for report in reports] == [None] * 4


def test_what_failed_is_in_the_table() -> None:
    output = io.StringIO()
    report = {"state": "failed", "folder": "/data", "why": "the disk is full"}
    Console(file=output, width=80).print(render(report))
    assert output.getvalue().splitlines()[0].rstrip() == "state   failed: the disk is full"


def test_uploaded_files_that_cannot_be_counted_are_told_as_such() -> None:
    line = _uploads({"uploads": None}, "")
    assert "cannot be counted: `acu data verify` says why" in line
    told = {"files": 2, "bytes": 3_000, "damaged_files": 0, "waiting_files": 1, "waiting_bytes": 12}
    report = {"uploads": told}
    assert (_uploads(report, ""), _uploads(report, "waiting_")) == ("2 files (3.00 kB)", "1 file (12 B)")


async def test_the_status_of_a_daemon_that_counts_no_uploaded_files_is_shown_without(tmp_path: Path) -> None:
    async with opened(planes.config(tmp_path)) as plane:
        report = {"state": "open", "folder": "/data", "plane": msgspec.to_builtins(plane.status())}
    output = io.StringIO()
    Console(file=output, width=200).print(understood(report))
    told = "files are not counted by this daemon, which is of an earlier release"
    assert f"uploads   {told}" in output.getvalue()
    assert f"waiting: 0 changes of rows (0 B), {told}" in output.getvalue()


@pytest.mark.parametrize(
    ("damaged", "told"),
    [(("a",), "1 file is damaged; all else is archived."), (("a", "b"), "2 files are damaged; all else is archived.")],
)
def test_what_is_damaged_is_told_as_files_for_they_may_be_of_the_history(damaged: tuple[str, ...], told: str) -> None:
    lines = archived({"where": "/cold", "manifest": 3, "objects": 0, "damaged": damaged}).splitlines()
    assert lines[0] == "/cold: manifest 3 has everything already"
    assert lines[1:-1] == [f"wrong, and not archived: {one}" for one in damaged]
    assert lines[-1].startswith(told)


async def test_rows_in_files_and_rows_in_the_database_alone_are_told_apart(tmp_path: Path) -> None:
    async with opened(planes.config(tmp_path)) as plane:
        report = {"state": "open", "folder": "/data", "plane": msgspec.to_builtins(plane.status())}
    some = dict.fromkeys(("dimensions", "memory_bytes", "text_behind", "text_bytes", "heat_hot", "heat_warm"), 0)
    one = {**some, "tenant": "t", "name": "c", "rows": 47, "fresh": 1, "hot": 4, "problems": []}
    loose = {**one, "loose": 42, "warm": 0, "shards": 0, "shard_bytes": 0}
    both = {**one, "loose": 11, "warm": 31, "shards": 2, "shard_bytes": 5_000}
    report["plane"]["collections"] = [loose, both]
    output = io.StringIO()
    Console(file=output, width=200).print(understood(report))
    lines = [line.split() for line in output.getvalue().splitlines()]
    tiers = [line for line in lines if line and line[0] in ("warm", "in", "loose")]
    assert tiers == [
        ["warm", "84", "-", "-", "-", "0.00"],
        ["in", "files", "31", "5.00", "kB", "2", "-", "-"],
        ["loose", "53", "-", "-", "-", "-"],
    ]
    head, *rows = [line for line in lines if line and line[0] in ("COLLECTION", "t/c")]
    assert head[3:6] == ["HOT", "WARM", "LOOSE"]
    assert [row[3:6] for row in rows] == [["5", "42", "42"], ["5", "42", "11"]]


async def test_the_archive_tells_how_many_files_its_last_run_found_damaged(tmp_path: Path) -> None:
    async with opened(planes.config(tmp_path)) as plane:
        cold = msgspec.to_builtins(plane.status())["cold"]
    assert _archive_lines({**cold, "damaged_files": 3}, "")[2:] == [
        "[red]3 files damaged when it last ran[/], and not archived: see `acu data verify --deep`"
    ]
    del cold["damaged_files"]  # an earlier release
    assert len(_archive_lines(cold, "")) == 2


@pytest.mark.parametrize("width", [40, 80])
def test_no_name_is_broken_however_narrow_the_terminal_is(width: int) -> None:
    one = dict.fromkeys(("dimensions", "rows", "fresh", "hot", "loose", "warm", "memory_bytes", "shards"), 1)
    name = "vs_" + "0123456789abcdef" * 3
    told = {**one, "tenant": "default", "name": name, "text_behind": 0, "text_bytes": 5, "problems": []}
    output = io.StringIO()
    Console(file=output, width=width).print(_collections([told]), crop=False)
    assert output.getvalue().splitlines()[1].startswith(f"default/{name} ")
