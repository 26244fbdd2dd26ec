"""Spans: what ended, as OpenTelemetry's semantic conventions for generative AI have it. Pure.

    invoke_agent travel          a run of an agent
    ├── chat qwen2.5-7b          a step of it
    ├── execute_tool flights     a call
    └── chat qwen2.5-7b
    chat qwen2.5-7b              a plain request: a trace of its own

Ids follow from those of the run, the step and the call: a daemon that goes on with another's run goes on with its trace. A
request with a `traceparent` is a part of that trace, and is sampled as it says; another's trace is sampled by its id.

What was said, asked and answered stands in a span only if `content` is wanted, and at most CONTENT_CHARS of each text.
"""

from __future__ import annotations

import hashlib
import time
from typing import TypeAlias, TypedDict

import msgspec
from msgspec import Struct

from agentflow.agents.watch import CallOver, Part, RunOver, StepOver, Watched
from agentflow.messages import Message
from agentflow.run import Run, RunStatus

CONTENT_CHARS = 8192
CONTENT_MESSAGES = 64  # the last ones of a conversation
NAME_CHARS = 128  # of a tool's name, which a model may have made up
PROVIDER = "acu"
_MS = 1_000_000  # nanoseconds

Attribute: TypeAlias = str | bool | int | float | list[str]
"""A list where OpenTelemetry wants several."""


class Place(Struct, frozen=True):
    """Where a span stands: its trace, itself and its parent (0: none), and whether the trace is to be sent at all.

    `remote`: the parent is the caller's.
    """

    trace_id: int
    span_id: int
    parent_id: int
    sampled: bool
    remote: bool = False


class SpanData(Struct, frozen=True, kw_only=True):
    """A span that is over. Times are nanoseconds since 1970; `error` is a sentence, or nothing, of one that failed."""

    name: str
    place: Place
    began_ns: int
    ended_ns: int
    attributes: dict[str, Attribute]
    failed: bool = False
    error: str = ""


