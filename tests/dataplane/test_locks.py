"""The readers-writer lock: readers together, a writer alone, and neither is kept out for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from dataplane.locks import ReadersWriterLock


def until(true: Callable[[], bool]) -> None:
    """Wait for it; a test that waits too long has failed."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


class Holder:
    """A thread that holds the lock until it is let go."""

    def __init__(self, lock: ReadersWriterLock, *, writes: bool = False) -> None:
        self._manager = lock.writing() if writes else lock.reading()
        self.inside = threading.Event()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._manager:
            self.inside.set()
            assert self._go.wait(30)

    def entered(self) -> bool:
        return self.inside.wait(30)

    def leave(self) -> None:
        self._go.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_readers_read_together() -> None:
    lock = ReadersWriterLock()
    readers = [Holder(lock) for _ in range(3)]
    assert all(reader.entered() for reader in readers)
    assert lock.contended
    assert not lock.written
    for reader in readers:
        reader.leave()
    assert not lock.contended


def test_a_writer_waits_for_all_readers_and_lets_no_new_one_pass_it() -> None:
    lock = ReadersWriterLock()
    first, second = Holder(lock), Holder(lock)
    assert first.entered()
    assert second.entered()
    writer = Holder(lock, writes=True)
    until(lambda: lock.written)
    late = Holder(lock)
    first.leave()
    assert not writer.inside.is_set()
    second.leave()
    assert writer.entered()
    assert not late.inside.is_set()
    writer.leave()
    assert late.entered()
    late.leave()
    assert not lock.written


def test_a_reader_waits_for_one_piece_of_work_at_most() -> None:
    lock = ReadersWriterLock()
    order: list[str] = []
    go = threading.Event()

    def write() -> None:
        with lock.writing():
            order.append("first piece")
            assert go.wait(30)
        with lock.writing():
            order.append("second piece")

    def read() -> None:
        with lock.reading():
            order.append("reader")

    for _ in range(100):
        order.clear()
        go.clear()
        writer = threading.Thread(target=write)
        writer.start()
        until(lambda: order == ["first piece"])
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        until(lambda: lock._waiting_readers == 3)
        go.set()
        for thread in (writer, *readers):
            thread.join(30)
        assert order == ["first piece", "reader", "reader", "reader", "second piece"]


def test_a_writer_is_not_starved_by_readers_that_never_pause() -> None:
    lock = ReadersWriterLock()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with lock.reading():
                time.sleep(0.0005)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    for _ in range(100):
        with lock.writing():
            pass
    stop.set()
    for reader in readers:
        reader.join(30)
        assert not reader.is_alive()


def test_nobody_ever_sees_half_of_a_change() -> None:
    lock = ReadersWriterLock()
    pair = [0, 0]
    torn = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with lock.reading():
                one = pair[0]
                time.sleep(0)
                if pair[1] != one:
                    torn.append(one)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 400):
        with lock.writing():
            pair[0] = number
            time.sleep(0)
            pair[1] = number
    stop.set()
    for reader in readers:
        reader.join(30)
    assert torn == []


@pytest.mark.parametrize("writes", [False, True])
def test_an_error_inside_lets_the_lock_go(writes: bool) -> None:
    lock = ReadersWriterLock()
    with pytest.raises(ZeroDivisionError), lock.writing() if writes else lock.reading():
        raise ZeroDivisionError
    with lock.writing():
        assert lock.written
    with lock.reading():
        assert lock.contended
