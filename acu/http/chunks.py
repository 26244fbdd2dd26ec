"""From events to the bytes of a stream: one event, one server-sent event.

Every streamed token passes `encode`. What does not change within a stream (id, model, time ...) is encoded once, when the
stream opens; a text delta then costs one JSON string and one concatenation. The rarer events are put together from
structs. Pure: no I/O.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import msgspec

from acu.http.wire.responses import (
    ChatChunkChoice,
    CompletionChoice,
    FunctionDelta,
    MessageDelta,
    ToolActivity,
    ToolCallDelta,
    chat_logprobs,
    completion_logprobs,
    usage_of,
)
from agentflow.events import (
    ChoiceFinished,
    Event,
    TextDelta,
    ToolAsked,
    ToolCallArguments,
    ToolCallOpened,
    ToolEnded,
    ToolStarted,
    Usage,
)

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class _Chunks:
    """The frame that all chunks of a stream have in common."""

    def __init__(self, answer_id: str, kind: str, created: int, model: str, *, include_usage: bool) -> None:
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            _encode(answer_id),
            kind.encode(),
            created,
            _encode(model),
        )
        self._end = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._tail = b"]" + self._end

    def usage(self, usage: Usage) -> bytes:
        """The chunk with the token counts and no choice."""
        return b'%b],"usage":%b}\n\n' % (self._head, _encode(usage_of(usage)))

    def _choice(self, choice: ChatChunkChoice | CompletionChoice) -> bytes:
        return b"%b%b%b" % (self._head, _encode(choice), self._tail)


class Shown(NamedTuple):
    """What a stream has besides the answer: the token counts at its end, and what an agent's tools do."""

    usage: bool = False
    activity: bool = False


class ChatChunks(_Chunks):
    """Chunks of /v1/chat/completions."""

    def __init__(self, answer_id: str, created: int, model: str, n: int, shown: Shown) -> None:
        super().__init__(answer_id, "chat.completion.chunk", created, model, include_usage=shown.usage)
        self._activity = shown.activity
        self._before = [b'%b{"index":%d,"delta":{"content":' % (self._head, i) for i in range(n)]
        self._after = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self._n = n

    def opening(self) -> bytes:
        """The chunks that announce the role, one a choice."""
        delta = MessageDelta(role="assistant", content="")
        return b"".join(self._choice(ChatChunkChoice(i, delta, None, None)) for i in range(self._n))

    def encode(self, event: Event) -> bytes:
        """The event's chunk; nothing for a delta without text or log probabilities."""
        if type(event) is TextDelta:
            if event.logprobs is None:
                if not event.text:
                    return b""
                return b"%b%b%b" % (self._before[event.choice], _encode(event.text), self._after)
            delta = MessageDelta(content=event.text)
            return self._choice(ChatChunkChoice(event.choice, delta, chat_logprobs(event.logprobs), None))
        return self._rare(event)

    def _rare(self, event: Event) -> bytes:
        if isinstance(event, ToolCallOpened):
            function = FunctionDelta(name=event.name, arguments="")
            call = ToolCallDelta(index=event.index, id=event.id, type="function", function=function)
            return self._choice(ChatChunkChoice(event.choice, MessageDelta(tool_calls=[call]), None, None))
        if isinstance(event, ToolCallArguments):
            call = ToolCallDelta(index=event.index, function=FunctionDelta(arguments=event.text))
            return self._choice(ChatChunkChoice(event.choice, MessageDelta(tool_calls=[call]), None, None))
        if isinstance(event, ChoiceFinished):
            return self._choice(ChatChunkChoice(event.choice, MessageDelta(), None, event.reason))
        assert isinstance(event, ToolAsked | ToolStarted | ToolEnded)
        return self._tool(event) if self._activity else b""

    def _tool(self, event: ToolAsked | ToolStarted | ToolEnded) -> bytes:
        """A chunk without a choice, whose field `acu` tells of a tool."""
        told: ToolActivity
        if isinstance(event, ToolAsked):
            told = ToolActivity(
                type="tool.asked",
                call_id=event.id,
                name=event.name,
                arguments=event.arguments,
                run_id=event.run_id,
            )
        elif isinstance(event, ToolStarted):
            told = ToolActivity(type="tool.started", call_id=event.id, name=event.name, arguments=event.arguments)
        else:
            told = ToolActivity(
                type="tool.ended",
                call_id=event.id,
                name=event.name,
                output=event.text,
                is_error=event.is_error,
                handle=event.handle,
            )
        return b'%b],"acu":%b%b' % (self._head, _encode(told), self._end)


class CompletionChunks(_Chunks):
    """Chunks of /v1/completions. Remembers each choice's length, for the offsets of its log probabilities."""

    def __init__(self, answer_id: str, created: int, model: str, *, include_usage: bool) -> None:
        super().__init__(answer_id, "text_completion", created, model, include_usage=include_usage)
        self._after = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._offsets: defaultdict[int, int] = defaultdict(int)

    def opening(self) -> bytes:
        """Completions announce nothing."""
        return b""

    def encode(self, event: Event) -> bytes:
        """The event's chunk; nothing for a delta without text or log probabilities."""
        if type(event) is TextDelta:
            if event.logprobs is None:
                if not event.text:
                    return b""
                return b'%b{"index":%d,"text":%b%b' % (self._head, event.choice, _encode(event.text), self._after)
            offset = self._offsets[event.choice]
            self._offsets[event.choice] += sum(len(token.token) for token in event.logprobs)
            logprobs = completion_logprobs(event.logprobs, offset)
            return self._choice(CompletionChoice(event.choice, event.text, logprobs, None))
        if isinstance(event, ChoiceFinished):
            return self._choice(CompletionChoice(event.choice, "", None, event.reason))
        return b""  # a completion has no tools
