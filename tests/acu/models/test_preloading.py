"""acu.models.preloading: the weights are read, and it is told how fast."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acu import models
from acu.models.preloading import Preloading, Reading
from acu.models.progress import Progress
from tests.acu.process.silentmount import silent_mount
from tests.acu.running import until


def test_the_rate_is_up_to_the_last_byte_and_a_disk_that_gives_none_is_told_of() -> None:
    reading = Reading("m", 30_000_000, 120_000_000, 100.0, 102.0)
    assert reading.line(102.0) == "reading m: 25% at 15 MB/s"
    assert reading.line(111.9) == "reading m: 25% at 15 MB/s"
    assert reading.line(147.0) == "reading m: 25% at 15 MB/s, and nothing for 45 s; look at the disk"
    assert Reading("m", 0, 0, 100.0, 100.0).line(130.0) == "reading m: 0%, and nothing for 30 s; look at the disk"


def test_without_memory_the_next_is_read_and_no_line_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, progress: Progress) -> models.Preloaded:
        progress("preload", 1, 2)
        raise MemoryError

    monkeypatch.setattr(models, "preload", full)
    preloading = Preloading([tmp_path / "one", tmp_path / "two"])
    preloading.start()
    until(lambda: len(caplog.records) == 2 and preloading.line == "", "both folders")
    assert [vars(record)["why"] for record in caplog.records] == ["there is no memory for it"] * 2


def test_a_disk_that_does_not_answer_keeps_no_process_alive(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from acu.models import preloading
preloading.SILENT_S = 0.0
reader = preloading.Preloading([Path(sys.argv[1])])
reader.start()
while "nothing for" not in reader.line:
    time.sleep(0.01)
print(reader.line)
"""
    with silent_mount(tmp_path / "dead") as dead:
        ended = subprocess.run(
            [sys.executable, "-c", program, str(dead)], capture_output=True, text=True, check=False, timeout=60
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("reading dead: 0%, and nothing for ")


def test_it_tells_how_far_it_is_and_in_the_end_how_fast_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = models.preload
    lines: list[str] = []

    def watched(path: Path, progress: Progress) -> models.Preloaded:
        def both(stage: str, done: int, total: int) -> None:
            time.sleep(0.001)
            progress(stage, done, total)
            lines.append(preloading.line)

        return read(path, both)

    monkeypatch.setattr(models, "preload", watched)
    folder, empty = tmp_path / "model", tmp_path / "empty"
    folder.mkdir()
    empty.mkdir()
    (folder / "model.safetensors").write_bytes(b"x" * 3_000_000)
    preloading = Preloading([empty, folder])
    with caplog.at_level(logging.INFO):
        preloading.start()
        until(lambda: len(caplog.records) == 2 and preloading.line == "", "both folders")
    assert lines[-1].startswith("reading model: 100% at ")
    assert lines[-1].endswith(" MB/s")
    refused, done = (vars(record) for record in caplog.records)
    assert (refused["msg"], refused["model"]) == ("the weights were not preloaded", "empty")
    assert (done["msg"], done["model"], done["mb"]) == ("weights preloaded", "model", 3)
    assert done["mb_s"] >= 0
