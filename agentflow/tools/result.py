"""What a function returned, as a tool's result: a short text, or a file.

A str is as it is, bytes and Blobs are files, and anything else is JSON. Text of more than TEXT_MAX bytes is written to a
file too, by whoever called the function, so that it passes through no other process's memory. Blocks.
"""

from __future__ import annotations

import os
import shutil
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

import msgspec

from agentflow.tools.blob import BINARY, Blob
from agentflow.tools.errors import ToolError, ToolFailed
from agentflow.tools.tool import Content

TEXT_MAX: Final = 64 << 10
TRACE_MAX: Final = 64 << 10
"""Characters of a traceback that a worker passes on."""
_FRAMES: Final = 16
_HERE: Final = str(Path(__file__).parent)
_SHOWN: Final = 600  # characters of an error's own words


def finished(value: Any, name: str, path: Path) -> str | Content:
    """The result of the tool `name`; a file is made at `path`. Raises ToolFailed, OSError."""
    if isinstance(value, Blob):
        return _copied(value, path)
    if isinstance(value, bytes | bytearray | memoryview):
        return _written(bytes(value), path, BINARY)
    text = isinstance(value, str)
    try:
        data = value.encode() if text else msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise ToolFailed(
            f"The tool {name} returned text that is no Unicode ({error.reason}): correct the tool."
        ) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolFailed(
            f"The tool {name} returned what has no JSON ({type(value).__name__}: {error}): correct the tool, to return text, "
            "numbers, lists, dicts, bytes or a Blob."
        ) from error
    if len(data) > TEXT_MAX:
        return _written(data, path, "text/plain" if text else "application/json")
    return data.decode()


def failure(error: BaseException, name: str) -> ToolError:
    """What a function raised, as a sentence for the model. A ToolError of its own is passed on in its words."""
    try:
        told = _told(error, name)
        str(told).encode()
    except UnicodeEncodeError as bad:
        return _of_words(error, name, f"text that is no Unicode ({bad.reason})")
    except Exception as worse:  # noqa: BLE001 - the error's class does anything
        return _of_words(error, name, f"words that cannot be told ({type(worse).__name__})")
    return told


def _of_words(error: BaseException, name: str, what: str) -> ToolError:
    again = isinstance(error, ToolError) and error.again
    return ToolFailed(f"The tool {name} raised {type(error).__name__} with {what}: correct the tool.", again=again)


def _told(error: BaseException, name: str) -> ToolError:
    if isinstance(error, ToolError):
        return error
    if isinstance(error, MemoryError):
        return ToolFailed(f"The tool {name} needs more memory than it may have: ask it for less.")
    if isinstance(error, SystemExit):
        return ToolFailed(f"The tool {name} ended itself with sys.exit(): correct the tool, to raise an error.")
    words = str(error).strip()
    return ToolFailed(f"The tool {name} failed: {type(error).__name__}{': ' * bool(words)}{words[:_SHOWN]}")


def trace_of(error: BaseException) -> str:
    """The traceback of an error, its last frames, without ours at its beginning: TRACE_MAX characters at most."""
    try:
        frames = _author(error.__traceback__)
        lines = traceback.TracebackException(type(error), error, frames, limit=-_FRAMES, compact=True).format()
        text = "".join(lines).rstrip()[:TRACE_MAX]
    except Exception:  # noqa: BLE001 - there may be no memory left for it, or the error's class does anything
        return ""
    return text.encode("utf-8", "backslashreplace").decode()


def _author(frames: TracebackType | None) -> TracebackType | None:
    behind = frames
    while behind is not None and behind.tb_frame.f_code.co_filename.startswith(_HERE):
        behind = behind.tb_next
    return behind or frames


def _written(data: bytes, path: Path, media_type: str) -> Content:
    with _new(path) as file:
        file.write(data)
    return Content(path, len(data), media_type)


def _copied(blob: Blob, path: Path) -> Content:
    if not (blob.path == path and path.is_file()):  # a tool may have been told its place, and have written there
        with blob.open() as source, _new(path) as file:
            shutil.copyfileobj(source, file, 1 << 20)
    return Content(path, path.stat().st_size, blob.media_type)


def _new(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)  # an earlier try may have died over it
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb")
