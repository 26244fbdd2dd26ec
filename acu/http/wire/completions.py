"""The body of POST /v1/completions."""

from __future__ import annotations

from array import array
from typing import Annotated, cast

from msgspec import Meta

from acu.http.errors import BadRequest
from acu.http.wire.decode import BodyDecoder, clean_text
from acu.http.wire.sampling import Envelope, GenerationBody, Token, Unsupported
from agentflow.messages import CompletionRequest

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 128

Sequence = str | list[str | Token | list[Token]]


class CompletionBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    """Texts, or token ids, to continue. `prompt` is a string, strings, token ids, or lists of token ids."""

    prompt: Sequence
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    suffix: Unsupported = None


COMPLETION_DECODER = BodyDecoder(CompletionBody)


def completion_request(body: CompletionBody, envelope: Envelope) -> CompletionRequest:
    """The orchestrator's value of `body`. Raises BadRequest for what the types could not say."""
    body.check_stream_options()
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadRequest("Unsupported parameter: 'best_of'. Use 'n'.", param="best_of", code="unsupported_parameter")
    return CompletionRequest(
        id=envelope.id,
        model=clean_text(body.model, "model"),
        prompts=sequences(body.prompt, "prompt", MAX_PROMPTS),
        echo=bool(body.echo),
        sampling=body.sampling(
            envelope.defaults,
            max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
            logprobs=body.logprobs,
            structured=body.structured_form(),
        ),
        n=body.n or 1,
        priority=body.priority or 0,
        deadline_s=envelope.deadline_s,
        caller=envelope.caller,
    )


def sequences(value: Sequence, param: str, limit: int) -> tuple[str | tuple[int, ...], ...]:
    """OpenAI's four forms of input as a tuple of texts or of token ids. At most `limit`, none of them empty."""
    if isinstance(value, str):
        return (_text(value, param),)
    if not value:
        raise BadRequest(f"Invalid value for '{param}': the array is empty.", param=param)
    first = value[0]
    if isinstance(first, int):
        ids = cast("list[int]", value)
        try:
            array("I", ids)  # takes numbers alone; there may be half a million, too many for a loop of Python's
        except TypeError:
            raise _mixed(param) from None
        return (tuple(ids),)
    if len(value) > limit:
        raise BadRequest(f"Invalid value for '{param}': {len(value)} inputs; at most {limit} fit.", param=param)
    if isinstance(first, str):
        texts = [_text(item, f"{param}[{i}]") for i, item in enumerate(value) if isinstance(item, str)]
        if len(texts) != len(value):
            raise _mixed(param)
        return tuple(texts)
    lists = [tuple(item) for item in value if isinstance(item, list)]
    if len(lists) != len(value):
        raise _mixed(param)
    for i, item in enumerate(lists):
        if not item:
            raise BadRequest(f"Invalid value for '{param}[{i}]': the array is empty.", param=f"{param}[{i}]")
    return tuple(lists)


def _text(text: str, param: str) -> str:
    if not text:
        raise BadRequest(f"Invalid value for '{param}': the text is empty.", param=param)
    return clean_text(text, param)


def _mixed(param: str) -> BadRequest:
    return BadRequest(
        f"Invalid type for '{param}': strings, token ids and arrays of token ids cannot be mixed.",
        param=param,
        code="invalid_type",
    )
