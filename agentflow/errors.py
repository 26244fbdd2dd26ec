"""Every error that leaves the orchestrator, drawn as one tree.

    AgentFlowError
    ├── InvalidRequest              the caller must change the request
    │   ├── ContextLengthExceeded
    │   ├── UnknownModel
    │   └── InvalidGrammar          a schema, regex or grammar that is too large, too slow or wrong
    ├── Refused                     the request was fine; the box will not take it now
    │   ├── QueueFull
    │   ├── LongPromptRefused       device memory runs short; short prompts pass
    │   ├── DeadlineExceeded
    │   ├── Draining
    │   └── EngineUnavailable       no engine of the model can take work (loading, restarting, given up)
    ├── EngineFailure               work that had begun was lost
    │   ├── EngineDied
    │   ├── EngineStalled
    │   └── SequenceFailed          the engine lives, and gave up this one sequence
    └── EngineStartFailed           an engine could not be brought up; says why and what to do

Foreign exceptions (vLLM's, tokenizers', jinja's) are translated where they enter, with `raise ... from`.
"""

from __future__ import annotations


class AgentFlowError(Exception):
    """Root of the tree. `str(error)` is a sentence that may be shown to the caller."""


class InvalidRequest(AgentFlowError):
    """The request cannot be served as it is.

    `param` is the path of the offending field in the caller's terms (`messages[0].content`), or None;
    `code` a stable machine-readable word, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or the prompt with the tokens asked for, is longer than the model's context."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class UnknownModel(InvalidRequest):
    """No model of that name is served."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class InvalidGrammar(InvalidRequest):
    """A schema, regular expression or grammar that is over its bounds or does not compile."""

    def __init__(self, message: str, *, param: str | None = "response_format") -> None:
        super().__init__(message, param=param, code="invalid_grammar")


class Refused(AgentFlowError):
    """The box does not take the request now. `retry_after_s` (seconds) says when to try again."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(Refused):
    """The queue is at its bound, or its expected wait passes the request's deadline."""


class LongPromptRefused(Refused):
    """The device's memory runs short, and the prompt is longer than what is taken meanwhile."""


class DeadlineExceeded(Refused):
    """The request's deadline passed before the engine could take it."""


class Draining(Refused):
    """The daemon is shutting down and takes no new work."""


class EngineUnavailable(Refused):
    """No engine of the model can take work: it is loading, restarting, or has been given up."""


class EngineFailure(AgentFlowError):
    """The engine failed while the run was on it; tokens already sent stay valid."""

    def again(self) -> EngineFailure:
        """A copy to raise, with the same cause: whoever raises an exception adds its own traceback to it."""
        copy = type(self)(*self.args)
        copy.__cause__ = self.__cause__
        return copy


class EngineDied(EngineFailure):
    """The engine's process ended."""


class EngineStalled(EngineFailure):
    """The engine had work and made no token for `stall_timeout_s`; it was killed."""


class SequenceFailed(EngineFailure):
    """The engine gave this sequence up (its own error, or an abort that nobody here asked for), and goes on."""


class EngineStartFailed(AgentFlowError):
    """An engine did not come up. The message says why and what to do about it."""
