"""Planner: what the next step of a run is: who speaks, what it reads, and whether it speaks freely or fills in a form.

    answer      the large model, told of no tools
    extract     the small model fills in one tool's form, and the call is made
    reason      the large model, told of all tools
    aggregate   after an extraction: the large model reads the result, told of no tools

With `no_tool: refuse` no model speaks where it would only `answer`, and beside `answer: result` none where it would `reason`: the
first step is what the run says of its tools, and its end.

Steps after a free one follow from what the model did, and are not routed. An extraction whose call failed is followed by
`reason`: the large model may do better. Without a guide every step is a free one of the large model, which knows all tools.

What the run recalled stands behind the instructions in every prompt of the large model. It is no part of the conversation.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from agentflow.agents import form
from agentflow.agents.aging import Holds, marked
from agentflow.agents.config import AgentConfig
from agentflow.agents.guide import Guide
from agentflow.agents.nofit import nofit
from agentflow.agents.progress import Progress
from agentflow.agents.record import Began, Recalled, Routed, StepBegan
from agentflow.memory.recollection import Memory, reminded
from agentflow.messages import Message, Sampling
from agentflow.router import EARLIER, Route, Turn
from agentflow.speaker import Speaker

if TYPE_CHECKING:
    from agentflow.memory.recall import Recall

REFUSED = "nothing else is answered"
"""The reason of a step that says only that no tool fits."""


class Cast(NamedTuple):
    """The models of a run; the same one may have both parts."""

    large: Speaker
    small: Speaker

    def named(self, name: str) -> Speaker:
        """The model of that name; the large one where there is none (any more)."""
        return self.small if name == self.small.name else self.large


class Planner:
    """For one run. `guide`: the agent's router; `recall`: what reminds it. None where it is off. `holds`: of its tools.

    `refused`: the routes on which no model is to speak first.
    """

    def __init__(
        self,
        cast: Cast,
        guide: Guide | None = None,
        recall: Recall | None = None,
        holds: Holds | None = None,
        refused: frozenset[Route] = frozenset(),
    ) -> None:
        self.cast = cast
        self._guide = guide
        self._recall = recall
        self._holds = holds or {}
        self._refused = refused

    async def recall(self, progress: Progress, tenant: str) -> Recalled | None:
        """What the run is reminded of, before its first step; None where nothing reminds it, or that was done."""
        if self._recall is None or progress.recalled is not None:
            return None
        began = _began(progress)
        room = self.cast.large.room(len(began.prompt))
        # No text has more tokens than bytes; and half of the room is the answer's.
        return await self._recall.ask(tenant, began.messages, None if room is None else room // 2)

    async def first(self, progress: Progress, tenant: str) -> StepBegan:
        """The step that answers the conversation. A `quoted` one: no model is to speak, and the run ends with its `refusal`."""
        began = _began(progress)
        free = StepBegan(step=0, model=self.cast.large.name, forced=began.forced)
        if self._guide is not None and self._refused and not began.tools:
            return replace(free, routed=Routed(route="answer", reasons=("no tool is there", REFUSED)), quoted=True)
        if self._guide is None or began.forced is not None or not began.tools:
            return await self._reminded(free, progress)
        if began.client_tools:  # which the router does not know
            routed = Routed(route="reason", reasons=("the request brings tools of its own",))
            return await self._reminded(replace(free, routed=routed), progress)
        said = _said(began.messages)
        turn = Turn(
            text=said[0] if said else "",
            results_present=began.messages[-1].role == "tool",
            previous_tool=_previous_tool(began.messages),
            earlier=said[1 : EARLIER + 1],
        )
        decision, seconds = await self._guide.decide(turn, tenant)
        routed = Routed(
            route=decision.route,
            tool=decision.tool,
            score=decision.score,
            runner_up=decision.runner_up,
            reasons=decision.reasons,
            seconds=seconds,
        )
        if decision.route in self._refused and not progress.added:
            return replace(free, routed=replace(routed, reasons=(*routed.reasons, REFUSED)), quoted=True)
        tool = next((tool for tool in began.tools if tool.name == decision.tool), None)
        if decision.route == "extract" and tool is not None:
            prompt = await self.cast.small.opening(form.messages(began.messages, tool), ())
            return StepBegan(step=0, model=self.cast.small.name, prompt=prompt, forced=tool.name, routed=routed)
        if decision.route == "answer":
            return replace(free, prompt=await self.cast.large.opening(_read(progress, self._holds), ()), routed=routed)
        return await self._reminded(replace(free, routed=routed), progress)

    def refusal(self, progress: Progress) -> str:
        """What is said to a turn that no tool fits."""
        began = _began(progress)
        there = {tool.name for tool in began.tools}
        cards = () if self._guide is None else self._guide.cards
        return nofit([card for card in cards if card.name in there], "".join(_said(began.messages)[:1]))

    async def _reminded(self, step: StepBegan, progress: Progress) -> StepBegan:
        """The first step, told of all tools, with what was recalled in its prompt."""
        if progress.recalled is None or not progress.recalled.texts:
            return step
        return replace(step, prompt=await self.cast.large.opening(_read(progress, self._holds), _began(progress).tools))

    async def next(self, progress: Progress) -> StepBegan:
        """The step that follows one whose calls have all their results."""
        began, large = _began(progress), self.cast.large
        step = StepBegan(step=progress.step + 1, model=large.name)
        said, new = progress.said_turn(), progress.new_turns()
        history = [*_read(progress, self._holds), said]
        if progress.forced is not None and not self.fills_form(progress):
            # What had to be a call is written without the words that a template has for one.
            return replace(step, prompt=await large.opening([*history, *new], began.tools))
        if not self.fills_form(progress):
            return await self._grown(progress, step, history, new)
        if any(call.ended is not None and call.ended.is_error for call in progress.calls):
            routed = Routed(route="reason", reasons=("the call of the extraction failed",))
            prompt = await large.opening(_read(progress, self._holds), began.tools)
            return replace(step, prompt=prompt, routed=routed)
        routed = Routed(route="aggregate", reasons=("the result of the extraction is there",))
        return replace(step, prompt=await large.opening([*history, *new], ()), routed=routed)

    async def _grown(
        self, progress: Progress, step: StepBegan, history: list[Message], new: list[Message]
    ) -> StepBegan:
        """The prompt with what was said and the new turns behind it."""
        offered = _began(progress).tools
        prompt = await self.cast.large.next(progress.prompt, progress.said, history, new, offered)
        before = [*progress.prompt, *progress.said]
        if prompt[: len(before)] == before:
            return replace(step, added=prompt[len(before) :])
        return replace(step, prompt=prompt)

    def speaker(self, progress: Progress) -> Speaker:
        """Who speaks in this step."""
        return self.cast.named(progress.model)

    @staticmethod
    def fills_form(progress: Progress) -> bool:
        """Whether this step is an extraction: the text is a tool's form, filled in."""
        return progress.routed is not None and progress.routed.route == "extract"

    def form_sampling(self, progress: Progress) -> Sampling | None:
        """How the form of an extraction is filled in; None in any other step."""
        if not self.fills_form(progress):
            return None
        tool = next(tool for tool in _began(progress).tools if tool.name == progress.forced)
        aliases = () if self._guide is None else self._guide.aliases(tool.name)
        return form.sampling(tool, _began(progress).messages, aliases)


