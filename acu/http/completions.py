"""POST /v1/completions."""

from __future__ import annotations

import time
from contextlib import aclosing

import msgspec
from aiohttp import web

from acu.http.chat import GENERATION_REFUSALS
from acu.http.chunks import CompletionChunks
from acu.http.exchange import Exchange, encoded, new_id
from acu.http.route import Answer, Route
from acu.http.settings import HttpSettings
from acu.http.sse import stream_events
from acu.http.wire.completions import COMPLETION_DECODER, CompletionBody, completion_request
from acu.http.wire.responses import Completion, CompletionChoice, completion_logprobs, usage_of
from agentflow.events import ChoiceFinished, FinishReason, TextDelta, TokenLogprob
from agentflow.service import RunStream, Service


def routes(service: Service, settings: HttpSettings) -> tuple[Route, ...]:
    """The endpoint's entry in the table."""

    async def completions(exchange: Exchange) -> web.StreamResponse:
        body = COMPLETION_DECODER.decode(exchange.take_body())
        exchange.model = body.model
        exchange.streamed = bool(body.stream)
        answer_id = new_id("cmpl-")
        request = completion_request(
            body, request_id=answer_id, caller=exchange.caller, deadline_s=exchange.deadline_s()
        )
        async with aclosing(await service.complete(request)) as events:
            created = int(time.time())
            try:
                if body.stream:
                    chunks = CompletionChunks(answer_id, created, body.model, include_usage=body.include_usage)
                    return await stream_events(
                        exchange,
                        events,
                        chunks,
                        include_usage=body.include_usage,
                        slow_reader_s=settings.slow_reader_s,
                    )
                texts, tokens, reasons = await _gather(events, len(request.prompts) * request.n)
                usage = usage_of(events.usage)

                def encode() -> bytes:
                    choices = [
                        CompletionChoice(
                            i,
                            "".join(texts[i]),
                            completion_logprobs(tuple(tokens[i]), 0) if body.logprobs is not None else None,
                            reason,
                        )
                        for i, reason in enumerate(reasons)
                    ]
                    answer = Completion(id=answer_id, created=created, model=body.model, choices=choices, usage=usage)
                    return msgspec.json.encode(answer)

                size = sum(map(len, texts)) + sum(map(len, tokens)) * (1 + (body.logprobs or 0))
                return exchange.json(await encoded(encode, size))
            finally:
                exchange.settle(events)

    return (
        Route(
            method="POST",
            path="/v1/completions",
            endpoint=completions,
            scope="inference",
            name="createCompletion",
            summary="Continue texts, with no chat template.",
            body=CompletionBody,
            answers={
                200: (
                    Answer("The continuations.", body=Completion),
                    Answer("With `stream`: their pieces as they come.", "text/event-stream", Completion),
                )
            },
            refusals=GENERATION_REFUSALS,
        ),
    )


async def _gather(
    events: RunStream, count: int
) -> tuple[list[list[str]], list[list[TokenLogprob]], list[FinishReason]]:
    """Texts, log probabilities and the reason of the end, for each choice."""
    texts: list[list[str]] = [[] for _ in range(count)]
    tokens: list[list[TokenLogprob]] = [[] for _ in range(count)]
    reasons: list[FinishReason] = ["stop"] * count
    async for event in events:
        if isinstance(event, TextDelta):
            texts[event.choice].append(event.text)
            tokens[event.choice].extend(event.logprobs or ())
        elif isinstance(event, ChoiceFinished):
            reasons[event.choice] = event.reason
    return texts, tokens, reasons
