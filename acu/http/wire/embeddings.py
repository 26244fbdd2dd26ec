"""The body of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from acu.http.wire.completions import Sequence, sequences
from acu.http.wire.decode import BodyDecoder, clean_text
from acu.http.wire.sampling import Short
from agentflow.messages import Caller, EmbeddingRequest

MAX_INPUTS = 2048


class EmbeddingBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts, or token ids, to turn into vectors. `input` has the forms of a completion's `prompt`."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: Sequence
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    user: Short | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None


EMBEDDING_DECODER = BodyDecoder(EmbeddingBody)


def embedding_request(
    body: EmbeddingBody, *, request_id: str, caller: Caller, deadline_s: float | None
) -> EmbeddingRequest:
    """The orchestrator's value of `body`. Raises BadRequest for what the types could not say."""
    return EmbeddingRequest(
        id=request_id,
        model=clean_text(body.model, "model"),
        inputs=sequences(body.input, "input", MAX_INPUTS),
        dimensions=body.dimensions,
        priority=body.priority or 0,
        deadline_s=deadline_s,
        caller=caller,
    )
