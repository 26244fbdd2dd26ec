"""Generation: what the endpoints that generate text have in common, from the decoded body to the last byte.

`generating` makes the endpoint of a `Kind`: decode, call the service, stream the events or gather them into one answer,
and keep what was counted, however it ends. A kind says what differs: the types, the door of the service, and the form
of the answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from aiohttp import web

from acu.http.exchange import Exchange, encoded, new_id
from acu.http.route import Endpoint
from acu.http.sse import Chunks, stream_events
from acu.http.wire.decode import BodyDecoder
from acu.http.wire.sampling import Envelope, GenerationBody
from agentflow.events import Event, Usage
from agentflow.messages import ChatRequest, CompletionRequest
from agentflow.service import EventStream, Service

REFUSALS = (400, 404, 408, 413, 415, 417, 429, 503, 504)

BodyT = TypeVar("BodyT", bound=GenerationBody)
RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)


class Form(Protocol):
    """The answer to one request, in the form of its endpoint. `size`: how many values were taken in."""

    size: int

    def chunks(self, created: int) -> Chunks:
        """The answer as a stream; `created` in Unix seconds."""
        ...

    def take(self, event: Event) -> None:
        """Add an event to the answer as a whole."""
        ...

    def encode(self, created: int, usage: Usage) -> bytes:
        """The whole of what was taken, as JSON."""
        ...


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[BodyT, RequestT]):
    """What is particular to an endpoint. `form` gets the answer's id, the body and the request."""

    id_prefix: str
    decoder: BodyDecoder[BodyT]
    request: Callable[[BodyT, Envelope], RequestT]
    call: Callable[[RequestT], Awaitable[EventStream]]
    form: Callable[[str, BodyT, RequestT], Form]


def generating(kind: Kind[BodyT, RequestT], service: Service) -> Endpoint:
    """The endpoint of `kind`."""

    async def generate(exchange: Exchange) -> web.StreamResponse:
        body = kind.decoder.decode(exchange.take_body())
        exchange.model = body.model
        exchange.streamed = bool(body.stream)
        answer_id = new_id(kind.id_prefix)
        defaults = service.sampling_defaults(body.model)
        request = kind.request(body, Envelope(answer_id, exchange.caller, exchange.deadline_s(), defaults))
        form = kind.form(answer_id, body, request)
        async with aclosing(await kind.call(request)) as events:
            exchange.run_id = events.run_id
            created = int(time.time())
            try:
                if body.stream:
                    return await stream_events(exchange, events, form.chunks(created), include_usage=body.include_usage)
                async for event in events:
                    form.take(event)
                answer = await encoded(lambda: form.encode(created, events.usage), form.size)
                return exchange.json(answer)
            finally:
                exchange.settle(events)

    return generate
