"""acu.process.lastresort: the end that comes when the orderly one does not."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from acu.process import lastresort
from acu.process.lastresort import LastResort
from tests.acu.running import ROOT


def test_when_the_time_is_up_it_cleans_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    happened: list[str] = []
    over = threading.Event()

    def leave(code: int) -> None:
        happened.append(f"exit {code}")
        over.set()

    LastResort(lambda: happened.append("clean"), leave).within(0.01)
    assert over.wait(30)
    assert happened == ["clean", "exit 1"]
    assert "ended by force" in capsys.readouterr().err


def test_a_clean_up_that_never_ends_keeps_no_process_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lastresort, "CLEAN_S", 0.05)
    over, stuck = threading.Event(), threading.Event()

    def clean() -> None:
        stuck.wait()

    LastResort(clean, lambda code: over.set()).within(0.01)
    assert over.wait(30)
    stuck.set()


def test_the_latest_time_counts_and_disarming_ends_it() -> None:
    over = threading.Event()
    resort = LastResort(lambda: None, lambda code: over.set())
    resort.within(0.05)
    resort.within(3600)
    assert not over.wait(0.3)
    resort.disarm()
    resort.within(0.01)
    assert over.wait(30), "it can be armed again"


def test_a_process_whose_main_thread_is_stuck_still_ends(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from acu.process.lastresort import LastResort\n"
        "LastResort(Path(sys.argv[1]).unlink).within(0.1)\ntime.sleep(3600)"
    )
    (tmp_path / "socket").touch()
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "socket")],
        cwd=ROOT,
        timeout=60,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 1
    assert not (tmp_path / "socket").exists()
