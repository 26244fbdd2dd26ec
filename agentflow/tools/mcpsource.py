"""McpSource: an MCP server in the configuration. Imports no SDK, so that whoever reads a configuration need not wait for it."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from msgspec import Meta, Struct

from agentflow.config import Seconds
from agentflow.tools.secrets import SecretFile

Approval = Literal["never", "writes", "always"]


class McpSource(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An MCP server: either `command`, a program that is run here, or `url`."""

    command: Annotated[
        tuple[str, ...],
        Meta(description="Program and its arguments, of a server that speaks over standard input and output."),
    ] = ()
    folder: Annotated[
        str | None,
        Meta(
            description="Working folder of the program. Default: that of the configuration's file; / where there is none."
        ),
    ] = None
    environment: Annotated[
        tuple[str, ...],
        Meta(description="Environment variables that the program may read, besides PATH, HOME, LANG and TZ."),
    ] = ()
    variables: Annotated[
        dict[str, str | SecretFile],
        Meta(
            description="Environment variables that are set for the program. A value is text, or {file: PATH} for a secret."
        ),
    ] = {}
    url: Annotated[str | None, Meta(description="Address of a server that speaks streamable HTTP. http or https.")] = (
        None
    )
    headers: Annotated[
        dict[str, str | SecretFile],
        Meta(description="Headers of each request to `url`. A value is text, or {file: PATH} for a secret."),
    ] = {}
    reach: Annotated[
        tuple[str, ...],
        Meta(
            description="host:port of what may be reached on this machine or in private networks; else only public addresses are."
        ),
    ] = ()
    tools: Annotated[tuple[str, ...], Meta(description="The server's tools that are offered. Default: all.")] = ()
    start_timeout_s: Annotated[
        Seconds, Meta(description="Seconds that it may take to start and to list its tools.")
    ] = 30.0
    timeout_s: Annotated[Seconds, Meta(description="Seconds that one try of a call may take.")] = 60.0
    retries: Annotated[
        int, Meta(description="Further tries of a tool that the server calls idempotent.", ge=0, le=10)
    ] = 1
    concurrency: Annotated[int, Meta(description="Calls of one tool at a time.", ge=1, le=256)] = 8
    result_bytes: Annotated[int, Meta(description="Bytes of a result that the model reads.", ge=256)] = 8192
    message_bytes: Annotated[
        int, Meta(description="Longest message of the server, in bytes. It is ended for a longer one.", ge=4096)
    ] = 8 << 20
    fresh_for_s: Annotated[
        Seconds | None, Meta(description="Seconds after which a result is too old to be used again. Unset: never.")
    ] = None
    approval: Annotated[
        Approval,
        Meta(description="Whether a person must allow calls: never, writes (of tools not said to read only), always."),
    ] = "never"

    @property
    def program(self) -> str:
        """What is run, as it is found from any folder: a path that is relative counts from the working folder."""
        program = self.command[0]
        return os.path.join(self.folder or "/", program) if "/" in program else program  # noqa: PTH118 - links stay
