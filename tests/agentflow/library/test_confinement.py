"""What a confined process can still do. Each test confines a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from agentflow.library.limits import ExtractionLimits

ROOT = Path(__file__).resolve().parents[3]
SMALL = ExtractionLimits(memory_bytes=256 << 20, text_bytes=1 << 20, cpu_s=1)


def confined(
    program: str, limits: ExtractionLimits = SMALL, parent: int | None = None
) -> subprocess.CompletedProcess[str]:
    code = (
        "import json, sys; sys.path.append(sys.argv[1])\n"
        "from agentflow.library.confinement import confine\n"
        "from agentflow.library.limits import ExtractionLimits\n"
        "confine(int(sys.argv[2]), ExtractionLimits(**json.loads(sys.argv[3])))\n"
    )
    arguments = [str(ROOT), str(parent or os.getpid()), json.dumps(asdict(limits))]
    return subprocess.run(
        [sys.executable, "-I", "-c", code + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "attempt",
    [
        "import os; os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['/bin/true'])",
        "import socket; socket.socket()",
        "import threading; threading.Thread(target=print).start()",
    ],
)
def test_it_starts_nothing_and_opens_no_socket(attempt: str) -> None:
    done = confined(f"print('confined', flush=True)\n{attempt}\nprint('escaped')")
    assert done.stdout == "confined\n"
    assert "Error" in done.stderr
    assert done.returncode == 1


def test_it_still_reads_and_computes() -> None:
    assert confined(f"import csv, ctypes; print(open({str(Path(__file__))!r}).readline())").stdout.startswith('"""What')


def test_memory_is_bounded() -> None:
    assert "MemoryError" in confined("bytearray(300 << 20)").stderr
    assert confined("bytearray(100 << 20)").returncode == 0


def test_time_is_bounded_and_the_signal_says_so() -> None:
    assert confined("while True: pass").returncode == -signal.SIGXCPU


def test_open_files_and_their_size_are_bounded(tmp_path: Path) -> None:
    assert "Too many open files" in confined("held = [open('/dev/null') for _ in range(20)]").stderr
    path = tmp_path / "out"
    assert (
        "File too large"
        in confined(
            f"open({str(path)!r}, 'wb', 0).write(bytes(3 << 20)); open({str(path)!r}, 'ab', 0).write(b'x' * 9)"
        ).stderr
    )
    assert path.stat().st_size == (1 << 20) + (1 << 16)


def test_it_gives_way_to_everything_else() -> None:
    done = confined("import os; print(os.nice(0), open('/proc/self/oom_score_adj').read().strip())")
    assert done.stdout.split() == [str(min(os.nice(0) + 10, 19)), "1000"]


def test_it_ends_at_once_where_its_parent_is_gone() -> None:
    done = confined("print('alive')", parent=1 if os.getpid() != 1 else 2)
    assert (done.returncode, done.stdout) == (1, "")
