"""The text of a file, read in a child process: a hostile file costs its own upload and no more.

One child a file (see extractor.py; it starts in about 0.1 s), which is confined before it opens the file (confinement.py) and
writes its answer into an anonymous file in memory. So nothing streams: the child cannot stall on a full pipe, and the kernel
bounds what it writes. When the child has ended, the answer is read and judged.

Each child belongs to one thread of a small pool, which starts it, waits for it and reaps it. Not to the event loop, for
two reasons. uvloop starts a process by fork, which stops the loop for some 40 ms for each gigabyte that the daemon holds;
`subprocess` uses vfork. And the kernel ties a child to the *thread* that started it, which here lives as long as it.

A cancelled `extract` ends when its child is dead and reaped. The children of a process that is killed die with it.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import msgspec
from msgspec import Struct

from agentflow.library.errors import ExtractionFailed, FileRefused, FileTooLarge, FileUnreadable, UnsupportedFile
from agentflow.library.limits import ExtractionLimits

_PROGRAM = Path(__file__).with_name("extractor.py")
_SHOWN_NAME = 80  # characters of a file's name that a message repeats
_SHOWN_ERROR = 400  # characters of the child's last words
_OUT_OF_MEMORY = (signal.SIGABRT, signal.SIGTRAP, signal.SIGILL)
"""How a child ends that reaches its limit of memory: the PDF library gives up by one of these."""
_TOO_SLOW = signal.SIGVTALRM  # formats/markup.py


class Extracted(Struct, frozen=True):
    """The text of a file.

    `text` has line feeds for line ends, and a form feed between the pages of a PDF; it is never blank. `kind` is one of
    kinds.KINDS, `pages` the number of a PDF's pages. `notes` are sentences for whoever uploaded it (pages without text).
    """

    text: str
    kind: str
    pages: int | None
    notes: tuple[str, ...]


class Extractor:
    """Reads files, at most `concurrency` at once; the others wait their turn. Used from one event loop; close it."""

    def __init__(self, limits: ExtractionLimits | None = None, concurrency: int = 2) -> None:
        self._limits = limits or ExtractionLimits()
        self._threads = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="extract")
        self._children: set[_Child] = set()

    async def extract(self, path: Path, filename: str) -> Extracted:
        """The text of the file at `path`, which the caller knows as `filename`.

        Raises UnsupportedFile, FileUnreadable or FileTooLarge, with the name and what to do, where the file is at fault;
        ExtractionFailed where it is not. Cancelled, it kills the child and waits until it is reaped.
        """
        child = _Child(path, filename, self._limits)
        job = self._threads.submit(child.run)
        self._children.add(child)
        try:
            extracted = await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            child.stop()
            if not job.cancel():
                ended = asyncio.wrap_future(job)
                ended.add_done_callback(asyncio.Future.exception)  # nobody will ask for it
                await asyncio.wait([ended])  # a second cancel cuts this short; the thread reaps the child all the same
            raise
        finally:
            self._children.discard(child)
        if extracted is None:
            raise ExtractionFailed(f"{shown(filename)} was not read to its end: the extractor was closed")
        return extracted

    def close(self) -> None:
        """Kill what runs, and wait for it: milliseconds. What was being extracted raises ExtractionFailed."""
        for child in tuple(self._children):
            child.stop()
        self._threads.shutdown(wait=True)


class _Child:
    """One run of the program. `run` belongs to a thread; `stop` may be called from any."""

    def __init__(self, path: Path, filename: str, limits: ExtractionLimits) -> None:
        self._path = path
        self._filename = filename
        self._limits = limits
        self._lock = threading.Lock()  # between starting and stopping
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Kill the process, or keep it from being started."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def run(self) -> Extracted | None:
        """Start the process, wait for its end and read its answer. None: it was stopped. Raises as `extract` does."""
        try:
            with _file_in_memory() as answer, _file_in_memory() as errors:
                code = self._wait(answer, errors)
                return None if self._stopped else self._judge(code, _all_of(answer), _all_of(errors))
        except OSError as error:
            raise ExtractionFailed(f"{shown(self._filename)} was not read: {error}; try again later") from error

    def _wait(self, answer: int, errors: int) -> int | None:
        """The exit code, or None where the process was not started or took too long."""
        with self._lock:
            if self._stopped:
                return None
            self._process = process = self._start(answer, errors)
        in_time = False
        try:
            in_time = _ends_within(process.pid, self._limits.wall_s)
        finally:
            if not in_time:
                process.kill()
            code = process.wait()
        return code if in_time else None

    def _start(self, answer: int, errors: int) -> subprocess.Popen[bytes]:
        suffix = Path(self._filename.replace("\0", "")).suffix[:32].encode("ascii", "replace").decode()
        settings = msgspec.json.encode(asdict(self._limits)).decode()
        return subprocess.Popen(
            [sys.executable, "-I", "-B", str(_PROGRAM), str(os.getpid()), suffix, settings, str(self._path.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=errors,
            cwd="/",
            env={},
            start_new_session=True,  # a ctrl-C at the terminal is the daemon's to answer
        )

    def _judge(self, code: int | None, answer: bytes, errors: bytes) -> Extracted:
        name, limits = shown(self._filename), self._limits
        if code is None:
            raise FileTooLarge(f"{name} takes more than {limits.wall_s:g} s to read: split it")
        if code == -signal.SIGXCPU:
            raise FileTooLarge(f"{name} takes more than {limits.cpu_s} s of a processor to read: split it")
        if code == -_TOO_SLOW:
            raise FileTooLarge(
                f"{name} has HTML that takes too long to read (an element with thousands of attributes, or elements closed "
                "in the wrong order): simplify it, or upload the text"
            )
        if code == -signal.SIGKILL:  # no limit does so: somebody did, or the kernel for want of memory in the machine
            raise ExtractionFailed(
                f"{name} was not read to its end: its reader was ended from outside, by the kernel if the machine ran out "
                "of memory: attach it again, and split it if that does not help"
            )
        words = errors.decode("utf-8", "replace").strip()
        if -code in _OUT_OF_MEMORY and not words:
            raise FileTooLarge(f"{name} takes more than {limits.memory_bytes:,} bytes of memory to read: split it")
        if code < 0:
            raise FileUnreadable(
                f"{name} is damaged, so that its reader crashed ({signal.Signals(-code).name}): "
                "open and save it with another program"
            )
        head, found, text = answer.partition(b"\n")
        if code > 0 or not found:
            raise ExtractionFailed(f"{name} was not read, for no fault of its own: {_last_line(words)}")
        return _told(msgspec.json.decode(head, type=_Head), text, name)


class _Head(Struct, frozen=True):
    """The first line of the child's answer: `code` and `message`, or the others."""

    kind: str = ""
    pages: int | None = None
    notes: tuple[str, ...] = ()
    code: str | None = None
    message: str = ""


def _told(head: _Head, text: bytes, name: str) -> Extracted:
    if head.code is None:
        return Extracted(text.decode(), head.kind, head.pages, head.notes)
    refusals: tuple[type[FileRefused], ...] = (UnsupportedFile, FileUnreadable, FileTooLarge)
    raise next(kind for kind in refusals if head.code == kind.CODE)(f"{name} cannot be read: {head.message}")


def _ends_within(pid: int, seconds: float) -> bool:
    """Whether the child ends in time. It is still to be reaped then."""
    process = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(process)


def _last_line(words: str) -> str:
    return words.rpartition("\n")[2][-_SHOWN_ERROR:] or "the reader said nothing"


@contextmanager
def _file_in_memory() -> Iterator[int]:
    file = os.memfd_create("extraction")
    try:
        yield file
    finally:
        os.close(file)


def _all_of(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def shown(filename: str) -> str:
    """A file's name as messages repeat it: printable, and not too long."""
    printable = "".join(character if character.isprintable() else "?" for character in filename)
    return printable if len(printable) <= _SHOWN_NAME else f"{printable[: _SHOWN_NAME - 1]}…"
