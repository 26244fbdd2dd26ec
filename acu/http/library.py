"""Where the endpoints of files and vector stores find the library."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agentflow.library.refusals import DataUnavailable

if TYPE_CHECKING:  # it brings the whole data plane with it, which a face without one does not need
    from agentflow.library.library import Library

LibrarySource = Callable[[], Awaitable["Library"]]
"""Gives the library, which may be opened first; or raises DataUnavailable with the reason and when to ask again."""


async def no_library() -> Library:
    """The source of a face that was given none."""
    raise DataUnavailable(
        "This server was started without a data plane, and keeps no files and no vector stores. Use `acu serve`.",
        retry_after_s=math.inf,
    )
