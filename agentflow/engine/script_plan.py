"""The whole output of a scripted sequence, worked out beforehand, and its cutting into deltas. Pure.

Because the answer is known from the start, stop strings, lengths and the end of text are decided before the first
token; what is left for each delta is a slice. A token is a byte; a delta's text never holds a part of a character.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from typing import Any
from zlib import crc32

from msgspec import Struct

from agentflow.engine.protocol import Delta
from agentflow.engine.sample import Unsatisfiable, regex_sample, schema_sample
from agentflow.engine.script import Rule, Script
from agentflow.errors import InvalidGrammar
from agentflow.events import TokenLogprob
from agentflow.messages import Sampling, Structured
from agentflow.tokenizer import ByteTokenizer

_USER_TURN = "<|user|>\n"
_ASSISTANT_TURN = b"<|assistant|>\n"
_EOS = ByteTokenizer.EOS
_TOKENIZER = ByteTokenizer()


class Plan(Struct, frozen=True):
    """A sequence's future: its `data` (one token a byte), then an end-of-text token if `eos`.

    The first `visible` characters of the text are shown; the rest belongs to what stopped the sequence.
    """

    data: bytes
    eos: bool
    visible: int
    finish_reason: str
    stop_reason: str | int | None = None


def last_user_text(prompt: str) -> str:
    """The last user turn of a prompt in ByteTokenizer's chat template; the whole prompt where there is none."""
    start = prompt.rfind(_USER_TURN)
    if start < 0:
        return prompt
    return prompt[start + len(_USER_TURN) :].partition(ByteTokenizer.EOS_TEXT)[0]


def begun_answer(prompt: bytes) -> bytes:
    """What the prompt has of the answer already: what stands behind the last beginning of an assistant's turn."""
    _, found, begun = prompt.rpartition(_ASSISTANT_TURN)
    return begun if found else b""