def refused_by(agent: AgentConfig) -> frozenset[Route]:
    """The routes on which an agent lets no model speak first."""
    if agent.no_tool == "answer":
        return frozenset()
    return frozenset({"answer", "reason"} if agent.answer == "result" else {"answer"})


def _began(progress: Progress) -> Began:
    assert progress.began is not None, "a run's log begins with Began"
    return progress.began


def _read(progress: Progress, holds: Holds) -> tuple[Message, ...]:
    """The conversation as the large model reads it, where `holds` says which results have grown old."""
    messages, recalled = marked(progress.history, holds, int(time.time() * 1000)), progress.recalled
    if recalled is None:
        return messages
    names = recalled.names or ("",) * len(recalled.ids)
    found = zip(recalled.ids, recalled.texts, recalled.written, names, strict=True)
    return reminded(messages, [Memory(id=id_, kind="", text=text, at=at, name=name) for id_, text, at, name in found])


def _said(messages: tuple[Message, ...]) -> tuple[str, ...]:
    """What the user said, the last first."""
    return tuple(message.content or "" for message in reversed(messages) if message.role == "user")


def _previous_tool(messages: tuple[Message, ...]) -> str | None:
    """The one tool that was called for the user's turn before the last."""
    turns = [number for number, message in enumerate(messages) if message.role == "user"]
    if len(turns) < 2:
        return None
    called = [call.name for message in messages[turns[-2] : turns[-1]] for call in message.tool_calls]
    return called[0] if len(called) == 1 else None
