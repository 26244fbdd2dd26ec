"""From exceptions to OpenAI's error shape: `{"error": {"message", "type", "param", "code"}}` and a status.

`HttpError` is what the face itself refuses with. `translate` turns whatever else a handler raises into one, by
`RULES`, which names every class of agentflow.errors' tree, the library's included (a test walks the tree).
"""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from msgspec import Struct

from acu.errors import AcuError
from agentflow import errors as flow
from agentflow.agents.refusals import RunConflict
from agentflow.library import errors as files
from agentflow.library import refusals as library
from agentflow.tools import errors as tools


class ErrorBody(Struct, frozen=True):
    """What went wrong: a sentence for people, a class of error, the offending field, a stable word for machines."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Struct, frozen=True):
    """The body of every answer whose status is 400 or above, and of an error event in a stream."""

    error: ErrorBody


class HttpError(AcuError):
    """A refusal with its status. `headers` go out with it; `close` ends the connection after it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}
        self.close = close

    def body(self) -> bytes:
        """The JSON that goes to the client. What a message repeats of a header may be no UTF-8; it is escaped."""
        return msgspec.json.encode(
            ErrorResponse(ErrorBody(printable(str(self)), error_type(self.status), self.param, self.code))
        )


class BadRequest(HttpError):
    """400 that names the offending field."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(400, message, code=code, param=param)


class KeyFileError(AcuError):
    """The file with the API keys cannot be used. The message says why and what to do."""


class Rule(Struct, frozen=True):
    """The status and code that a class of exception gets; `retry` is the x-should-retry header, if any.

    `says` is told instead of the exception's own words, where those are for the log: they name the machine's paths.
    """

    status: int
    code: str
    retry: bool | None = None
    says: str | None = None


RULES: dict[type[BaseException], Rule] = {
    flow.AgentFlowError: Rule(500, "internal_error"),
    flow.InvalidRequest: Rule(400, "invalid_value"),
    flow.ContextLengthExceeded: Rule(400, "context_length_exceeded"),
    flow.UnknownModel: Rule(404, "model_not_found"),
    flow.InvalidGrammar: Rule(400, "invalid_grammar"),
    flow.Refused: Rule(503, "refused"),
    flow.QueueFull: Rule(429, "queue_full"),
    flow.LongPromptRefused: Rule(503, "long_prompt_refused"),
    flow.DeadlineExceeded: Rule(504, "deadline_exceeded"),
    flow.Draining: Rule(503, "draining"),
    flow.EngineUnavailable: Rule(503, "engine_unavailable"),
    flow.EngineFailure: Rule(503, "engine_failure", retry=True),
    flow.EngineDied: Rule(503, "engine_died", retry=True),
    flow.EngineStalled: Rule(503, "engine_stalled", retry=True),
    flow.SequenceFailed: Rule(503, "sequence_failed", retry=True),
    flow.EngineStartFailed: Rule(503, "engine_start_failed"),
    RunConflict: Rule(409, "run_conflict"),
    tools.ToolError: Rule(500, "tool_error"),  # a run tells them to its model; none is an answer to a request
    tools.InvalidTool: Rule(500, "invalid_tool"),
    tools.UnknownTool: Rule(400, "unknown_tool"),
    tools.InvalidArguments: Rule(400, "invalid_arguments"),
    tools.UnknownHandle: Rule(400, "unknown_handle"),
    tools.ToolFailed: Rule(500, "tool_failed"),
    tools.ToolTimeout: Rule(500, "tool_timeout"),
    tools.ToolDied: Rule(500, "tool_died"),
    tools.ToolUnavailable: Rule(503, "tool_unavailable"),
    files.FileRefused: Rule(400, "file_refused"),
    files.UnsupportedFile: Rule(400, "unsupported_file"),
    files.FileUnreadable: Rule(400, "file_unreadable"),
    files.FileTooLarge: Rule(413, "file_too_large"),
    files.ExtractionFailed: Rule(500, "extraction_failed", says="The file could not be read. The log has the details."),
    library.NotStored: Rule(404, "not_found"),
    library.QuotaExceeded: Rule(400, "quota_exceeded"),
    library.StoreExpired: Rule(400, "vector_store_expired"),
    library.EmbedderChanged: Rule(400, "embedder_changed"),
    library.DataUnavailable: Rule(503, "data_plane_unavailable"),
    library.DiskFull: Rule(507, "storage_full", retry=False),  # it will not have room in a second
    library.DataDamaged: Rule(500, "data_damaged", says="Stored data is damaged. The log has the details."),
}

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_type(status: int) -> str:
    """OpenAI's `type` for a status."""
    if status >= 500:
        return "server_error"
    return _TYPES.get(status, "invalid_request_error")


def translate(error: Exception) -> HttpError:
    """The refusal that a client sees for `error`. What is not ours tells nothing of the inside."""
    if isinstance(error, HttpError):
        return error
    for cls in type(error).__mro__:
        rule = RULES.get(cls)
        if rule is not None:
            return _by_rule(error, rule)
    return HttpError(500, "The server failed to serve this request. The log has the details.", code="internal_error")


def _by_rule(error: Exception, rule: Rule) -> HttpError:
    headers: dict[str, str] = {}
    param: str | None = None
    code: str | None = rule.code
    says = rule.says or str(error)
    if isinstance(error, library.DataDamaged) and error.of:
        says = (
            f"What is stored of the {error.of} is damaged: restore a backup, or delete it. The daemon's log says more."
        )
    if isinstance(error, flow.InvalidRequest):
        param, code = error.param, error.code or rule.code
    if isinstance(error, flow.Refused):
        headers.update(retry_headers(error.retry_after_s))
    if rule.retry is not None:
        headers["x-should-retry"] = "true" if rule.retry else "false"
    return HttpError(rule.status, says, code=code, param=param, headers=headers)


def retry_headers(seconds: float) -> dict[str, str]:
    """retry-after (whole seconds, rounded up) and retry-after-ms. A client honours the second first."""
    if not math.isfinite(seconds):
        return {}
    seconds = max(0.0, seconds)
    return {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1000))}


def printable(text: str) -> str:
    """The text with what UTF-8 cannot say escaped: headers are decoded with surrogates for bytes of no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def raw_response(error: HttpError) -> bytes:
    """A whole HTTP/1.1 answer for a connection on which no request could be read; it announces the close."""
    body = error.body()
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n"
    )
    head += "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
    return head.encode("ascii") + b"\r\n" + body
