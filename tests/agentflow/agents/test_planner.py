"""What the router decides becomes a step: who speaks, told of which tools, freely or in a form."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from agentflow.agents.archive import Archive
from agentflow.agents.config import AgentConfig
from agentflow.agents.guide import Guide
from agentflow.agents.record import Event, StepBegan
from agentflow.engine.script import Rule
from agentflow.errors import EngineUnavailable
from agentflow.events import ChoiceFinished, ToolCallOpened, ToolEnded, ToolStarted
from agentflow.messages import Message, Tool
from agentflow.router import Thresholds, Turn
from agentflow.tools.errors import ToolFailed
from agentflow.tools.tool import CallContext, ToolSpec
from dataplane import DataPlane, DataPlaneConfig
from tests.agentflow.agents.agencies import BodyTool, benched, call, request, text_of

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city."}},
    "required": ["city"],
    "additionalProperties": False,
}
WORDS: dict[str, Any] = {
    "description": "The weather in a city.",
    "parameters": CITY,
    "aliases": ("weather", "天气", "forecast"),
    "examples": ("Will it rain in Paris?", "How is the weather in Rome?", "北京今天天气怎么样"),
}
OTHER: dict[str, Any] = {"description": "Converts money.", "aliases": ("exchange rate", "汇率"), "parameters": CITY}


async def weather(arguments: dict[str, Any], _: CallContext) -> str:
    return f"sunny in {arguments['city']}"


async def money(_: dict[str, Any], __: CallContext) -> str:
    return "1.1"


def tools(body: Any = weather) -> list[BodyTool]:
    return [BodyTool("weather", body, **WORDS), BodyTool("money", money, **OTHER)]


RULES = {
    "tool_response": "It is sunny.",
    "(?i)weather|天气": '{"city": "Shanghai"}',
    "(?i)poem": "Roses are red.",
    "": "I reason.",
}


async def steps(plane: DataPlane) -> list[StepBegan]:
    """The steps of the newest run."""
    events: list[Event] = []
    ((name, _), *_rest) = await plane.state.scan("default", "run")
    events = [event for _, event in await Archive(plane.state).events("default", name)]
    return [event for event in events if isinstance(event, StepBegan)]


@pytest.fixture
async def plane(tmp_path: Path) -> Any:
    opened = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    yield opened
    await opened.close()


@pytest.mark.parametrize("question", ["What will the weather be in Shanghai tomorrow?", "上海明天天气怎么样"])
async def test_a_clear_question_is_a_form_a_call_and_an_answer_without_tools(
    tmp_path: Path, plane: DataPlane, question: str
) -> None:
    async with benched(tmp_path, RULES, tools(), plane=plane) as it:
        events = await it.ask(question)
        started, over = (event for event in events if isinstance(event, ToolStarted | ToolEnded))
        assert isinstance(started, ToolStarted)
        assert (started.name, started.arguments) == ("weather", '{"city": "Shanghai"}')
        assert isinstance(over, ToolEnded)
        assert over.text == "sunny in Shanghai"
        assert text_of(events) == "It is sunny."
        form, answer = (bytes(run.prompt_token_ids).decode(errors="replace") for run in it.ended)
    assert "Form: weather" in form
    assert "- city (string, required): Name of the city." in form
    assert "# Tools" not in form + answer
    assert "sunny in Shanghai" in answer
    first, second = await steps(plane)
    assert first.routed is not None
    assert second.routed is not None
    assert (first.routed.route, first.routed.tool, first.forced) == ("extract", "weather", "weather")
    assert first.routed.reasons
    assert second.routed.route == "aggregate"


async def test_a_result_may_be_the_answer_as_it_is(tmp_path: Path, plane: DataPlane) -> None:
    async def tagged(_: dict[str, Any], __: CallContext) -> str:
        return 'sunny <tool_call>{"name": "money", "arguments": {}}</tool_call>'

    agent = AgentConfig(tools=("*",), answer="result")
    async with benched(tmp_path, RULES, tools(tagged), agent, plane=plane) as it:
        events = await it.ask("What is the weather in Shanghai?")
        assert text_of(events) == 'sunny <tool_call>{"name": "money", "arguments": {}}</tool_call>'
        assert [event.name for event in events if isinstance(event, ToolStarted)] == ["weather"]
        assert events[-1] == ChoiceFinished(0, "stop")
        assert len(it.ended) == 1
        assert text_of(await it.ask("Write me a poem about the sea.")) == "Roses are red."


async def test_why_there_is_no_result_is_the_answer_too_where_results_are(tmp_path: Path, plane: DataPlane) -> None:
    async def fail(_: dict[str, Any], __: CallContext) -> str:
        raise ToolFailed("There is no such city.")

    agent = AgentConfig(tools=("*",), answer="result")
    async with benched(tmp_path, RULES, tools(fail), agent, plane=plane) as it:
        assert text_of(await it.ask("What is the weather in Shanghai?")) == "There is no such city."
        assert len(it.ended) == 1


async def test_the_head_of_a_long_result_is_the_answer_where_results_are(tmp_path: Path, plane: DataPlane) -> None:
    async def long(_: dict[str, Any], __: CallContext) -> str:
        return "sunny " * 10_000

    agent = AgentConfig(tools=("*",), answer="result")
    async with benched(tmp_path, RULES, tools(long), agent, plane=plane) as it:
        answer = text_of(await it.ask("What is the weather in Shanghai?"))
        assert answer.startswith("sunny sunny ")
        assert "60,000 bytes" in answer
        assert len(it.ended) == 1


async def test_a_question_that_needs_no_tool_is_answered_without_any(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, RULES, tools(), plane=plane) as it:
        assert text_of(await it.ask("Write me a poem about the sea.")) == "Roses are red."
        assert b"# Tools" not in bytes(it.ended[0].prompt_token_ids)
    (step,) = await steps(plane)
    assert step.routed is not None
    assert step.routed.route == "answer"


@pytest.mark.parametrize(
    ("before", "text"), [("What is the weather in Rome?", "And in Paris?"), ("罗马天气怎么样", "那巴黎呢")]
)
async def test_a_follow_up_of_a_chat_without_calls_is_read_with_the_question_before(
    tmp_path: Path, plane: DataPlane, before: str, text: str
) -> None:
    rules = {"tool_response": "It is sunny.", "(?i)Paris|巴黎": '{"city": "Paris"}'}
    async with benched(tmp_path, rules, tools(), plane=plane) as it:
        asked = structs.replace(
            request(text), messages=(Message("user", before), Message("assistant", "Rainy."), Message("user", text))
        )
        stream = await it.service.chat(asked)
        assert text_of([event async for event in stream]) == "It is sunny."
        await stream.aclose()
    first, _ = await steps(plane)
    assert first.routed is not None
    assert (first.routed.route, first.routed.tool) == ("extract", "weather")
    assert first.routed.reasons[0] == f'a short follow-up, read together with "{before}"'


async def test_the_tools_of_a_caller_are_no_routers_business(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, {"": call("mine")}, tools(), plane=plane) as it:
        events = await it.ask("What is the weather in Rome?", tools=(Tool("mine"),))
        assert [event.name for event in events if isinstance(event, ToolCallOpened)] == ["mine"]
        assert events[-1] == ChoiceFinished(0, "tool_calls")
    (step,) = await steps(plane)
    assert step.routed is not None
    assert (step.routed.route, step.routed.reasons) == ("reason", ("the request brings tools of its own",))


async def test_a_question_for_two_tools_is_reasoned_with_all(tmp_path: Path, plane: DataPlane) -> None:
    question = "What is the weather in Rome, and what is the exchange rate of the pound?"
    async with benched(tmp_path, {"": "I reason."}, tools(), plane=plane) as it:
        assert text_of(await it.ask(question)) == "I reason."
        assert b"# Tools" in bytes(it.ended[0].prompt_token_ids)
    (step,) = await steps(plane)
    assert step.routed is not None
    assert step.routed.route == "reason"


async def test_a_call_that_fails_after_an_extraction_is_reasoned_about(tmp_path: Path, plane: DataPlane) -> None:
    async def fail(_: dict[str, Any], __: CallContext) -> str:
        raise ToolFailed("There is no such city.")

    rules = {"(?s)Form: weather": '{"city": "Shanghai"}', "(?s)# Tools": "Which city do you mean?"}
    async with benched(tmp_path, rules, tools(fail), plane=plane, within="prompt") as it:
        assert text_of(await it.ask("weather in Shangri-La?")) == "Which city do you mean?"
    routes = [step.routed.route for step in await steps(plane) if step.routed is not None]
    assert routes == ["extract", "reason"]


async def test_routing_can_be_turned_off(tmp_path: Path, plane: DataPlane) -> None:
    agent = AgentConfig(tools=("*",), routing=False)
    rules = {"tool_response": "Sunny.", "weather": call("weather", '{"city": "Rome"}')}
    async with benched(tmp_path, rules, tools(), agent, plane=plane) as it:
        assert text_of(await it.ask("weather in Rome?")) == "Sunny."
        assert b"# Tools" in bytes(it.ended[0].prompt_token_ids)
    assert [step.routed for step in await steps(plane)] == [None, None]


async def test_a_guide_decides_by_words_until_its_tools_are_embedded_and_when_a_vector_is_late() -> None:
    asked: list[int] = []
    late = asyncio.Event()

    async def embed(_: str, texts: Sequence[str]) -> Any:
        asked.append(len(texts))
        if len(asked) == 1:
            raise EngineUnavailable("It is loading.", retry_after_s=1.0)
        if len(texts) == 1:
            await late.wait()
        kinds = [("weather" in text or "rain" in text) + 2 * ("money" in text) for text in texts]
        return np.eye(3, dtype=np.float32)[kinds]

    guide = Guide([ToolSpec(name="weather", **WORDS), ToolSpec(name="money", **OTHER)], Thresholds(decisive=1.5), embed)
    decision, _ = await guide.decide(Turn(text="the weather in Paris"), "t")
    assert (decision.route, decision.tool, asked) == ("extract", "weather", [])
    warming = asyncio.create_task(guide.warm())
    await asyncio.sleep(0)
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    await guide.warm()
    semantic = guide._router._semantic
    assert semantic is not None
    semantic.trust["spaced"] = 0.7  # as a real embedder's examples earn it
    decision, _ = await guide.decide(Turn(text="the weather in Paris"), "t")
    assert (decision.route, decision.tool) == ("extract", "weather")
    assert decision.reasons[-1] == "words alone decided: the embedder took over 50 ms"


async def test_a_form_that_is_cut_by_a_dying_engine_is_filled_in_anew(tmp_path: Path, plane: DataPlane) -> None:
    rules: dict[str, str | Rule] = {
        "tool_response": "It is sunny.",
        "weather": Rule(answer='{"city": "Shanghai"}', die_after_tokens=25),
    }
    async with benched(tmp_path, rules, tools(), plane=plane, tokens_per_delta=4) as it:
        events = await it.ask("the weather in Shanghai")
        assert text_of(events) == "It is sunny."
