"""What an agent says that no tool of its fits."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.config import AgentConfig
from agentflow.agents.nofit import nofit
from agentflow.agents.record import Added, Ended, Event, Paused, Said, StepBegan, StepEnded, Unpaused
from agentflow.events import ChoiceFinished
from agentflow.messages import Message, Tool, ToolChoice
from agentflow.responses.items import MessageItem
from agentflow.routing.cards import ToolCard
from dataplane import DataPlane
from tests.agentflow.agents.agencies import benched, kept, text_of
from tests.agentflow.agents.test_planner import RULES, plane, tools
from tests.agentflow.responses.test_responses import asked

__all__ = ["plane"]

ENGLISH = 'I can only do what my tools do. Ask for one thing at a time, such as: "Will it rain in Paris?", money.'
CHINESE = "我只能做我的工具能做的事。请一次只问一件事，例如：“北京今天天气怎么样”、money。"
REFUSES = AgentConfig(tools=("*",), answer="result", no_tool="refuse")


@pytest.mark.parametrize(
    ("question", "answer"),
    [("Write me a poem about the sea.", ENGLISH), ("给我写一首关于大海的诗", CHINESE)],
)
async def test_a_turn_that_no_tool_fits_is_told_so_and_no_model_speaks(
    tmp_path: Path, plane: DataPlane, question: str, answer: str
) -> None:
    async with benched(tmp_path, RULES, tools(), REFUSES, plane=plane) as it:
        events = await it.ask(question)
        assert text_of(events) == answer
        assert events[-1] == ChoiceFinished(0, "stop")
        assert it.ended == []  # no engine was asked
    log = await newest(plane)
    (step,) = (event for event in log if isinstance(event, StepBegan))
    assert step.routed is not None
    assert (step.quoted, step.routed.route, step.routed.reasons[-1]) == (True, "answer", "nothing else is answered")
    assert [event.prompt_tokens for event in log if isinstance(event, StepEnded)] == [0]
    assert isinstance(log[-1], Ended)
    assert (log[-1].end, log[-1].why) == ("completed", "stop")


@pytest.mark.parametrize(("answer", "said"), [("result", ENGLISH), ("model", "I reason.")])
async def test_where_results_are_the_answer_a_turn_that_may_want_two_tools_is_told_so_too(
    tmp_path: Path, plane: DataPlane, answer: Any, said: str
) -> None:
    agent = AgentConfig(tools=("*",), answer=answer, no_tool="refuse")
    rules = {"and then": "I reason."}
    async with benched(tmp_path, rules, tools(), agent, plane=plane) as it:
        question = "How is the weather in Paris, and then the exchange rate of the euro?"
        assert text_of(await it.ask(question)) == said


async def test_a_turn_that_a_tool_fits_is_not_refused(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, RULES, tools(), REFUSES, plane=plane) as it:
        assert text_of(await it.ask("What is the weather in Shanghai?")) == "sunny in Shanghai"


async def test_a_request_that_brings_tools_or_says_which_to_call_is_not_refused(
    tmp_path: Path, plane: DataPlane
) -> None:
    async with benched(tmp_path, RULES, tools(), REFUSES, plane=plane) as it:
        assert text_of(await it.ask("a poem", tools=(Tool("own", "", {"type": "object"}),))) == "Roses are red."
        await it.ask("a poem", tool_choice=ToolChoice("named", "weather"))
        assert len(it.ended) > 1


async def test_an_agent_whose_tools_are_gone_says_so(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, RULES, [], REFUSES, plane=plane) as it:
        said = "I can only do what my tools do, and none of them is there now."
        assert text_of(await it.ask("What is the weather in Shanghai?")) == said
        assert it.ended == []


async def test_a_response_has_it_as_its_message(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, RULES, tools(), REFUSES, plane=plane) as it:
        done = await (await it.service.responses.create(asked("a poem", "agent/a"))).finish()
        (item,) = done.output
        assert isinstance(item, MessageItem)
        assert item.texts == (ENGLISH,)


async def said_after_a_pause(folder: Path, plane: DataPlane, *told: Event) -> list[str]:
    """What a run says that is paused before its first step, is refused then, and is told something before it goes on."""
    archive = Archive(plane.state)
    async with benched(folder, RULES, tools(), REFUSES, plane=plane) as it:
        await it.ask("a poem")
        (began, *_) = await newest(plane)
        journal = await archive.open("t", RunRecord(id="run_x", agent="a", model="m", created_ms=0))
        await journal.append([began, Paused()], kept)
        assert await it.service.agents.resume() == 1
        live = it.service.agents.live("t", "run_x")
        assert live is not None
        await asyncio.sleep(0.05)  # by then it was found that no tool fits
        assert not live.over
        for event in (*told, Unpaused()):
            assert await it.service.agents.tell("t", "run_x", event)
        await live.until(lambda: live.over)
    return [event.text for _, event in await archive.events("t", "run_x") if isinstance(event, Said)]


async def test_a_run_that_is_paused_says_so_when_it_goes_on(tmp_path: Path, plane: DataPlane) -> None:
    assert await said_after_a_pause(tmp_path, plane) == [ENGLISH]


async def test_what_a_paused_run_is_told_is_read_before_it_is_refused(tmp_path: Path, plane: DataPlane) -> None:
    added = Added(message=Message("user", "What is the weather in Shanghai?"))
    texts = await said_after_a_pause(tmp_path, plane, added)
    assert '{"city": "Shanghai"}' in "".join(texts), "the tool's form is filled in"
    assert ENGLISH not in texts


def test_what_is_shown_is_bounded_and_prefers_the_language_of_the_turn() -> None:
    long = ToolCard(name="look_up", examples=("x" * 81, "短的例子"))
    assert nofit([long], "hello") == (
        'I can only do what my tools do. Ask for one thing at a time, such as: "短的例子".'
    )
    many = nofit([ToolCard(name=f"tool_{number}") for number in range(50)], "hello")
    assert many.endswith("such as: tool 0, tool 1, tool 2, tool 3, tool 4, tool 5.")


async def newest(plane: DataPlane) -> list[Event]:
    """The log of the newest run."""
    ((name, _), *_rest) = await plane.state.scan("default", "run")
    return [event for _, event in await Archive(plane.state).events("default", name)]
