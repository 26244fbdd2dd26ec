"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from contextlib import aclosing

import msgspec
from aiohttp import web

from acu.http.chunks import ChatChunks
from acu.http.exchange import Exchange, encoded, new_id
from acu.http.route import Answer, Route
from acu.http.settings import HttpSettings
from acu.http.sse import stream_events
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
from agentflow.events import ChoiceFinished, FinishReason, TextDelta, TokenLogprob, ToolCallArguments, ToolCallOpened
from agentflow.service import RunStream, Service

GENERATION_REFUSALS = (400, 404, 408, 413, 415, 417, 429, 503, 504)


def routes(service: Service, settings: HttpSettings) -> tuple[Route, ...]:
    """The endpoint's entry in the table."""

    async def chat_completions(exchange: Exchange) -> web.StreamResponse:
        body = CHAT_DECODER.decode(exchange.take_body())
        exchange.model = body.model
        exchange.streamed = bool(body.stream)
        answer_id = new_id("chatcmpl-")
        request = chat_request(body, request_id=answer_id, caller=exchange.caller, deadline_s=exchange.deadline_s())
        async with aclosing(await service.chat(request)) as events:
            created = int(time.time())
            try:
                if body.stream:
                    chunks = ChatChunks(answer_id, created, body.model, request.n, include_usage=body.include_usage)
                    return await stream_events(
                        exchange,
                        events,
                        chunks,
                        include_usage=body.include_usage,
                        slow_reader_s=settings.slow_reader_s,
                    )
                answers = await _gather(events, body.n or 1)
                usage = usage_of(events.usage)

                def encode() -> bytes:
                    choices = [answer.choice(i, with_logprobs=bool(body.logprobs)) for i, answer in enumerate(answers)]
                    answer = ChatCompletion(
                        id=answer_id, created=created, model=body.model, choices=choices, usage=usage
                    )
                    return msgspec.json.encode(answer)

                return exchange.json(await encoded(encode, sum(answer.size for answer in answers)))
            finally:
                exchange.settle(events)

    return (
        Route(
            method="POST",
            path="/v1/chat/completions",
            endpoint=chat_completions,
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
            refusals=GENERATION_REFUSALS,
        ),
    )


class _Answer:
    """One choice while it is put together."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.calls: list[tuple[str, str, list[str]]] = []
        self.reason: FinishReason = "stop"
        self.size = 0  # how many pieces and alternatives it is made of

    def choice(self, index: int, *, with_logprobs: bool) -> ChatChoice:
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


async def _gather(events: RunStream, count: int) -> list[_Answer]:
    answers = [_Answer() for _ in range(count)]
    async for event in events:
        answer = answers[event.choice]
        match event:
            case TextDelta(text=text, logprobs=logprobs):
                answer.texts.append(text)
                answer.size += 1
                if logprobs:
                    answer.logprobs.extend(logprobs)
                    answer.size += len(logprobs) * (1 + len(logprobs[0].top))
            case ToolCallOpened(id=call_id, name=name):
                answer.calls.append((call_id, name, []))
            case ToolCallArguments(index=index, text=text):
                answer.calls[index][2].append(text)
            case ChoiceFinished(reason=reason):
                answer.reason = reason
    return answers
