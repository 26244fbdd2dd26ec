"""Limits of the HTTP face. Frozen; acu/config.py fills it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class HttpSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a client may send, how slowly, and under which names it may call."""

    max_body_bytes: Annotated[
        int, Meta(description="Largest request body in bytes. A larger one is refused with 413.", ge=1024)
    ] = 10 * 1024 * 1024
    max_header_bytes: Annotated[
        int,
        Meta(description="Largest request line or header, and largest sum of a request's headers, in bytes.", ge=1024),
    ] = 32 * 1024
    header_timeout_s: Annotated[
        Seconds, Meta(description="Seconds from a request's first byte to the end of its headers. Then: 408.")
    ] = 10.0
    body_timeout_s: Annotated[
        Seconds, Meta(description="Seconds from the end of the headers to the end of the body. Then: 408.")
    ] = 30.0
    idle_timeout_s: Annotated[
        Seconds, Meta(description="Seconds that a connection may stay open with no request on it.")
    ] = 75.0
    slow_reader_s: Annotated[
        Seconds, Meta(description="Seconds that a stream may go unread by its client before it is aborted.")
    ] = 60.0
    max_connections: Annotated[
        int,
        Meta(description="Connections open at a time, over all sockets. One more is answered 503 and closed.", ge=1),
    ] = 4096
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(description="Names, besides localhost, that the Host header may carry while there are no API keys."),
    ] = ()
