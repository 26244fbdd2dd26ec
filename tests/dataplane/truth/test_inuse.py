"""Who has a data plane open, asked from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dataplane.truth.inuse import user_of
from dataplane.truth.rocks import Rocks


def asked(folder: Path) -> str:
    """What another process is told."""
    program = "import sys; from pathlib import Path; from dataplane.truth.inuse import user_of\nprint(user_of(Path(sys.argv[1])))"
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_another_process_is_told_who_has_it_open_until_it_is_closed(tmp_path: Path) -> None:
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=64 << 20)
    assert asked(tmp_path) == str(os.getpid())
    assert asked(tmp_path) == str(os.getpid()), "asking changes nothing"
    rocks.close()
    assert asked(tmp_path) == "None"


def test_of_a_folder_that_is_none_or_has_no_data_nobody_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    assert user_of(tmp_path / "none") is None
    assert user_of(tmp_path) is None
    os.mkfifo(tmp_path / "rocks")
    assert user_of(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["rocks"]
