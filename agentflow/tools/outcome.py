"""What became of a call, and what the model reads of it.

A result up to `most` bytes of UTF-8 is read whole. Of a longer text the model reads the head, cut at a character, and a line that
says its size and its handle. Of what is no text it reads type, size and handle alone. Whether a file is text is told by its
bytes, whatever the tool calls it. What is attached to a result comes behind it, and a text among that is read as far as there is
room.
"""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from agentflow.tools.errors import ToolFailed
from agentflow.tools.handles import BINARY, HandleStore
from agentflow.tools.tool import Attachment, CallContext, Content, ToolOutput

_ENCODE_INLINE: Final = 1 << 18
"""Characters that are encoded on the loop; longer texts in a thread."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What the model reads of a call (`text`), and what the run's log keeps.

    `handle`: where the whole result is, if the model does not read all of it; else the first of what is attached. `attempts`: how
    often it was tried. `seconds` from the first try to the end of the last one, waiting included. `started_at`, `finished_at`:
    seconds since 1970.
    """

    text: str
    is_error: bool = False
    handle: str | None = None
    seconds: float = 0.0
    attempts: int = 0
    started_at: float = 0.0
    finished_at: float = 0.0


class Reading(NamedTuple):
    """The part of an outcome that its output makes."""

    text: str
    is_error: bool
    handle: str | None = None


class Reader:
    """Makes of a tool's output what the model reads, and keeps the rest."""

    def __init__(self, handles: HandleStore) -> None:
        self._handles = handles

    async def read(
        self, output: ToolOutput, context: CallContext, most: int, given: Mapping[Path, str] | None = None
    ) -> Reading:
        """`most`: bytes that the model reads. `given`: handles of the contents that the call was given, which it may give back.

        Raises ToolFailed (nothing that can be kept), OSError. What is not kept at `context.result_path` is there still.
        """
        content = output.content
        if isinstance(content, str):
            text, handle = await self._text(content, context, most)
        elif content.path == context.result_path:
            text, handle = await self._content(content, context, most, None)
        elif given and content.path in given:
            text, handle = await self._content(content, context, most, given[content.path])
        else:
            raise ToolFailed("The tool gave a file that is not its own.")
        parts = [text] if text else []
        for file in output.attached:
            told, its_handle = await self._attached(file, context, max(0, most - len(text.encode())))
            parts.append(told)
            handle, text = handle or its_handle, "\n".join(parts)
        return Reading(text, output.is_error, handle)

    async def _text(self, text: str, context: CallContext, most: int) -> tuple[str, str | None]:
        limit = self._handles.limits.result_max_bytes
        if len(text) > limit:
            raise ToolFailed(
                f"The result has {len(text):,} characters; at most {limit:,} bytes are kept. Ask for less."
            )
        if len(text) <= _ENCODE_INLINE:
            data = text.encode("utf-8", "replace")
        else:
            data = await asyncio.to_thread(text.encode, "utf-8", "replace")
        if len(data) <= most:
            return data.decode(), None
        handle = await self._handles.keep(context.tenant, context.run_id, data, "text/plain")
        return _headed(data[:most].decode("utf-8", "ignore"), len(data), handle), handle

    async def _content(
        self, content: Content, context: CallContext, most: int, handle: str | None
    ) -> tuple[str, str | None]:
        size, head = await asyncio.to_thread(_head, content.path, most)
        text = _as_text(head, whole=size <= most)
        if text is not None and size <= most:
            return text, None
        media_type = _true_type(content.media_type, text)
        if handle is None:
            handle = await self._handles.adopt(context.tenant, context.run_id, content.path, media_type)
        return _part(text, media_type, size, handle), handle

    async def _attached(self, file: Attachment, context: CallContext, most: int) -> tuple[str, str | None]:
        size = len(file.data)
        text = _as_text(file.data[:most], whole=size <= most)
        if text and size <= most:
            return text, None
        media_type = _true_type(file.media_type, text)
        try:
            handle = await self._handles.keep(context.tenant, context.run_id, file.data, media_type)
        except ToolFailed as error:  # the rest of the result is good
            return f"[{media_type}, {size:,} bytes. {error}]", None
        return _part(text, media_type, size, handle), handle


def clipped(text: str, most: int) -> str:
    """A text of at most `most` bytes of UTF-8, cut at a character; what cannot be encoded is replaced."""
    data = text[: most + 1].encode("utf-8", "replace")
    return data.decode() if len(data) <= most else data[:most].decode("utf-8", "ignore") + "..."


def _true_type(media_type: str, text: str | None) -> str:
    return BINARY if text is None and media_type.startswith("text/") else media_type


def _part(head: str | None, media_type: str, size: int, handle: str) -> str:
    """`head`: the beginning of a text; None for what is none."""
    if head:
        return _headed(head, size, handle)
    return f"[{media_type}, {size:,} bytes{', no text' if head is None else ''}. {_usable(handle)}]"


def _headed(head: str, size: int, handle: str) -> str:
    return f"{head}\n[cut here: the whole has {size:,} bytes. {_usable(handle)}]"


def _usable(handle: str) -> str:
    return f'Its handle is "{handle}": any tool takes that as an argument.'


def _head(path: Path, most: int) -> tuple[int, bytes]:
    """Size and first bytes of a plain file. Raises ToolFailed where there is none. Blocks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return os.fstat(descriptor).st_size, file.read(most)
    except OSError as error:
        raise ToolFailed("The tool said that it wrote a file, and there is none that can be read.") from error


def _as_text(data: bytes, *, whole: bool) -> str | None:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, whole)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
