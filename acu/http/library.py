"""Where the endpoints of files and vector stores find the library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentflow.library.refusals import DataUnavailable

if TYPE_CHECKING:  # it brings the whole data plane with it, which a face without one does not need
    from agentflow.library.library import Library

LibrarySource = Callable[[], "Library"]
"""Gives the library, or raises DataUnavailable with the reason why there is none and when to ask again."""

READ_REFUSALS = (404,)
WRITE_REFUSALS = (404, 507)
BODY_REFUSALS = (404, 408, 413, 415, 417, 507)
FORM_REFUSALS = (408, 413, 415, 417, 507)


def no_library() -> Library:
    """The source of a daemon that keeps nothing."""
    raise DataUnavailable(
        "This daemon runs without a data plane: it keeps no files and no vector stores. "
        "Set data_plane.path in its configuration.",
        retry_after_s=math.inf,
    )
