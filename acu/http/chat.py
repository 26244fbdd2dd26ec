"""POST /v1/chat/completions."""

from __future__ import annotations

import msgspec

from acu.http.chunks import ChatChunks, Shown
from acu.http.generation import REFUSALS, Kind, generating
from acu.http.route import Answer, Route
from acu.http.wire.chat import CHAT_DECODER, ChatBody, chat_request
from acu.http.wire.responses import (
    AnsweredFunction,
    AnsweredToolCall,
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    chat_logprobs,
    usage_of,
)
from agentflow.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallOpened,
    Usage,
)
from agentflow.messages import ChatRequest
from agentflow.service import Service


def routes(service: Service) -> tuple[Route, ...]:
    """The endpoint's entry in the table."""
    kind = Kind(id_prefix="chatcmpl-", decoder=CHAT_DECODER, request=chat_request, call=service.chat, form=ChatForm)
    return (
        Route(
            method="POST",
            path="/v1/chat/completions",
            endpoint=generating(kind, service),
            scope="inference",
            name="createChatCompletion",
            summary="Continue a conversation.",
            body=ChatBody,
            answers={
                200: (
                    Answer("The answer.", body=ChatCompletion),
                    Answer("With `stream`: its pieces as they come.", "text/event-stream", ChatCompletionChunk),
                )
            },
            refusals=REFUSALS,
            rate_limited=True,
        ),
    )


class ChatForm:
    """The answer to a conversation (see generation.Form)."""

    def __init__(self, answer_id: str, body: ChatBody, request: ChatRequest) -> None:
        self.size = 0
        self._id = answer_id
        self._body = body
        self._choices = [_Choice() for _ in range(request.n)]

    def chunks(self, created: int) -> ChatChunks:
        """The answer as a stream."""
        body = self._body
        options = body.stream_options
        shown = Shown(usage=body.include_usage, activity=options is not None and bool(options.include_acu_events))
        return ChatChunks(self._id, created, body.model, len(self._choices), shown)

    def take(self, event: Event) -> None:
        """Add an event to its choice."""
        self.size += 1
        choice = self._choices[event.choice]
        match event:
            case TextDelta(text=text, logprobs=logprobs):
                choice.texts.append(text)
                if logprobs:
                    choice.logprobs.extend(logprobs)
                    self.size += len(logprobs) * (1 + len(logprobs[0].top))
            case ToolCallOpened(id=call_id, name=name):
                choice.calls.append((call_id, name, []))
            case ToolCallArguments(index=index, text=text):
                choice.calls[index][2].append(text)
            case ChoiceFinished(reason=reason):
                choice.reason = reason

    def encode(self, created: int, usage: Usage) -> bytes:
        """All choices, as JSON."""
        with_logprobs = bool(self._body.logprobs)
        answer = ChatCompletion(
            id=self._id,
            created=created,
            model=self._body.model,
            choices=[choice.whole(i, with_logprobs=with_logprobs) for i, choice in enumerate(self._choices)],
            usage=usage_of(usage),
        )
        return msgspec.json.encode(answer)


class _Choice:
    """One choice while it is put together."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.calls: list[tuple[str, str, list[str]]] = []
        self.reason: FinishReason = "stop"

    def whole(self, index: int, *, with_logprobs: bool) -> ChatChoice:
        """The choice as it goes out. Content is null where there are only calls."""
        content = "".join(self.texts)
        calls = [
            AnsweredToolCall(id=call_id, function=AnsweredFunction(name, "".join(parts)))
            for call_id, name, parts in self.calls
        ]
        message = AnswerMessage(content=None if calls and not content else content)
        if calls:
            message = msgspec.structs.replace(message, tool_calls=calls)
        logprobs = chat_logprobs(tuple(self.logprobs)) if with_logprobs else None
        return ChatChoice(index, message, logprobs, self.reason)