def plan(script: Script, rule: Rule | None, prompt: bytes, sampling: Sampling, limit: int) -> Plan:
    """Decide everything that a sequence will say, in at most `limit` (1 or more) tokens. Raises InvalidGrammar.

    An answer that the prompt has begun already is continued, as a model would.
    """
    answer = _answer(script, rule, prompt, sampling)
    data = answer.encode(errors="replace")
    data = data.removeprefix(begun_answer(prompt))
    goal = limit if sampling.ignore_eos else min(sampling.min_tokens, limit)
    if len(data) < goal:
        filler = data + b" " if data else b"-"
        data = (filler * (goal // len(filler) + 1))[:goal]
    stopped = min(
        (stop for stop in (_stop_token(data, sampling), _stop_string(data, sampling)) if stop is not None),
        key=lambda stop: len(stop.data),
        default=None,
    )
    if stopped is not None and len(stopped.data) <= limit:
        return stopped
    if len(data) >= limit or sampling.ignore_eos:
        return Plan(data[:limit], eos=False, visible=limit, finish_reason="length")
    return Plan(data, eos=True, visible=len(data), finish_reason="stop")


class Cutter:
    """Hands out a plan in deltas. `emitted` counts the tokens that were handed out."""

    __slots__ = ("_ascii", "_data", "_decode", "_logprobs", "_plan", "_shown", "_total", "_visible", "emitted")

    def __init__(self, plan: Plan, sampling: Sampling) -> None:
        self._plan = plan
        self._data = plan.data
        self._total = len(plan.data) + plan.eos
        self._visible = plan.visible
        # The text of ASCII needs no decoder: character k is byte k.
        self._ascii = plan.data.decode() if plan.data.isascii() else None
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._shown = 0
        self._logprobs = sampling.logprobs
        self.emitted = 0

    def cut(self, upto: int, cached_tokens: int) -> Delta:
        """Tokens `emitted` to `upto`, or to the plan's end; the last delta carries the reason of the end."""
        start = self.emitted
        if upto >= self._total:
            return self._cut_last(start, cached_tokens)
        self.emitted = upto
        ids = self._data[start:upto]
        whole = self._ascii
        text = self._text(ids, final=False) if whole is None else whole[start : min(upto, self._visible)]
        logprobs = None if self._logprobs is None else self._fake_logprobs(ids)
        return Delta(text, ids, None, None, logprobs, cached_tokens)  # bytes are a sequence of ids

    def _cut_last(self, start: int, cached_tokens: int) -> Delta:
        plan = self._plan
        self.emitted = self._total
        ids = [*plan.data[start:], *([_EOS] if plan.eos else [])]
        text = self._text(plan.data[start:], final=True) if self._ascii is None else self._ascii[start : plan.visible]
        return Delta(
            text=text,
            token_ids=ids,
            finish_reason=plan.finish_reason,
            stop_reason=plan.stop_reason,
            logprobs=None if self._logprobs is None else self._fake_logprobs(ids),
            cached_tokens=cached_tokens,
        )

    def _text(self, data: bytes, *, final: bool) -> str:
        """The characters that `data` completes, as far as they are to be shown."""
        text = self._decode(data, final)[: max(self._visible - self._shown, 0)]
        self._shown += len(text)
        return text

    def _fake_logprobs(self, ids: Iterable[int]) -> tuple[TokenLogprob, ...]:
        return tuple(fake_logprob(token_id, self._logprobs or 0) for token_id in ids)


def fake_logprob(token_id: int, alternatives: int) -> TokenLogprob:
    """A log-probability that depends on nothing but the token; each alternative has half of the one before it."""
    logprob = -0.01 * (token_id % 10 + 1)

    def entry(rank: int) -> TokenLogprob:
        other = (token_id + rank) % ByteTokenizer.vocab_size
        return TokenLogprob(_TOKENIZER.token_text(other), other, logprob - 0.693 * rank)

    return TokenLogprob(
        _TOKENIZER.token_text(token_id), token_id, logprob, tuple(entry(rank) for rank in range(alternatives))
    )


def _answer(script: Script, rule: Rule | None, prompt: bytes, sampling: Sampling) -> str:
    candidates: tuple[str, ...] = (script.answer,)
    if rule is not None and (rule.answers or rule.answer is not None):
        candidates = rule.answers or (rule.answer or "",)
    pick = crc32(prompt) if sampling.seed is None else sampling.seed
    answer = candidates[pick % len(candidates)]
    if sampling.structured is not None:
        return _structured(sampling.structured, answer)
    if "{user}" in answer:
        answer = answer.replace("{user}", last_user_text(prompt.decode(errors="replace")))
    return answer


def _structured(structured: Structured, answer: str) -> str:
    """The script's answer where it has the form that is asked for, else the smallest text that has it."""
    try:
        match structured.kind:
            case "choice":
                return answer if answer in structured.value else str(structured.value[0])
            case "regex":
                # The request's expression is never matched against anything: that could take for ever.
                return regex_sample(structured.value)
            case "json_object":
                return answer if _is_instance({"type": "object"}, answer) else "{}"
            case "json":
                if _is_instance(structured.value, answer):
                    return answer
                return json.dumps(schema_sample(structured.value), ensure_ascii=False)
    except Unsatisfiable as error:
        raise InvalidGrammar(
            f"the scripted engine cannot answer in this form: {error}", param=structured.param
        ) from error
    raise InvalidGrammar(f"the scripted engine follows no {structured.kind}", param=structured.param)


def _is_instance(schema: Any, text: str) -> bool:
    # Here, because it takes 0.1 s to import and few answers need it.
    from jsonschema import Draft202012Validator

    try:
        if "pattern" in json.dumps(schema):  # validating would match the request's expression
            return False
        return bool(Draft202012Validator(schema).is_valid(json.loads(text)))
    except (ValueError, RecursionError):
        return False


def _stop_token(data: bytes, sampling: Sampling) -> Plan | None:
    """The end by one of the stop tokens. Its text is shown only if stop strings are to be shown."""
    places = [
        (place, token_id)
        for token_id in sampling.stop_token_ids
        if 0 <= token_id < _EOS and (place := data.find(token_id, max(sampling.min_tokens - 1, 0))) >= 0
    ]
    if not places:
        return None
    place, token_id = min(places)
    shown = data[: place + sampling.include_stop_str_in_output]
    return Plan(
        data[: place + 1],
        eos=False,
        visible=len(shown.decode(errors="ignore")),
        finish_reason="stop",
        stop_reason=token_id,
    )


def _stop_string(data: bytes, sampling: Sampling) -> Plan | None:
    """The end by the stop string that is complete first, but not before `min_tokens`."""
    ends: list[tuple[int, int, bytes]] = []
    for order, stop in enumerate(sampling.stop):
        needle = stop.encode(errors="replace")
        start = data.find(needle, max(sampling.min_tokens - len(needle), 0)) if needle else -1
        if start >= 0:
            ends.append((start + len(needle), order, needle))
    if not ends:
        return None
    end, order, needle = min(ends)
    shown = data[:end] if sampling.include_stop_str_in_output else data[: end - len(needle)]
    return Plan(
        data[:end], eos=False, visible=len(shown.decode()), finish_reason="stop", stop_reason=sampling.stop[order]
    )
