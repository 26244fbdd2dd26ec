"""A peer's process: asked by lines, answering by lines, stopped in between."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.report import NotMeasured
from benchmarks.vectorpeers import Peer, fill, raw_graph, started

STORE = """
from benchmarks.commands import answer_commands
class Store:
    def fill(self, rows):
        print("what a library says")
        return {"fill_s": rows / 1000}
    def add(self, first, second):
        return {"sum": first + second, "long": "x" * 200_000}
    def leave(self):
        raise SystemExit("the store has no more room")
answer_commands(Store())
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    one = Peer("store", tmp_path, [sys.executable, "-c", STORE])
    with started([one]):
        yield one


def stops(peer: Peer) -> bool:
    """Whether the process is stopped, or will be: a signal takes a moment."""
    assert peer.process is not None
    process = psutil.Process(peer.process.pid)
    deadline = time.monotonic() + 10
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(process.status() == psutil.STATUS_STOPPED)


def test_it_answers_one_command_after_another_whatever_its_libraries_print(peer: Peer) -> None:
    said: list[str] = []
    fill([peer], 500, said.append)
    assert said == ["store: filled, 1000 rows/s"]
    for number in range(3):
        answer = peer.ask(do="add", first=number, second=2)
        assert answer == {"sum": number + 2, "long": "x" * 200_000}


def test_it_is_stopped_while_nothing_is_asked(peer: Peer) -> None:
    assert stops(peer)
    peer.ask(do="add", first=1, second=2)
    assert stops(peer)


def test_what_it_dies_of_is_told(peer: Peer) -> None:
    with pytest.raises(NotMeasured, match="the store has no more room"):
        peer.ask(do="leave")
    with pytest.raises(NotMeasured, match="store ended"):
        peer.ask(do="add", first=1, second=2)


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    one = Peer(
        "store",
        tmp_path,
        [sys.executable, "-c", STORE.replace("raise SystemExit", "import time; time.sleep(60) or str")],
    )
    with started([one]), pytest.raises(NotMeasured, match="does not answer"):
        one.ask(0.2, do="leave")


def test_all_end_with_the_block_even_by_an_error(tmp_path: Path) -> None:
    one = Peer("store", tmp_path, [sys.executable, "-c", STORE])
    with contextlib.suppress(KeyError), started([one]):
        raise KeyError
    assert one.process is not None
    assert one.process.returncode is not None


def test_without_its_python_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="setup --bench"):
        raw_graph(tmp_path / "raw", tmp_path / "python", tmp_path / "vectors.npy")
