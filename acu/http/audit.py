"""What is told of a request once it has ended: one log line, one line of the audit log, one count.

Who (key, tenant, peer, uid), what (method, route, path, model), how it went (status, tokens, time). Never content, never a
key: a record has no field for either.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from acu.http.data import DataSource, no_data
from acu.http.errors import HttpError
from acu.http.exchange import Peer, RequestRecord

PROBED = frozenset({"/healthz", "/readyz", "/metrics", "/acu/v1/status"})
"""Asked every few seconds by machines. Their answers are not worth a line, refusals apart."""


def _no_count(route: str, status: int) -> None:
    del route, status


def _no_metrics(full: bool) -> bytes:  # the daemon fills it with a function of one flag
    del full
    return b""


def _no_status() -> dict[str, Any]:
    return {}


class Hooks(Struct, frozen=True, kw_only=True):
    """What the daemon plugs into the face.

    `on_response` counts an answer by route and status; `render_metrics` gives the exposition text, all of it or the
    basic families; `audit` takes a line of JSON without its newline, and neither blocks nor fails; `daemon_status` is
    what /acu/v1/status tells beside the service; `preloading` tells how far weights are read, or is empty; `data` gives what
    administrators may do with the data plane.
    """

    on_response: Callable[[str, int], None] = _no_count
    render_metrics: Callable[[bool], bytes] = _no_metrics
    audit: Callable[[bytes], None] | None = None
    daemon_status: Callable[[], dict[str, Any]] = _no_status
    preloading: Callable[[], str] = str
    data: DataSource = no_data


class Journal:
    """Writes what has to be told of every request."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._log = logging.getLogger("acu.http.request")

    def request_ended(self, record: RequestRecord) -> None:
        """Tell of one request. Must not fail: the answer is out already."""
        self._hooks.on_response(record.route, record.status)
        routine = record.route in PROBED and record.status in (200, 503)
        level = logging.DEBUG if routine else logging.INFO
        if self._log.isEnabledFor(level):
            fields = {key: value for key, value in msgspec.structs.asdict(record).items() if value is not None}
            for name in ("queue", "ttft", "duration"):
                if (seconds := fields.pop(f"{name}_s", None)) is not None:
                    fields[f"{name}_ms"] = round(seconds * 1000, 1)
            self._log.log(level, "request", extra=fields)
        if self._hooks.audit is not None:
            self._hooks.audit(audit_line(record, time.time()))

    def connection_cut(self, error: HttpError, peer: Peer) -> None:
        """Tell of a connection that ended with an error before there was a request."""
        self._hooks.on_response("-", error.status)
        self._log.info(
            "connection cut", extra={"status": error.status, "code": error.code, "peer": peer.address, "uid": peer.uid}
        )


def audit_line(record: RequestRecord, now: float) -> bytes:
    """The record as a JSON object with `time`, Unix seconds. In ASCII: what splits lines elsewhere splits none here."""
    fields = {"time": round(now, 3), **msgspec.structs.asdict(record)}
    line = msgspec.json.encode(fields)
    return line if line.isascii() else json.dumps(fields, separators=(",", ":")).encode()