class SpanForm(Struct, frozen=True):
    """How spans are made: the share of traces that are sent, and whether texts go along."""

    share: float = 1.0
    content: bool = False

    def of_part(self, part: Watched) -> SpanData | None:
        """The span of a part of a run, or None: it has none, or its trace is not sent."""
        match part:
            case StepOver():
                span = self._step(part)
            case CallOver():
                span = self._call(part)
            case RunOver() if part.run.agent:
                span = self._run(part)
            case _:
                return None
        return span if span.place.sampled else None

    def of_request(self, run: Run) -> SpanData | None:
        """The span of a plain request's answer. None for what is no such, or not sent: a run's steps have theirs elsewhere."""
        if run.kind != "generate" or run.request_id.startswith("run_"):
            return None
        place = self._place(run.caller.trace, run.id)
        if not place.sampled:
            return None
        now, clock = time.time_ns(), time.monotonic()
        ended = clock if run.finished_at is None else run.finished_at
        attributes: dict[str, Attribute] = {
            **_chat("chat" if run.request_id.startswith("chatcmpl-") else "text_completion", run.model),
            "gen_ai.response.id": run.request_id,
            "gen_ai.usage.input_tokens": len(run.prompt_token_ids),
            "gen_ai.usage.output_tokens": run.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": run.cached_tokens,
        }
        if run.finish_reason is not None:
            attributes["gen_ai.response.finish_reasons"] = [run.finish_reason]
        if run.first_token_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = run.first_token_at - run.arrived_at
        if run.admitted_at is not None:
            attributes["acu.queue_seconds"] = run.admitted_at - run.arrived_at
        failed = run.status is not RunStatus.FINISHED
        if failed:
            attributes["error.type"] = run.reason or run.status.value
        return SpanData(
            name=f"{attributes['gen_ai.operation.name']} {run.model}",
            place=place,
            began_ns=now - int((clock - run.arrived_at) * 1e9),
            ended_ns=now - int((clock - ended) * 1e9),
            attributes=attributes,
            failed=failed,
        )

    # Parts of runs

    def _run(self, part: RunOver) -> SpanData:
        run = part.run
        attributes: dict[str, Attribute] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": run.agent,
            "gen_ai.request.model": run.model,
            "acu.run.id": part.run_id,
            "acu.run.end": part.end,
            "acu.run.why": part.why,
            "acu.run.steps": part.steps,
            "acu.run.calls": part.calls,
            **_conversation(part),
        }
        failed = part.end in ("failed", "cancelled")
        if failed:
            attributes["error.type"] = part.why
        if self.content:
            attributes["gen_ai.input.messages"] = _messages(run.messages)
        return SpanData(
            name=f"invoke_agent {run.agent}",
            place=self._place(run.trace, part.run_id),
            **_times(part),
            attributes=attributes,
            failed=failed,
            error=_text(part.error or "") if self.content else "",
        )

    def _step(self, part: StepOver) -> SpanData:
        attributes: dict[str, Attribute] = {
            **_chat("chat", part.model),
            "acu.run.id": part.run_id,
            "acu.step": part.number,
            **_conversation(part),
        }
        measured = part.measured
        if measured is None:
            attributes["error.type"] = "cut"
        else:
            attributes |= {
                "gen_ai.response.finish_reasons": [measured.reason],
                "gen_ai.usage.input_tokens": measured.prompt_tokens,
                "gen_ai.usage.output_tokens": measured.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": measured.cached_tokens,
                "gen_ai.response.time_to_first_chunk": measured.ttft_s,
                "acu.queue_seconds": measured.queue_s,
            }
        if part.routed is not None:
            attributes |= {"acu.route": part.routed.route, "acu.route.reasons": list(part.routed.reasons)}
        if self.content:
            attributes["gen_ai.output.messages"] = _messages((Message("assistant", part.text),))
        return SpanData(
            name=f"chat {part.model}",
            place=self._place_in(part, f"step {part.number}"),
            **_times(part),
            attributes=attributes,
            failed=measured is None,
        )

    def _call(self, part: CallOver) -> SpanData:
        name = _text(part.name, NAME_CHARS)
        attributes: dict[str, Attribute] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": part.call_id,
            "gen_ai.agent.name": part.run.agent,
            "acu.run.id": part.run_id,
        }
        failed = part.outcome != "ok"
        if failed:
            attributes["error.type"] = {"error": "tool_error"}.get(part.outcome, f"call_{part.outcome}")
        if self.content:
            attributes["gen_ai.tool.call.arguments"] = _text(part.arguments)
            attributes["gen_ai.tool.call.result"] = _text(part.result)
        return SpanData(
            name=f"execute_tool {name}",
            place=self._place_in(part, part.call_id),
            **_times(part),
            attributes=attributes,
            failed=failed,
        )

    # Places

    def _place(self, traceparent: str, seed: str) -> Place:
        """Of a request or run: in its caller's trace, or at the top of its own."""
        digest = _digest(seed)
        span_id = _number(digest[16:24])
        if traceparent:  # it was found well-formed when it came in
            _, trace, parent, flags = traceparent.split("-")
            return Place(int(trace, 16), span_id, int(parent, 16), bool(int(flags, 16) & 1), remote=True)
        trace_id = _number(digest[:16])
        return Place(trace_id, span_id, 0, (trace_id & ((1 << 64) - 1)) < self.share * (1 << 64))

    def _place_in(self, part: Part, seed: str) -> Place:
        """Of a part: below its run. A plain model's run has no span; its steps stand where it would."""
        run = self._place(part.run.trace, part.run_id)
        span_id = _number(_digest(f"{part.run_id} {seed}")[:8])
        if part.run.agent:
            return Place(run.trace_id, span_id, run.span_id, run.sampled)
        return Place(run.trace_id, span_id, run.parent_id, run.sampled, run.remote)


class _Times(TypedDict):
    began_ns: int
    ended_ns: int


def _times(part: Part) -> _Times:
    return _Times(began_ns=part.began_ms * _MS, ended_ns=part.ended_ms * _MS)


def _conversation(part: Part) -> dict[str, Attribute]:
    """The conversation, or the chain of responses, that a run belongs to, where it is known."""
    return {"gen_ai.conversation.id": part.run.conversation} if part.run.conversation else {}


def _chat(operation: str, model: str) -> dict[str, Attribute]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
    }


def _messages(messages: tuple[Message, ...]) -> str:
    """Messages as the conventions' JSON has them: a role, and parts of text."""
    told = [
        {
            "role": message.role,
            "parts": [{"type": "text", "content": _text(message.content or "")}],
        }
        for message in messages[-CONTENT_MESSAGES:]
    ]
    return msgspec.json.encode(told).decode()


def _text(text: str, most: int = CONTENT_CHARS) -> str:
    """At most so many characters of it, each of which has bytes: a model may have written half of a surrogate pair."""
    return text[:most].encode("utf-8", "replace").decode()


def _digest(seed: str) -> bytes:
    return hashlib.sha256(seed.encode()).digest()


def _number(digest: bytes) -> int:
    """An id, which must not be zero."""
    return int.from_bytes(digest, "big") or 1
