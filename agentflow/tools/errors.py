"""What goes wrong with a tool. Each is a sentence that the model may read, and act on.

    ToolError
    ├── InvalidTool            a tool cannot be offered as it is: its name, its schema or its limits are wrong (at the start)
    ├── UnknownTool            no tool of that name is offered
    ├── InvalidArguments       the arguments are no JSON, or not what the tool's schema asks for
    ├── UnknownHandle          an argument names content that is not, or no longer, kept
    ├── ToolFailed             the tool said no, or raised; `again` says whether a second try could help
    ├── ToolTimeout            it took longer than it may
    ├── ToolDied               its process, or its server, ended in mid-call
    └── ToolUnavailable        it cannot be called now: not started, gone, or all its places are taken for too long

None of them ends a run (InvalidTool comes before there is one): a call that failed is told to the model as its result.
"""

from __future__ import annotations

from agentflow.errors import AgentFlowError


class ToolError(AgentFlowError):
    """Root of the tree. `again`: whether the same call could succeed a moment later."""

    again = False


class InvalidTool(ToolError):
    """A tool cannot be offered: two have its name, or its schema is none. For whoever configures it; names the tool."""


class UnknownTool(ToolError):
    """No tool of that name is offered."""


class InvalidArguments(ToolError):
    """The arguments are no JSON object, or not what the tool's schema asks for. The message names the field."""


class UnknownHandle(ToolError):
    """An argument is a handle of content that is not kept (any more), or is another tenant's."""


class ToolFailed(ToolError):
    """The tool refused or raised."""

    def __init__(self, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


class ToolTimeout(ToolError):
    """The tool took longer than its `timeout_s`, and was ended."""

    again = True


class ToolDied(ToolError):
    """The tool's process or server ended in mid-call."""

    again = True


class ToolUnavailable(ToolError):
    """The tool cannot be called now."""

    again = True
