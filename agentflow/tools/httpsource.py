"""HttpSource: an HTTP API in the configuration. Imports no client, so that whoever reads a configuration need not wait for it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from agentflow.config import Seconds
from agentflow.tools.mcpsource import Approval
from agentflow.tools.secrets import SecretFile


class HttpSource(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An HTTP API whose operations are tools."""

    document: Annotated[
        str, Meta(description="File with its OpenAPI document, version 3, as JSON or YAML.", min_length=1)
    ]
    url: Annotated[
        str,
        Meta(
            description="Where the API is: what its paths are appended to. http or https. The document's `servers` are not used.",
            min_length=1,
        ),
    ]
    headers: Annotated[
        dict[str, str | SecretFile],
        Meta(description="Headers of each request. A value is text, or {file: PATH} for a secret."),
    ] = {}
    operations: Annotated[
        tuple[str, ...],
        Meta(description="The operations (operationId) that are tools. Default: all that can be called."),
    ] = ()
    reach: Annotated[
        tuple[str, ...],
        Meta(
            description="host:port of what may be reached on this machine or in private networks; else only public addresses are."
        ),
    ] = ()
    timeout_s: Annotated[Seconds, Meta(description="Seconds that one try of a call may take.")] = 30.0
    retries: Annotated[
        int, Meta(description="Further tries of a call that is idempotent (GET, HEAD, PUT, DELETE).", ge=0, le=10)
    ] = 1
    concurrency: Annotated[int, Meta(description="Calls of one operation at a time.", ge=1, le=256)] = 8
    result_bytes: Annotated[int, Meta(description="Bytes of an answer that the model reads.", ge=256)] = 8192
    answer_bytes: Annotated[int, Meta(description="Longest answer in bytes. A longer one is an error.", ge=1024)] = (
        64 << 20
    )
    fresh_for_s: Annotated[
        Seconds | None, Meta(description="Seconds after which an answer is too old to be used again. Unset: never.")
    ] = None
    approval: Annotated[
        Approval, Meta(description="Whether a person must allow calls: never, writes (all but GET and HEAD), always.")
    ] = "never"
