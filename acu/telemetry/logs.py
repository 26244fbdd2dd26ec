"""Structured logs: everything speaks through stdlib `logging`, one thread writes it out by structlog.

Code logs with `logging.getLogger(__name__).info("what happened", extra={"id": ..., "ms": ...})`; what libraries log
(aiohttp, vLLM) takes the same road. The loop only puts the record into a bounded queue; the thread renders it
(coloured on a terminal, one JSON object a line elsewhere) and writes it to standard error. When nobody reads the other
end of a pipe, the thread blocks and the loop does not: records over the bound are dropped and counted.

structlog is imported by the thread, after the daemon accepts: it costs 100 ms and more. Records that come before that
wait in the queue.
`stop` waits a bounded time for the queue to drain, so a blocked pipe cannot hold up the end of the process.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any, Literal

STDERR = 2
QUEUE_RECORDS = 10_000
STOP_TIMEOUT_S = 2.0
QUIET = (
    "aiohttp.access",
    "asyncio",
    "client",
    "filelock",
    "httpcore2",
    "httpx2",
    "huggingface_hub",
    "mcp",
    "urllib3",
)  # informative only from warnings up


class LogThread(logging.Handler):
    """The root logger's only handler, and the thread behind it."""

    def __init__(self, style: Literal["json", "pretty"], fd: int = STDERR) -> None:
        super().__init__()
        self.dropped = 0
        self._style = style
        self._fd = fd
        self._stopped = False
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(QUEUE_RECORDS)
        # A daemon thread: one that is stuck in write(2) must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)

    def install(self, level: str) -> None:
        """Take over the root logger. Records wait until `start`."""
        logging.captureWarnings(capture=True)
        root = logging.getLogger()
        root.handlers[:] = [self]
        root.setLevel(level.upper())
        for name in QUIET:
            logging.getLogger(name).setLevel(max(logging.WARNING, root.level))

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, for at most STOP_TIMEOUT_S seconds."""
        logging.getLogger().removeHandler(self)
        if not self._thread.ident:
            self._thread.start()
        try:
            self._records.put(None, timeout=STOP_TIMEOUT_S)
        except queue.Full:
            self._stopped = True  # whenever what it writes now is taken, if ever
            return
        self._thread.join(STOP_TIMEOUT_S)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record, its message and traceback made text here, where their objects still are as they were."""
        record.msg, record.args = record.getMessage(), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        record.exc_info = None
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def _work(self) -> None:
        render = renderer(self._style)
        while not self._stopped and (record := self._records.get()) is not None:
            try:
                self._write(render(record).encode(errors="backslashreplace") + b"\n")
            except OSError:
                self.dropped += 1  # the reader of the pipe is gone

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]


REQUEST_LOGGER = "acu.http.request"
PRETTY_REQUEST_FIELDS = (
    *("method", "path", "status", "code", "reason", "model", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("queue_ms", "ttft_ms", "duration_ms", "key", "request_id"),
)
STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def printable(text: str, keep: str = "") -> str:
    r"""The text with what could drive a terminal (control and format characters, lone surrogates) escaped: `\x1b`.

    Characters in `keep` stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def renderer(style: Literal["json", "pretty"]) -> Callable[[logging.LogRecord], str]:
    """A function that turns a record into text without its final newline."""
    import structlog

    json = style == "json"
    render: Any = (
        structlog.processors.JSONRenderer(default=str)
        if json
        else structlog.dev.ConsoleRenderer(
            colors=True,
            pad_event_to=12,
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    stamp = structlog.processors.TimeStamper(fmt="iso" if json else "%H:%M:%S", utc=json)

    def text(record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"event": record.msg, "level": record.levelname.lower(), "logger": record.name}
        extra = {name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS}
        if not json and record.name == REQUEST_LOGGER:
            extra = {name: extra[name] for name in PRETTY_REQUEST_FIELDS if extra.get(name)}
        fields |= extra
        if not json:
            del fields["logger"]
        if record.exc_text:
            fields["exception"] = record.exc_text
        if not json:
            fields = {
                name: printable(value, keep="\n\t" if name == "exception" else "") if isinstance(value, str) else value
                for name, value in fields.items()
            }
            # What has lines keeps them; those of a message are indented, so that none looks like a record.
            fields["event"] = printable(str(record.msg), keep="\n\t").replace("\n", "\n    ")
        rendered = render(None, record.levelname.lower(), stamp(None, "", fields))
        return rendered if isinstance(rendered, str) else rendered.decode()

    return text


def log_style(wanted: Literal["auto", "json", "pretty"], *, under_systemd: bool) -> Literal["json", "pretty"]:
    """`auto` is pretty on a terminal, and JSON under systemd and elsewhere."""
    if wanted != "auto":
        return wanted
    return "pretty" if os.isatty(STDERR) and not under_systemd else "json"
