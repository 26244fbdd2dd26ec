"""The output of an engine's processes, read line by line on the event loop.

The processes write into one pipe (see child.py). A record of their logs begins with a separator and its level; lines
without one belong to the record before, a traceback for instance. The first lines of errors and worse go on into the
daemon's log, the rest only when it is set to debug. The last lines are kept, for `root_cause` to say why an engine did not
start or why it ended. Lines that tell how far a start is are handed on as a stage and the part of it that is done.

One piece is read in a turn of the loop, so that a process that writes without end does not hold it. Whoever needs what is
left now, because the processes have ended, takes what the pipe can hold, and no more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from collections.abc import Callable

from agentflow.engine.vllm.startup import ALLOCATING, INITIALIZING, LOADED, LOADING, WARMING

KEPT_LINES = 400
LONGEST_LINE = 16_384
PIECE_BYTES = 16_384
PIPE_BYTES = 65_536  # what Linux keeps of a pipe that nobody reads

_log = logging.getLogger("agentflow.engine.vllm")
_RECORD = re.compile(r"\x1e(?P<level>[A-Z]+) (?P<logger>[\w.]+): (?P<text>.*)")
_ERROR = re.compile(r"^(?:[\w.]+\.)?(?P<name>\w*(?:Error|Exception|Exit|Interrupt)): (?P<text>.+)")
_VAGUE = re.compile(r"initialization failed|See root cause|cancelled|Broken pipe|WorkerProc", re.IGNORECASE)
_STAGES = (
    (re.compile(r"Initializing a V1 LLM engine"), INITIALIZING),
    (re.compile(r"Starting to load model"), LOADING),
    (re.compile(r"Loading weights took|Model loading took"), LOADED),
    (re.compile(r"torch\.compile|Compiling|warm(?:ing)? ?up", re.IGNORECASE), WARMING),
    (re.compile(r"KV cache size"), ALLOCATING),
)
_FILES_READ = re.compile(r"Loading safetensors .*?(?P<percent>\d+)% Completed")


class ChildLog:
    """One engine's pipe. Create it on the loop; `close` gives back its descriptors.

    `progress` is called with a stage of the start (see startup.py) and the part of it, 0.0 to 1.0, that is done.
    """

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self._progress = progress
        self._reading_fd, self.writing_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reading_fd, False)
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reading_fd, self._read)

    def close(self) -> None:
        """Take what is left, a line without its end included, and stop reading. Idempotent."""
        if self._reading_fd >= 0:
            self._read_rest()
            if self._rest:
                self._take(self._rest)
            self._loop.remove_reader(self._reading_fd)
            os.close(self._reading_fd)
            os.close(self.writing_fd)
            self._reading_fd = self.writing_fd = -1

    def root_cause(self) -> str | None:
        """The first error that the processes told of and that is no mere echo of another, or None."""
        if self._reading_fd >= 0:
            self._read_rest()
        errors = [match for line in self._lines if (match := _ERROR.match(line))]
        for match in errors:
            if _VAGUE.search(match["text"]):
                continue
            text = match["text"].strip().rstrip(".")
            return text if match["name"] in ("ValueError", "RuntimeError") else f"{match['name']}: {text}"
        return None

    def _read_rest(self) -> None:
        for _ in range(PIPE_BYTES // PIECE_BYTES):
            if not self._read():
                return

    def _read(self) -> bool:
        """Take one piece of what was written. Returns whether there was any."""
        try:
            data = os.read(self._reading_fd, PIECE_BYTES)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LONGEST_LINE:]
        for line in lines:
            self._take(line)
        return True

    def _take(self, raw: bytes) -> None:
        line = raw[:LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
        record = _RECORD.match(line)
        text, level = line, logging.DEBUG
        if record:
            text, level = record["text"], logging.getLevelNamesMapping().get(record["level"], logging.INFO)
            for pattern, stage in _STAGES:
                if pattern.search(text):
                    self._progress(stage, 0.0)
                    break
        elif read := _FILES_READ.search(line):
            self._progress(LOADING, int(read["percent"]) / 100)
        self._lines.append(text)
        # vLLM warns of what was chosen for it; what an operator must know, the engine says itself.
        _log.log(level if level >= logging.ERROR else logging.DEBUG, "%s", text)
