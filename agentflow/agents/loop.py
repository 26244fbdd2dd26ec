"""AgentLoop: round and round the model and its tools, until the model calls none.

One round is a step: the prompt goes to the engine through the scheduler, what the model says is logged and parsed while it
comes, and each call starts in the moment in which its arguments are whole, beside those before it, while the model goes on
speaking (`overlap`), or after the engine was stopped there (`inject`). When the model is done and every call has its result,
the results become the next turns. While only tools are at work, the run holds no seat of the scheduler.

The loop keeps nothing of its own: where it stands is in the run's progress, so that one that is made for a log of yesterday goes
on where that log ends. Text that was logged is kept, the engine goes on behind it. A call that was started and has no result
is made again if its tool is idempotent; if not, the model is told that nobody knows what became of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import NamedTuple

from msgspec.structs import replace

from agentflow.agents.clock import RunClock
from agentflow.agents.config import AgentConfig
from agentflow.agents.live import LiveRun
from agentflow.agents.pace import paced
from agentflow.agents.planner import Planner
from agentflow.agents.progress import OUTCOME_UNKNOWN, Call, Heard, Progress
from agentflow.agents.record import (
    HANDED_OVER,
    Began,
    CallEnded,
    Ended,
    Resumed,
    Routed,
    RunEnd,
    Said,
    StepBegan,
    StepEnded,
)
from agentflow.agents.toolwork import ToolWork
from agentflow.errors import AgentFlowError, Draining, EngineDied, EngineFailure, InvalidRequest, SequenceFailed
from agentflow.events import ToolCallClosed
from agentflow.messages import Caller, Sampling
from agentflow.parsing.choice import marks
from agentflow.speaker import Utterance

ENGINES = 2  # that may fail in one step before the run does
LONGEST_CHARACTER = 8  # tokens of one character, at most: a byte each, and some to spare

_log = logging.getLogger(__name__)


class Terms(NamedTuple):
    """What a run goes by besides its log. Times in seconds. `resumed`: it was admitted before."""

    agent: AgentConfig
    caller: Caller
    deadline_s: float
    priority: int = 0
    resumed: bool = False


class AgentLoop:
    """One run at work. `run` it once. Without `tools` all its calls are the caller's to make. The run ends with such calls."""

    def __init__(self, live: LiveRun, planner: Planner, tools: ToolWork | None, terms: Terms) -> None:
        self._live = live
        self._planner = planner
        self._tools = tools
        self._terms = terms
        self._clock = RunClock(terms.agent.limits.wall_s)

    @property
    def _progress(self) -> Progress:
        return self._live.progress

    @property
    def _began(self) -> Began:
        began = self._live.progress.began
        assert began is not None, "a run's log begins with Began"
        return began

    async def run(self) -> None:
        """Until the run has ended, which its log then says.

        Raises CancelledError, Draining where a stored run is to go on elsewhere, and what the journal raises: the log is then
        as it was, and another loop can go on with it.
        """
        limits = self._terms.agent.limits
        try:
            async with self._clock:
                while not self._live.over:
                    await self._round()
        except TimeoutError:
            await self._end("incomplete", "wall_time", f"The run took longer than limits.wall_s: {limits.wall_s:g}.")
        except Exception as error:  # noqa: BLE001 - whatever it is, the run ends with it
            await self._fail(_first(error))

    async def _round(self) -> None:
        """One step, or what is left of it, and what follows from it."""
        progress = self._progress
        async with asyncio.TaskGroup() as calls:
            for call in progress.waiting:  # of a run that is taken up again
                if call.closed and self._tools is not None:
                    calls.create_task(self._call(call, self._tools))
            if progress.step < 0:
                recalled = await self._planner.recall(progress, self._live.tenant)
                if recalled is not None:
                    await self._live.tell(recalled)
                while (step := await self._planner.first(progress, self._live.tenant)).quoted and progress.paused:
                    await self._unpaused()  # and look at what was said meanwhile
                if step.quoted:
                    await self._quote(step, self._planner.refusal(progress))
                    return
                await self._live.tell(step)
            await self._speak(calls)
        await self._go_on()

    async def _speak(self, calls: asyncio.TaskGroup) -> None:
        """Let the model speak until it is done; its calls start meanwhile. An engine that fails is replaced, and goes on."""
        failures = 0
        while self._progress.speaking:
            await self._unpaused()
            if self._progress.said:
                if self._sampling().structured is not None:
                    raise SequenceFailed(
                        "The engine was lost in the middle of an answer that must have a form, and no other can go on there."
                    )
                await self._live.tell(Resumed(kept=self._whole()))
            try:
                async with self._alone(failures):
                    await self._listen(calls)
            except EngineFailure as error:
                failures += 1
                if failures > ENGINES:
                    raise
                _log.warning("an engine failed under a run", extra={"run": self._live.id, "why": str(error)})

    def _alone(self, failures: int) -> AbstractAsyncContextManager[object]:
        """For a last try: one such run speaks at a time, so that the one that engines die of ends no other."""
        return self._planner.speaker(self._progress).alone if failures == ENGINES else nullcontext()

    async def _unpaused(self) -> None:
        """Wait while the run is paused."""
        if self._progress.paused:
            async with self._clock.stopped():
                await self._live.until(lambda: not self._progress.paused)

    async def _listen(self, calls: asyncio.TaskGroup) -> None:
        """Log and parse what the engine says, until it is done or the run is paused.

        What is held to a form is logged when it is whole: no engine could go on in the middle of a grammar, and nobody waits
        for the beginning of a call.
        """
        utterance = self._utterance()
        progress = self._progress
        held: list[Said] | None = [] if self._planner.fills_form(progress) else None
        formed = utterance.sampling.structured is not None
        async with aclosing(paced(self._planner.speaker(progress).speak(utterance))) as deltas:
            async for delta in deltas:
                said = [Said(ids=list(delta.token_ids), text=delta.text)] if delta.token_ids or delta.text else []
                if delta.finish_reason is not None:
                    # In one append with the step's end: an engine that went on behind the end token would speak on.
                    last = [_joined([*(held or ()), *said])] if held or said else []
                    spoken = len(progress.said) + sum(len(each.ids) for each in last)
                    ended = _measured(utterance, delta.finish_reason, len(progress.prompt), spoken)
                    self._start(await self._live.tell(*last, ended), calls)
                    return
                if held is not None:
                    held += said
                elif said:
                    self._start(await self._live.tell(*said), calls)
                if progress.paused and not formed:  # what has a form comes to its end: none could go on in the middle
                    return
        raise EngineDied("The engine ended the answer without saying why.")

    def _whole(self) -> int:
        """How many of the step's tokens are whole characters: a part of one has no text yet, and nobody has seen it."""
        said, kept = self._progress.said, len(self._progress.said)
        decode = self._planner.speaker(self._progress).decode
        while kept and kept > len(said) - LONGEST_CHARACTER and decode(said[:kept]).endswith("\ufffd"):
            kept -= 1
        return kept

    def _start(self, heard: Iterable[Heard], calls: asyncio.TaskGroup) -> None:
        """Make the calls that have become whole."""
        for each in heard:
            if isinstance(each, ToolCallClosed) and self._tools is not None:
                call = self._progress.calls[each.index]
                if not call.clients:
                    calls.create_task(self._call(call, self._tools))

    async def _call(self, call: Call, tools: ToolWork) -> None:
        if call.attempt and not call.idempotent:
            await self._live.tell(CallEnded(call_id=call.id, text=OUTCOME_UNKNOWN, is_error=True))
        else:
            await tools.call(self._live, call, self._clock)

    async def _go_on(self) -> None:
        """After a step: the end, or the prompt of the next."""
        progress = self._progress
        if self._tools is None or (not progress.calls and not progress.added):
            cut = progress.finish_reason == "length"
            ended = Ended(end="completed", why="stop")
            if cut:
                ended = Ended(end="incomplete", why="max_tokens", error=self._cut_by())
            await self._live.end(ended, unless=lambda: self._tools is not None and bool(progress.added))
        elif progress.handed_over:
            await self._end("completed", HANDED_OVER)
        else:
            await self._unpaused()
            await self._renew()
            await self._next()

    async def _next(self) -> None:
        """After a step whose calls have their results: the answer, a limit, or the prompt of the next."""
        progress, limits = self._progress, self._terms.agent.limits
        if self._is_answered():
            await self._answer()
        elif progress.step + 1 >= limits.steps:
            await self._end("incomplete", "max_steps", f"The run took all of limits.steps: {limits.steps}.")
        elif progress.usage.completion_tokens >= limits.tokens:
            await self._end("incomplete", "max_tokens", self._cut_by())
        else:
            await self._live.tell(await self._planner.next(progress))

    def _cut_by(self) -> str:
        """Which limit an answer ran into."""
        progress, limits = self._progress, self._terms.agent.limits
        asked = self._began.sampling.max_tokens
        if progress.usage.completion_tokens >= limits.tokens:
            return f"The run took all of limits.tokens: {limits.tokens}."
        if self._planner.fills_form(progress):
            return f"The arguments of {progress.forced} were longer than a form may be."
        if asked is not None and len(progress.said) >= asked:
            return f"The answer took all of the request's max_tokens: {asked}."
        return "The answer came to the end of the model's context."

    def _is_answered(self) -> bool:
        """Whether the results of this step are the answer as they are: an error, a refusal or a head among them.

        A model too small to repeat a result makes nothing of an error either, and invents an outcome.
        """
        progress = self._progress
        chosen = self._planner.fills_form(progress)
        return self._terms.agent.answer == "result" and chosen and bool(progress.calls) and not progress.added

    async def _answer(self) -> None:
        """End the run with its results as the answer."""
        progress = self._progress
        text = "\n\n".join(turn.content or "" for turn in progress.new_turns())
        routed = Routed(route="aggregate", reasons=("the result is the answer",))
        step = StepBegan(step=progress.step + 1, model=progress.model, routed=routed, quoted=True)
        await self._quote(step, text)

    async def _quote(self, step: StepBegan, text: str) -> None:
        """End the run with a text that no model says."""
        await self._live.tell(
            step,
            Said(ids=[], text=text),
            StepEnded(reason="stop", prompt_tokens=0, cached_tokens=0, completion_tokens=0),
            Ended(end="completed", why="stop"),
        )

    async def _renew(self) -> None:
        """Before the model reads on: results that have become too old meanwhile are fetched again, or marked."""
        tools = self._tools
        if tools is not None:
            async with asyncio.TaskGroup() as calls:
                for call in self._progress.calls:
                    if tools.is_stale(call):
                        calls.create_task(tools.renew(self._live, call, self._clock))
            await tools.remark(self._live)

    def _utterance(self) -> Utterance:
        progress = self._progress
        sampling = self._sampling()
        left = self._terms.agent.limits.tokens - progress.usage.completion_tokens - len(progress.said)
        if sampling.max_tokens is not None:
            left = min(left, sampling.max_tokens - len(progress.said))
        return Utterance(
            id=f"{self._live.id}-{progress.step}",
            request_id=self._live.id,
            prompt=[*progress.prompt, *progress.said],
            sampling=sampling,
            most_tokens=max(1, left),
            caller=self._terms.caller,
            deadline_s=self._terms.deadline_s,
            priority=self._terms.priority,
            continues=self._terms.resumed or progress.step > 0 or bool(progress.said),
        )

    def _sampling(self) -> Sampling:
        """Markers of calls are shown where they are special tokens. With `inject` the engine stops behind each call, where the
        format has an end for it.
        """
        filling = self._planner.form_sampling(self._progress)
        if filling is not None:
            return filling
        sampling = self._began.sampling
        if self._began.agent and self._progress.forced is None:
            sampling = replace(sampling, structured=None)  # that was of the first step, which had to call a tool
        form = marks(self._began.tool_format)
        if form is None or not self._began.tools:
            return sampling
        if form.special:
            sampling = replace(sampling, skip_special_tokens=False)
        if self._terms.agent.tool_mode == "inject" and form.closer is not None:
            # Without its closer a call is whole too; the caller's own stop strings must not be in the answer.
            stops = (*sampling.stop, form.closer)
            sampling = replace(sampling, stop=stops, include_stop_str_in_output=not sampling.stop)
        return sampling

    async def _fail(self, error: Exception) -> None:
        begun = self._progress.step > 0 or bool(self._progress.said)
        if isinstance(error, Draining) and self._live.archive is not None and begun:
            raise error
        self._live.failure = error if isinstance(error, AgentFlowError) else None
        if isinstance(error, InvalidRequest):
            await self._end("failed", error.code or "invalid_request", str(error))
        elif isinstance(error, AgentFlowError):
            await self._end("failed", type(error).__name__, str(error))
        else:
            _log.error("a run failed", extra={"run": self._live.id}, exc_info=error)
            await self._end("failed", "internal_error", "The server failed to serve this run. The log has the details.")

    async def _end(self, end: RunEnd, why: str, error: str | None = None) -> None:
        await self._live.tell(Ended(end=end, why=why, error=error))


def _joined(said: Sequence[Said]) -> Said:
    """All of it as one."""
    return Said(ids=[token for each in said for token in each.ids], text="".join(each.text for each in said))


def _first(error: Exception) -> Exception:
    """The first error of a group, which a TaskGroup makes of even one."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _measured(utterance: Utterance, reason: str, prompt: int, spoken: int) -> StepEnded:
    """What the step came to: `prompt` and `spoken` tokens, over all engines that it had, and the seconds of the last one."""
    run = utterance.run
    assert run is not None
    admitted = run.admitted_at or run.arrived_at
    first = run.first_token_at or admitted
    return StepEnded(
        reason=reason,
        prompt_tokens=prompt,
        cached_tokens=min(run.cached_tokens, prompt),
        completion_tokens=spoken,
        queue_s=admitted - run.arrived_at,
        ttft_s=first - run.arrived_at,
        decode_s=(run.last_token_at or first) - first,
    )
