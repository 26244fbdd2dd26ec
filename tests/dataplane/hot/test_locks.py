"""SharedTurns: readers together, a writer alone, and what comes while it writes is run by it, or let in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from dataplane.hot.locks import TOGETHER, SharedTurns


def until(true: Callable[[], bool]) -> None:
    """Wait for it; a test that waits too long has failed."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


class Reading:
    """A thread that reads: its call says in which thread it runs, and ends when it is let go."""

    def __init__(self, turns: SharedTurns, *, at_once: bool = False) -> None:
        self.inside, self.go = threading.Event(), threading.Event()
        if at_once:
            self.go.set()
        self.ran_in: threading.Thread | None = None
        self.result: str | None = None
        self.thread = threading.Thread(target=self._run, args=(turns,), daemon=True)
        self.thread.start()

    def _run(self, turns: SharedTurns) -> None:
        self.result = turns.read(self._call)

    def _call(self) -> str:
        self.ran_in = threading.current_thread()
        self.inside.set()
        assert self.go.wait(30)
        return "read"

    def entered(self) -> bool:
        return self.inside.wait(30)

    def leave(self) -> None:
        self.go.set()
        self.thread.join(30)
        assert self.result == "read"


def left(turns: SharedTurns, count: int) -> None:
    until(lambda: len(turns._left) == count)


def test_readers_read_together_in_their_own_threads() -> None:
    turns = SharedTurns()
    readers = [Reading(turns) for _ in range(3)]
    assert all(reader.entered() for reader in readers)
    assert not turns.written
    for reader in readers:
        reader.leave()
        assert reader.ran_in is reader.thread


def test_a_writer_waits_for_all_readers_and_lets_no_new_one_pass_it() -> None:
    turns = SharedTurns()
    first, second = Reading(turns), Reading(turns)
    assert first.entered()
    assert second.entered()
    wrote = threading.Event()

    def write() -> None:
        with turns.writing():
            wrote.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    until(lambda: turns.written)
    late = Reading(turns, at_once=True)
    left(turns, 1)
    first.leave()
    assert not wrote.is_set()
    assert not late.inside.is_set()
    second.leave()
    writer.join(30)
    assert wrote.is_set()
    late.leave()
    assert not turns.written


def test_the_writer_runs_what_came_between_two_pieces() -> None:
    turns = SharedTurns()
    with turns.writing() as serve:
        assert not serve()
        reader = Reading(turns, at_once=True)
        left(turns, 1)
        assert not reader.inside.is_set()
        assert serve()
        reader.leave()
        assert reader.ran_in is threading.current_thread()
        assert not serve()


def test_many_that_wait_are_let_in_together() -> None:
    turns = SharedTurns()
    with turns.writing() as serve:
        readers = [Reading(turns) for _ in range(TOGETHER)]
        left(turns, TOGETHER)
        served = threading.Thread(
            target=lambda: [reader.leave() for reader in readers if reader.entered()], daemon=True
        )
        served.start()
        assert serve()  # and waits until they have read
        served.join(30)
        assert all(reader.ran_in is reader.thread for reader in readers)
        assert turns.written


def test_those_who_are_left_at_the_end_are_let_in() -> None:
    turns = SharedTurns()
    with turns.writing():
        readers = [Reading(turns) for _ in range(2)]
        left(turns, 2)
    assert all(reader.entered() for reader in readers)
    for reader in readers:
        reader.leave()
        assert reader.ran_in is reader.thread


def test_an_error_in_a_call_is_its_reader_s_and_harms_nobody_else() -> None:
    turns = SharedTurns()
    seen: list[BaseException] = []

    def fail() -> None:
        raise ValueError("mine")

    def read() -> None:
        try:
            turns.read(fail)
        except ValueError as error:
            seen.append(error)

    with turns.writing() as serve:
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        left(turns, 1)
        assert serve()
    thread.join(30)
    assert [str(error) for error in seen] == ["mine"]
    with pytest.raises(ValueError, match="mine"):
        turns.read(fail)
    assert turns.read(lambda: 5) == 5


def test_a_writer_that_fails_lets_everybody_go_on() -> None:
    turns = SharedTurns()
    with pytest.raises(RuntimeError, match="broken"), turns.writing():
        raise RuntimeError("broken")
    assert not turns.written
    assert turns.read(lambda: 1) == 1
    with turns.writing() as serve:
        assert not serve()


def test_readers_and_a_writer_never_meet() -> None:
    turns = SharedTurns()
    inside, met, counted = [0], [0], [0]
    lock = threading.Lock()
    writing = [False]

    def read() -> None:
        def call() -> None:
            if writing[0]:
                met[0] += 1
            with lock:
                counted[0] += 1

        for _ in range(500):
            turns.read(call)

    def write() -> None:
        for _ in range(100):
            with turns.writing() as serve:
                for _ in range(5):
                    writing[0] = True
                    inside[0] += 1
                    writing[0] = False
                    serve()

    threads = [threading.Thread(target=read, daemon=True) for _ in range(6)] + [
        threading.Thread(target=write, daemon=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert (met[0], counted[0], inside[0]) == (0, 3000, 500)
