"""Limits of the HTTP face. Frozen; the daemon fills them from its configuration, which has the defaults."""

from __future__ import annotations

from msgspec import Struct


class HttpSettings(Struct, frozen=True, kw_only=True):
    """What a client may send, how slowly, and under which names it may call.

    max_body_bytes   largest body of a request; a larger one is refused with 413
    header_timeout_s from a request's first byte to the end of its headers; then 408
    body_timeout_s   from the end of the headers to the end of the body; then 408
    idle_timeout_s   how long a connection may stay open with no request on it
    slow_reader_s    how long an answer may go unread by its client; then the connection is aborted
    max_connections  open at a time, over all sockets; one more is answered 503 and closed, but for the reserve (server.py)
    allowed_hosts    names, besides localhost, that the Host header may carry while there are no API keys
    """

    max_body_bytes: int
    header_timeout_s: float
    body_timeout_s: float
    idle_timeout_s: float
    slow_reader_s: float
    max_connections: int
    allowed_hosts: tuple[str, ...]
