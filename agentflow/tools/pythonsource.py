"""PythonSource: where Python tools come from, and what the processes that run them may have. Imports none of them.

Packages that are installed can offer tools by entry points of the group `acu.tools`, whose values are modules.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from agentflow.config import Seconds

ENTRY_POINTS: Final = "acu.tools"
ALWAYS: Final = ("PATH", "HOME", "LANG", "TZ")
"""What a worker has of the daemon's environment whatever the configuration says."""


class PythonSource(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A module of Python functions that are tools, and what the processes that run them may have."""

    module: Annotated[
        str,
        Meta(
            description="Module (`package.module`) or file (`tools.py`) with functions under `@tool`. `:function` after it "
            "takes that function alone.",
            min_length=1,
        ),
    ]
    folders: Annotated[tuple[str, ...], Meta(description="Further folders that the module may import from.")] = ()
    trusted: Annotated[
        bool,
        Meta(
            description="Import it into the daemon, and run the functions there that are `@tool(trusted=True)`. Such a "
            "function can read and stop everything; a hanging one is not ended."
        ),
    ] = False
    environment: Annotated[
        tuple[str, ...],
        Meta(description="Environment variables that it may read, besides PATH, HOME, LANG and TZ."),
    ] = ()
    workers: Annotated[int, Meta(description="Most processes that run its functions, a call each.", ge=1, le=256)] = 8
    warm: Annotated[int, Meta(description="Processes that are kept ready.", ge=0, le=256)] = 2
    memory_mb: Annotated[
        int, Meta(description="Address space of one process, in MiB. More is refused to it.", ge=128)
    ] = 1024
    open_files: Annotated[int, Meta(description="Files and sockets that one process may have open.", ge=16)] = 256
    start_timeout_s: Annotated[Seconds, Meta(description="Seconds that a process may take to import the module.")] = (
        60.0
    )

    @property
    def place(self) -> str:
        """The module as a process in another folder finds it."""
        path, colon, only = self.module.partition(":")
        return os.path.abspath(path) + colon + only if path.endswith(".py") else self.module  # noqa: PTH100 - links stay


def installed_sources() -> tuple[PythonSource, ...]:
    """The modules that installed packages offer. Reads their metadata, which blocks; imports nothing."""
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return tuple(PythonSource(module=value) for value in sorted({point.value for point in found}))


def allowed_environment(source: PythonSource, environment: Mapping[str, str]) -> dict[str, str]:
    """What of the daemon's environment a worker gets."""
    return {name: environment[name] for name in (*ALWAYS, *source.environment) if name in environment}
