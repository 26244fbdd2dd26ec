"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from aiohttp import web

from acu.http.exchange import Exchange, encoded, new_id
from acu.http.generation import REFUSALS
from acu.http.route import Answer, Route
from acu.http.wire.embeddings import EMBEDDING_DECODER, EmbeddingBody, embedding_request
from acu.http.wire.responses import Embedding, EmbeddingList, EmbeddingUsage
from agentflow.events import Usage
from agentflow.service import Service


def routes(service: Service) -> tuple[Route, ...]:
    """The endpoint's entry in the table."""

    async def embeddings(exchange: Exchange) -> web.StreamResponse:
        body = EMBEDDING_DECODER.decode(exchange.take_body())
        exchange.model = body.model
        request = embedding_request(
            body, request_id=new_id("embd-"), caller=exchange.caller, deadline_s=exchange.deadline_s()
        )
        result = await service.embed(request)
        exchange.usage = Usage(prompt_tokens=result.prompt_tokens)
        vectors: Any = result.vectors

        def encode() -> bytes:
            answer = EmbeddingList(
                data=_rows(vectors, body.encoding_format or "float"),
                model=body.model,
                usage=EmbeddingUsage(result.prompt_tokens, result.prompt_tokens),
            )
            return msgspec.json.encode(answer)

        return exchange.json(await encoded(encode, vectors.size))

    return (
        Route(
            method="POST",
            path="/v1/embeddings",
            endpoint=embeddings,
            scope="inference",
            name="createEmbedding",
            summary="Turn texts into vectors.",
            body=EmbeddingBody,
            answers={200: (Answer("The vectors, in the order of the inputs.", body=EmbeddingList),)},
            refusals=REFUSALS,
            rate_limited=True,
        ),
    )


def _rows(vectors: Any, encoding: str) -> list[Embedding]:
    """`vectors` is a float32 numpy array, shape [inputs, dimensions]; base64 is of its little-endian bytes."""
    if encoding == "base64":
        little = vectors.astype("<f4", copy=False)
        return [Embedding(index=i, embedding=base64.b64encode(row.tobytes()).decode()) for i, row in enumerate(little)]
    return [Embedding(index=i, embedding=row) for i, row in enumerate(vectors.tolist())]
