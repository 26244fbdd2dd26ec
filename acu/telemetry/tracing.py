"""Tracing as the configuration asks for it. Without a collector nothing of OpenTelemetry is imported."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acu.config import TelemetryConfig
from acu.config.document import MAX_BYTES, parse_value, read_regular
from acu.config.fields import Problem
from acu.errors import StartRefused

if TYPE_CHECKING:
    from acu.telemetry.otlp import Tracing

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[!-~](?:[\t -~]{0,8190}[!-~])?")


def open_tracing(config: TelemetryConfig) -> Tracing | None:
    """What the configuration asks for; None where nothing is traced. Raises StartRefused."""
    if config.otlp_endpoint is None:
        return None
    headers = {} if config.headers_file is None else read_headers(Path(config.headers_file))
    try:
        from acu.telemetry.otlp import Tracing
    except ImportError as error:
        raise StartRefused(
            f"telemetry.otlp_endpoint: traces need the packages opentelemetry-sdk and "
            f"opentelemetry-exporter-otlp-proto-http, and requests: {error}"
        ) from error
    return Tracing(config, headers)


def read_headers(path: Path) -> dict[str, str]:
    """The headers in a file. Raises StartRefused, which never quotes a value."""
    where = f"telemetry.headers_file: {path}"
    try:
        content, mode = read_regular(path)
    except OSError as error:
        raise StartRefused(f"{where} cannot be read: {error.strerror}; name a YAML file of headers") from error
    if mode & (stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH):
        raise StartRefused(f"{where} can be read by everybody, or written by others; run chmod g-w,o-rw {path}")
    if len(content) > MAX_BYTES:
        raise StartRefused(f"{where} is larger than {MAX_BYTES} bytes")
    problems: list[Problem] = []
    try:
        document: Any = parse_value("headers", content.decode("utf-8-sig"), problems)
    except UnicodeDecodeError:
        raise StartRefused(f"{where} is not UTF-8") from None
    if problems or not isinstance(document, dict):
        raise StartRefused(f"{where} is no plain YAML mapping; write a header a line, `authorization: Bearer ...`")
    for name, value in document.items():
        if not _HEADER.fullmatch(str(name)):
            raise StartRefused(f"{where} has a name that no header can have; use letters, digits and hyphens")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise StartRefused(f"{where}: the value of {name} is no printable ASCII text; put it in quotes")
    return {str(name): value for name, value in document.items()}
