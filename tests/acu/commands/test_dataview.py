"""What `acu data` shows to people."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from acu.commands.dataview import _collections, _uploads, receipt, render, stage_line, verified


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
        "1 collections with 5 rows, and the archive's manifest 2: 1 problems; --repair makes anew what can be",
    ]
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
        "archive: there is none",
        "looked through afterwards: nothing was there",
        "LEFT: archive: away",
        "note: b",
    ]


def test_what_failed_is_in_the_table() -> None:
    output = io.StringIO()
    report = {"state": "failed", "folder": "/data", "why": "the disk is full"}
    Console(file=output, width=80).print(render(report))
    assert output.getvalue().splitlines()[0].rstrip() == "state   failed: the disk is full"


def test_uploaded_files_that_cannot_be_counted_are_told_as_such() -> None:
    line = _uploads(None, "")
    assert "cannot be counted: `acu data verify` says why" in line
    told = {"files": 2, "bytes": 3_000, "waiting_files": 1, "waiting_bytes": 12}
    assert (_uploads(told, ""), _uploads(told, "waiting_")) == ("2 files (3.00 kB)", "1 file (12 B)")


@pytest.mark.parametrize("width", [40, 80])
def test_no_name_is_broken_however_narrow_the_terminal_is(width: int) -> None:
    one = dict.fromkeys(("dimensions", "rows", "fresh", "hot", "loose", "warm", "memory_bytes", "shards"), 1)
    name = "vs_" + "0123456789abcdef" * 3
    told = {**one, "tenant": "default", "name": name, "text_behind": 0, "text_bytes": 5, "problems": []}
    output = io.StringIO()
    Console(file=output, width=width).print(_collections([told]), crop=False)
    assert output.getvalue().splitlines()[1].startswith(f"default/{name} ")
