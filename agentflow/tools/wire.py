"""What the daemon and a worker say to each other, and its bytes. Pure.

A frame is four bytes, the length (big-endian), and a message in MessagePack, of FRAME_MAX bytes at most. The daemon says
Start once, and then Call after Call; the worker answers each by one frame before the next is sent:

    Start -> Ready | Failed          Call -> Answered | Failed

A file is an extension (type 1) wherever it stands in a call's arguments: path and media type. In the daemon it is a
Content, in the worker a Blob. So a file never looks like a dict that a model wrote.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from agentflow.tools.blob import Blob
from agentflow.tools.context import Context
from agentflow.tools.tool import CallContext, Content, ToolSpec

FRAME_MAX: Final = 4 << 20
PREFIX: Final = struct.Struct(">I")
_FILE: Final = 1


class WireError(ValueError):
    """A message that cannot be sent, or bytes that are none."""


class Start(Struct, frozen=True, tag=True):
    """What the worker may have, and which module it imports."""

    module: str
    folders: tuple[str, ...]
    memory_bytes: int
    open_files: int


class Call(Struct, frozen=True, tag=True):
    """`result_path`: the file that a long result goes to."""

    name: str
    arguments: dict[str, Any]
    context: Context
    result_path: bytes


class Described(Struct, frozen=True):
    """A function that the module has. `trusted`: it says of itself that it may run in the daemon."""

    spec: ToolSpec
    trusted: bool


class Ready(Struct, frozen=True, tag=True):
    """The module is imported; these are its tools."""

    tools: tuple[Described, ...]


class Answered(Struct, frozen=True, tag=True):
    """The result: `text`, or else `size` bytes at the call's result_path."""

    text: str | None
    media_type: str = "text/plain"
    size: int = 0


class Failed(Struct, frozen=True, tag=True):
    """`again`: a second try could help. `invalid`: the arguments were wrong. `spent`: end this process, it is no good.

    `trace`: for the log, where the function raised what is no ToolError.
    """

    message: str
    again: bool = False
    invalid: bool = False
    spent: bool = False
    trace: str = ""


Request = Start | Call
Reply = Ready | Answered | Failed


def encode(message: Request | Reply) -> bytes:
    """A frame. Raises WireError."""
    try:
        data = msgspec.msgpack.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"it cannot be sent to or by a process ({error})") from error
    if len(data) > FRAME_MAX:
        raise WireError(f"it has {len(data):,} bytes; at most {FRAME_MAX:,} are passed directly")
    return PREFIX.pack(len(data)) + data


def length(prefix: bytes) -> int:
    """How many bytes follow the four of a prefix. Raises WireError."""
    (size,) = PREFIX.unpack(prefix)
    if size > FRAME_MAX:
        raise WireError(f"a frame of {size:,} bytes")
    return int(size)


def request(data: bytes) -> Request:
    """What the daemon said, in the worker. Raises WireError."""
    message: Request = _decoded(data, Request)
    return message


def reply(data: bytes) -> Reply:
    """What a worker said, in the daemon. Raises WireError for whatever is no reply: a worker may say anything."""
    message: Reply = _decoded(data, Reply)
    return message


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=kind, ext_hook=_opened)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"{len(data):,} bytes that are no message ({error})") from error


def call(name: str, arguments: dict[str, Any], context: CallContext) -> Call:
    """A call as it is sent: with extensions in the place of Contents."""
    told = Context(**{field: getattr(context, field) for field in Context.__struct_fields__})
    return Call(name, _packed(arguments), told, os.fsencode(context.result_path))


def _packed(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: _replaced(value, _extension) for name, value in arguments.items()}


def blobs(arguments: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments with Blobs in the place of Contents, for a function in this process."""
    return {name: _replaced(value, _blob) for name, value in arguments.items()}


def _replaced(value: Any, by: Callable[[Content], Any]) -> Any:
    if isinstance(value, Content):
        return by(value)
    if isinstance(value, dict):
        return {key: _replaced(part, by) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(part, by) for part in value]
    return value


def _extension(content: Content) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_FILE, msgspec.msgpack.encode((os.fsencode(content.path), content.media_type)))


def _blob(content: Content) -> Blob:
    return Blob(content.path, content.media_type)


def _opened(code: int, data: memoryview) -> Blob:
    if code != _FILE:
        raise ValueError(f"an extension of type {code}")
    path, media_type = msgspec.msgpack.decode(data, type=tuple[bytes, str])
    return Blob(Path(os.fsdecode(path)), media_type)
