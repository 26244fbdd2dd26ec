"""Secrets: what headers and environment variables are read from files for, and what is never shown again.

A value in the configuration is text, or `{file: PATH}`. Files are read when a server or an API is opened, each time anew, so
that a secret which was replaced holds from the next start. One line feed at the end is not part of a secret.

A value is in no error, log or repr. Where a server gives one back, it is replaced before the model or a file sees it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct

from agentflow.tools.errors import InvalidTool

HIDDEN: Final = "[secret]"
_MOST_BYTES: Final = 1 << 16
_SHORTEST: Final = 6
"""Characters of a piece that is hidden; shorter ones are found in anything."""
_HEADER_NAME: Final = re.compile(r"[a-zA-Z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")
_VARIABLE: Final = re.compile(r"[^=\x00]{1,256}")


class SecretFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A value that is the content of a file."""

    file: Annotated[str, Meta(description="File with the value. Read at each start; never shown.", min_length=1)]


Values = Mapping[str, str | SecretFile]


class Secrets:
    """Values that were read, by name; `hidden` are those that came from files. Its repr has none of them."""

    __slots__ = ("_longest", "_pattern", "_values")

    def __init__(self, values: Mapping[str, str], hidden: Iterable[str]) -> None:
        self._values = dict(values)
        pieces = {piece.encode() for value in hidden for piece in (value, *value.split()) if len(piece) >= _SHORTEST}
        self._longest = max(map(len, pieces), default=1)
        # Of those that begin at one place, the longest is to be found: the first that is named.
        longest_first = sorted(pieces, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if pieces else None

    def values(self) -> dict[str, str]:
        """All of them. Show them to nobody."""
        return dict(self._values)

    def hide(self, text: str) -> str:
        """The text, with what came from files replaced."""
        if self._pattern is None:
            return text
        return self._pattern.sub(HIDDEN.encode(), text.encode("utf-8", "surrogatepass")).decode(
            "utf-8", "surrogatepass"
        )

    def hide_first(self, data: bytes, *, is_last: bool) -> tuple[bytes, bytes]:
        """What of the data is sure, with secrets replaced; and the rest, which is to stand before what comes next."""
        if self._pattern is None:
            return data, b""
        sure = len(data) if is_last else max(0, len(data) - self._longest + 1)
        parts, at = [], 0
        for found in self._pattern.finditer(data):
            if found.start() >= sure:
                break
            parts += [data[at : found.start()], HIDDEN.encode()]
            at = found.end()
        end = max(at, sure)
        return b"".join([*parts, data[at:end]]), data[end:]

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"


def read_headers(values: Values) -> Secrets:
    """Blocks. Raises InvalidTool, which names the header and the file, and not what is in it."""
    secrets = _read(values)
    for name, value in secrets.values().items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidTool(f"{name[:64]!r} is no name of a header.")
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidTool(
                f"The value of the header {name} has a line feed or another character that none may have."
            )
    return secrets


def read_variables(values: Values) -> Secrets:
    """For a program's environment. Blocks. Raises InvalidTool, as `read_headers`."""
    secrets = _read(values)
    for name, value in secrets.values().items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise InvalidTool(f"{name[:64]!r} is no environment variable, or its value has a NUL in it.")
    return secrets


def _read(values: Values) -> Secrets:
    read: dict[str, str] = {}
    hidden = []
    for name, value in values.items():
        if isinstance(value, SecretFile):
            read[name] = _content(name, value.file)
            hidden.append(read[name])
        else:
            read[name] = value
    return Secrets(read, hidden)


def _content(name: str, path: str) -> str:
    try:
        # Without waiting, where somebody put a pipe in its place.
        with os.fdopen(os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(_MOST_BYTES + 1) or b""
        text = data.decode()
    except OSError as error:
        raise InvalidTool(f"The secret file {path} for {name} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:  # it quotes what is in the file
        raise InvalidTool(f"The secret file {path} for {name} is no UTF-8 text.") from None
    if len(data) > _MOST_BYTES:
        raise InvalidTool(f"The secret file {path} for {name} is longer than {_MOST_BYTES:,} bytes.")
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise InvalidTool(f"The secret file {path} for {name} is empty.")
    return text
