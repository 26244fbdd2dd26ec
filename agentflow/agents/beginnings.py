"""Beginnings: from what somebody asks to what a run begins with; and the same for one that is taken up again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from agentflow.agents.agency import PREFIX, Agency, Asked
from agentflow.agents.aging import Holds, holds_of, marked
from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.agents.guide import Embed, Guides
from agentflow.agents.instructions import instructed
from agentflow.agents.loop import Terms
from agentflow.agents.planner import Cast, Planner, refused_by
from agentflow.agents.record import ANY_TOOL, Began
from agentflow.errors import InvalidRequest, UnknownModel
from agentflow.messages import Caller, ChatRequest, Structured, Tool, ToolChoice
from agentflow.nearest import did_you_mean, nearest
from agentflow.plan import tool_use
from agentflow.speaker import Speaker

Speakers = Callable[[str, float], Awaitable[Speaker]]
"""Gives a model by its name, once it is loaded, until a moment of time.monotonic(). Raises UnknownModel, EngineUnavailable."""

_ONE_ANSWER = AgentConfig(limits=AgentLimits(steps=1, tokens=1 << 31, wall_s=86_400.0))
"""How a plain model goes about an answer."""


class Beginning(NamedTuple):
    """What a run begins with: its first event, who speaks in it, and what it goes by."""

    began: Began
    planner: Planner
    terms: Terms


class Beginnings:
    """`check` raises InvalidRequest for a form that no answer can be made to have; `embed`: see guide.Guide."""

    def __init__(
        self,
        agency: Agency,
        speaker: Speakers,
        deadline_s: float,
        check: Callable[[Structured | None], Awaitable[None]],
        embed: Embed | None,
    ) -> None:
        self._agency = agency
        self._speaker = speaker
        self._deadline_s = deadline_s
        self._check = check
        self._guides = Guides(agency.agents, agency.toolbox, embed)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Make the routers ready, in `tasks`."""
        self._guides.start(tasks)

    def stop(self) -> None:
        """End what `start` began."""
        self._guides.stop()

    async def of(self, request: ChatRequest, asked: Asked) -> Beginning:
        """Of a request to an agent, or to a plain model: one answer. Raises InvalidRequest, Refused."""
        if request.model.startswith(PREFIX):
            return await self._of_agent(request, asked)
        return await self._of_answer(request, asked)

    async def again(self, began: Began, tenant: str) -> Beginning:
        """Of a run that has begun. Raises InvalidRequest where its agent or its model is gone, Refused."""
        agent = self._agency.agents.get(began.agent) if began.agent else _ONE_ANSWER
        if agent is None:
            raise UnknownModel(f"The agent {began.agent!r} is not configured any more.")
        speaker = await self._speaker(began.model, time.monotonic() + self._deadline_s)
        terms = Terms(agent, Caller(tenant, began.key), self._deadline_s, resumed=True)
        holds = holds_of(self._agency.toolbox.specs(agent.tools))
        return Beginning(began, await self._planner(speaker, began.agent, agent, holds), terms)

    async def _of_agent(self, request: ChatRequest, asked: Asked) -> Beginning:
        name = request.model.removeprefix(PREFIX)
        agent = self._agent(name)
        _check_agents(request)
        deadline_s = self._deadline_s if request.deadline_s is None else request.deadline_s
        speaker = await self._speaker(agent.model, time.monotonic() + deadline_s)
        specs = self._agency.toolbox.specs(agent.tools)  # once: tools of servers come and go
        own, holds = tuple(spec.offered for spec in specs), holds_of(specs)
        choice, theirs = request.tool_choice, request.tools if request.tool_choice.mode != "none" else ()
        _check_names(own, theirs)
        tools = (*own, *theirs)
        sampling, _ = tool_use(request, tools, speaker.tool_format)
        await self._check(sampling.structured)
        instructions = "\n\n".join(filter(None, (agent.instructions, asked.instructions)))
        messages = instructed(request.messages, instructions)
        began = Began(
            agent=name,
            model=speaker.name,
            messages=messages,
            tools=tools,
            tool_format=speaker.tool_format,
            sampling=sampling,
            prompt=await speaker.opening(marked(messages, holds, int(time.time() * 1000)), tools),
            key=request.caller.name,
            trace=request.caller.trace,
            instructions=instructions,
            max_calls=asked.max_calls,
            forced=_forced(choice),
            client_tools=tuple(tool.name for tool in theirs),
            asking=tuple(spec.name for spec in specs if spec.approval),
            conversation=asked.conversation,
        )
        terms = Terms(agent, request.caller, deadline_s, request.priority)
        return Beginning(began, await self._planner(speaker, name, agent, holds), terms)

    async def _of_answer(self, request: ChatRequest, asked: Asked) -> Beginning:
        """As `_of_agent`, of a plain model."""
        deadline_s = self._deadline_s if request.deadline_s is None else request.deadline_s
        speaker = await self._speaker(request.model, time.monotonic() + deadline_s)
        choice = request.tool_choice
        tools = request.tools if choice.mode != "none" else ()
        sampling, _ = tool_use(request, tools, speaker.tool_format)
        await self._check(sampling.structured)
        messages = instructed(request.messages, asked.instructions)
        began = Began(
            agent="",
            model=speaker.name,
            messages=messages,
            tools=tools,
            # A form that the whole answer must have leaves no room for calls.
            tool_format=speaker.tool_format if sampling.structured is None else "none",
            sampling=sampling,
            prompt=await speaker.opening(messages, tools),
            key=request.caller.name,
            trace=request.caller.trace,
            instructions=asked.instructions,
            forced=_forced(choice),
            conversation=asked.conversation,
        )
        terms = Terms(_ONE_ANSWER, request.caller, deadline_s, request.priority)
        return Beginning(began, Planner(Cast(speaker, speaker)), terms)

    async def _planner(self, large: Speaker, name: str, agent: AgentConfig, holds: Holds) -> Planner:
        """Who speaks in an agent's runs, and when."""
        small = large
        if agent.routing and agent.small_model is not None:
            small = await self._speaker(agent.small_model, time.monotonic() + self._deadline_s)
        recall = None if self._agency.memory is None else self._agency.memory.recall(name)
        return Planner(Cast(large, small), self._guides.of(name), recall, holds, refused_by(agent))

    def _agent(self, name: str) -> AgentConfig:
        agent = self._agency.agents.get(name)
        if agent is None:
            near = nearest(name, self._agency.agents)
            hint = did_you_mean(PREFIX + near if near else None)
            known = ", ".join(f"{PREFIX}{each}" for each in sorted(self._agency.agents)) or "none"
            raise UnknownModel(f"There is no agent {name[:64]!r}.{hint} Agents: {known}.")
        return agent


def _forced(choice: ToolChoice) -> str | None:
    """As Began's."""
    return {"named": choice.name, "required": ANY_TOOL}.get(choice.mode)


def _check_names(own: Sequence[Tool], theirs: Sequence[Tool]) -> None:
    """Refuse tools of a caller's that the agent has too: nobody could say whose a call is. Raises InvalidRequest."""
    taken = {tool.name for tool in own}
    for tool in theirs:
        if tool.name in taken:
            raise InvalidRequest(
                f"The agent has a tool {tool.name!r} of its own: give yours another name.",
                param="tools",
                code="invalid_value",
            )


def _check_agents(request: ChatRequest) -> None:
    """Refuse what an agent's run has no meaning for. Raises InvalidRequest."""
    sampling = request.sampling
    structured = sampling.structured
    refused = {
        "n": request.n > 1 and "An agent gives one answer.",
        structured.param if structured else "": structured is not None and "An agent's answer is free text.",
        "logprobs": sampling.logprobs is not None and "An agent's answer has no log probabilities.",
    }
    for param, why in refused.items():
        if why:
            raise InvalidRequest(why, param=param, code="unsupported_parameter")
