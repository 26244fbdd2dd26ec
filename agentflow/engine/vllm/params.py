"""From ACU's values to vLLM's and back: Sampling to SamplingParams, and vLLM's refusals to InvalidRequest."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

from agentflow.engine.protocol import GenerateRequest
from agentflow.errors import InvalidGrammar, InvalidRequest
from agentflow.messages import Structured

_SCHEMA_OPTIONS = {"whitespace_flexible": False, "coerce_one_of": True}
"""llguidance's, in place of any that the caller put into the schema: compact JSON, which cannot run away in blanks, and
`oneOf` taken as `anyOf`, which is what it can do."""

_ABOUT_GRAMMAR = re.compile("grammar|schema|regex|structured|choice", re.IGNORECASE)


def sampling_params(request: GenerateRequest) -> Any:
    """vLLM's parameters of a sequence. Raises InvalidRequest in the caller's terms."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = request.sampling
    with refusals_translated(request):
        return SamplingParams(
            max_tokens=request.max_tokens,
            min_tokens=sampling.min_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
            stop=list(sampling.stop),
            stop_token_ids=list(sampling.stop_token_ids),
            include_stop_str_in_output=sampling.include_stop_str_in_output,
            ignore_eos=sampling.ignore_eos,
            skip_special_tokens=sampling.skip_special_tokens,
            logit_bias=_logit_bias(sampling.logit_bias),
            logprobs=sampling.logprobs,
            structured_outputs=_structured(sampling.structured) if sampling.structured else None,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,  # nobody else holds it
        )


@contextlib.contextmanager
def refusals_translated(request: GenerateRequest) -> Iterator[None]:
    """Within, what vLLM's validation refuses becomes InvalidRequest, in the caller's terms."""
    from vllm.exceptions import VLLMClientError

    try:
        yield
    except (VLLMClientError, ValueError) as error:
        structured = request.sampling.structured
        message = str(error.args[0] if error.args else error)
        if structured is not None and _ABOUT_GRAMMAR.search(message):
            raise InvalidGrammar(message.partition("\n")[0], param=structured.param) from error
        raise InvalidRequest(message, param=getattr(error, "parameter", None)) from error


def _logit_bias(bias: dict[int, float] | None) -> dict[int, float] | None:
    return {token: min(100.0, max(-100.0, value)) for token, value in bias.items()} if bias else None


def _structured(structured: Structured) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    if structured.kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    value = structured.value
    if structured.kind == "json":
        schema = json.loads(value) if isinstance(value, str) else value
        value = json.dumps(schema | {"x-guidance": _SCHEMA_OPTIONS} if isinstance(schema, dict) else schema)
    return StructuredOutputsParams(**{structured.kind: list(value) if structured.kind == "choice" else value})
