"""What chat and completion bodies share: how to choose tokens, when to stop, and the hints that change nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from acu.http.errors import BadRequest
from acu.http.wire.decode import clean_json, clean_text
from agentflow.messages import Caller, Sampling, Structured
from agentflow.sampling import plain_top_k

Unsupported = Annotated[None, Meta(description="Not supported: only null is accepted.")]
INT64 = 2**63
StructuredKind = Literal["json", "json_object", "regex", "grammar", "choice"]
MAX_TOKEN_ID = 2**31  # no vocabulary is as large; the served model's own bound is checked where it is known
Token = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID - 1)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
Short = Annotated[str, Meta(max_length=512)]

# OpenAI's parameters that cannot change an answer here: checked for their form, accepted, and without effect.
HINTS = (
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "verbosity",
)


class Envelope(Struct, frozen=True):
    """What a request has beside its body. `deadline_s` as in agentflow.messages; `defaults` for what the body leaves open."""

    id: str
    caller: Caller
    deadline_s: float | None
    defaults: Sampling


class StreamOptions(Struct, forbid_unknown_fields=True):
    """Options of a stream. `include_obfuscation` is a hint; `include_acu_events` shows what an agent's tools do."""

    include_usage: bool | None = None
    include_acu_events: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """vLLM's form for the output: exactly one of these. `json` is a schema, as an object or as text."""

    json: dict[str, Any] | Annotated[str, Meta(max_length=1_000_000)] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=1024)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GenerationBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of a body that asks for text, whatever its endpoint."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-INT64, le=INT64 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stop_token_ids: Annotated[list[Token], Meta(max_length=64)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None

    store: (
        Annotated[bool, Meta(description="false: nothing of an agent's run is kept. No model's own answer is.")] | None
    ) = None
    user: Short | None = None
    metadata: Annotated[dict[Annotated[str, Meta(max_length=64)], Short], Meta(max_length=16)] | None = None
    service_tier: Short | None = None
    safety_identifier: Short | None = None
    prompt_cache_key: Short | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: Short | None = None
    reasoning_effort: Short | None = None
    verbosity: Short | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        """Refuse options of a stream where there is none."""
        if self.stream_options is not None and not self.stream:
            raise BadRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")

    def sampling(
        self, defaults: Sampling, *, max_tokens: int | None, logprobs: int | None, structured: Structured | None
    ) -> Sampling:
        """The orchestrator's value of all of this: `defaults` with what the request gives. A null gives nothing."""
        min_tokens = self.min_tokens or 0
        if max_tokens is not None and min_tokens > max_tokens:
            raise BadRequest(
                f"'min_tokens' ({min_tokens}) is above the {max_tokens} tokens that the answer may have.",
                param="min_tokens",
            )
        return replace(
            defaults,
            **self._chosen(),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            seed=self.seed,
            stop=self._stop(),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
            ignore_eos=bool(self.ignore_eos),
            skip_special_tokens=self.skip_special_tokens is not False,
            logit_bias=self._logit_bias(),
            logprobs=logprobs,
            structured=structured,
        )

    def _chosen(self) -> dict[str, float]:
        """Those of the fields that a model may have defaults for that the request gives."""
        given: dict[str, float | None] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else plain_top_k(self.top_k),
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
        }
        return {name: value for name, value in given.items() if value is not None}

    def structured_form(self) -> Structured | None:
        """The one form that `structured_outputs` asks for."""
        wanted = self.structured_outputs
        if wanted is None:
            return None
        forms: dict[StructuredKind, Any] = {
            "json": wanted.json,
            "regex": wanted.regex,
            "choice": wanted.choice,
            "grammar": wanted.grammar,
        }
        given: list[tuple[StructuredKind, Any]] = [(kind, value) for kind, value in forms.items() if value is not None]
        if wanted.json_object:
            given.append(("json_object", None))
        if len(given) != 1:
            raise BadRequest(
                "'structured_outputs' needs exactly one of 'json', 'regex', 'choice', 'grammar' and 'json_object'.",
                param="structured_outputs",
            )
        kind, value = given[0]
        param = f"structured_outputs.{kind}"
        clean_json(value, param)
        return Structured(kind=kind, value=value, param=param)

    def _stop(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        if isinstance(self.stop, str):
            return (clean_text(self.stop, "stop"),)
        return tuple(clean_text(text, f"stop[{i}]") for i, text in enumerate(self.stop))

    def _logit_bias(self) -> dict[int, float] | None:
        if not self.logit_bias:
            return None
        bias: dict[int, float] = {}
        for key, value in self.logit_bias.items():
            if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < MAX_TOKEN_ID):
                raise BadRequest(
                    f"Invalid key in 'logit_bias': {key[:32]!r} is not the id of a token.", param="logit_bias"
                )
            bias[int(key)] = value
        return bias
