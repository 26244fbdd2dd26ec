# ruff: noqa: RUF001 - DeepSeek's markers have wide bars
"""What vLLM's own tool parsers make of texts of their formats, however those are cut, broken off or garbled."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
import sys
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from agentflow.agents.agency import Agency
from agentflow.agents.config import AgentConfig
from agentflow.agents.progress import Heard, Progress
from agentflow.agents.record import Began, Said, StepBegan, StepEnded
from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.vllm import toolparsers
from agentflow.errors import EngineStartFailed, EngineUnavailable
from agentflow.events import ChoiceFinished, ToolCallArguments, ToolCallClosed, ToolCallOpened, ToolEnded
from agentflow.library.refusals import DataDamaged
from agentflow.messages import ChatRequest, Message, Tool
from agentflow.parsing import choice
from agentflow.parsing.events import CallArguments, CallClosed, CallOpened, Malformed, ParserEvent, Text
from agentflow.parsing.vllmshapes import PREFIX, SHAPES
from agentflow.parsing.wholecalls import Reader, WholeCallParser
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import ByteTokenizer
from agentflow.tools.handles import HandleStore
from agentflow.tools.tool import CallContext
from agentflow.tools.toolbox import Toolbox
from tests.agentflow.agents.agencies import BodyTool, text_of
from tests.agentflow.parsing.cases import parsed

PROPERTIES = {"s": {"type": "string"}, "a": {"type": "integer"}, "n": {"type": "object"}}
TOOLS = (
    Tool("f", parameters={"type": "object", "properties": PROPERTIES}),
    Tool("get_weather", description="By place", parameters={"type": "object", "properties": {"s": {"type": "string"}}}),
)
NAMES = frozenset(tool.name for tool in TOOLS)
NESTED = r'{"a": 1, "s": "é日 </tool_call> \"]}\" <|tool_call_end|>", "n": {"l": [1, {"z": null}], "k": {}}}'
FLAT = '{"s": "Köln \\"x\\" }"}'
TYPED: dict[str, object] = {"s": "é < 日 & b", "a": 5, "n": {"l": [1, {"z": None}]}}


def in_json(names: tuple[str, str], before: str, between: str, after: str, key: str = "arguments") -> tuple[str, ...]:
    """A text with one call, and one with two, where calls are JSON objects with names in them."""
    first, second = (f'{{"name": "{name}", "{key}": {text}}}' for name, text in zip(names, (NESTED, FLAT), strict=True))
    return before + first + after, before + first + between + second + after


def in_tags(
    call_text: str, parameter: str, around: tuple[str, str], values: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """The same, where a call is tags: `call_text` has places for a name and for parameters."""
    first = call_text.format(
        name="f", parameters="".join(parameter.format(key=key, value=value) for key, value in values)
    )
    second = call_text.format(name="get_weather", parameters=parameter.format(key="s", value="Köln"))
    begin, end = around
    return begin + first + end, begin + first + "\n" + second + end


VALUES = (("s", "é < 日 & b"), ("a", "5"), ("n", '{"l": [1, {"z": null}]}'))
BOTH = ("f", "get_weather")
QWEN_CALL = "<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
QWEN_PARAMETER = "<parameter={key}>\n{value}\n</parameter>\n"
GLM_CALL, GLM_PARAMETER = (
    "<tool_call>{name}\n{parameters}</tool_call>",
    "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
)
DSML_CALL = '<｜DSML｜invoke name="{name}">\n{parameters}</｜DSML｜invoke>'
DSML_PARAMETER = '<｜DSML｜parameter name="{key}" string="true">{value}</｜DSML｜parameter>\n'
INVOKE, PARAMETER = '<invoke name="{name}">\n{parameters}</invoke>', '<parameter name="{key}">{value}</parameter>\n'
DEEPSEEK = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
V3 = [
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
    for name, text in zip(BOTH, (NESTED, FLAT), strict=True)
]
V31 = [
    f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>"
    for name, text in zip(BOTH, (NESTED, FLAT), strict=True)
]
KIMI = [
    f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{text}<|tool_call_end|>"
    for number, (name, text) in enumerate(zip(BOTH, (NESTED, FLAT), strict=True))
]
KIMI_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
LONGCAT = "</longcat_tool_call>\n<longcat_tool_call>\n"
PLUGIN = "<|action_end|><|action_start|><|plugin|>\n"

TEXTS: dict[str, tuple[str, ...]] = {
    "deepseek_v3": (DEEPSEEK[0] + V3[0] + DEEPSEEK[1], DEEPSEEK[0] + "\n".join(V3) + DEEPSEEK[1]),
    "deepseek_v31": (DEEPSEEK[0] + V31[0] + DEEPSEEK[1], DEEPSEEK[0] + "".join(V31) + DEEPSEEK[1]),
    "kimi_k2": (KIMI_SECTION[0] + KIMI[0] + KIMI_SECTION[1], KIMI_SECTION[0] + "".join(KIMI) + KIMI_SECTION[1]),
    "internlm": in_json(BOTH, "<|action_start|><|plugin|>\n", PLUGIN, "<|action_end|>", "parameters"),
    "jamba": in_json(BOTH, "<tool_calls>[\n", ",\n", "]</tool_calls>"),
    "longcat": in_json(BOTH, "<longcat_tool_call>\n", LONGCAT, "</longcat_tool_call>"),
    "granite": in_json(BOTH, "<|tool_call|>[", ", ", "]"),
    "granite-20b-fc": in_json(BOTH, "<function_call> ", " <function_call> ", ""),
    "xlam": in_json(BOTH, "[", ", ", "]"),
    "qwen3_coder": in_tags(QWEN_CALL, QWEN_PARAMETER, ("", ""), VALUES),
    "qwen3_xml": in_tags(QWEN_CALL, QWEN_PARAMETER, ("", ""), VALUES),
    "step3p5": in_tags(QWEN_CALL, QWEN_PARAMETER, ("", ""), VALUES),
    "seed_oss": in_tags(QWEN_CALL.replace("tool_call", "seed:tool_call"), QWEN_PARAMETER, ("", ""), VALUES),
    "mimo": in_tags(QWEN_CALL, "<parameter={key}>{value}</parameter>\n", ("", ""), VALUES),
    "glm45": in_tags(GLM_CALL, GLM_PARAMETER, ("", ""), VALUES),
    "glm47": in_tags(GLM_CALL, GLM_PARAMETER, ("", ""), VALUES),
    "ling3": in_tags(GLM_CALL, GLM_PARAMETER, ("", ""), VALUES),
    "deepseek_v32": in_tags(
        DSML_CALL, DSML_PARAMETER, ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"), (("s", "é < 日 & b"),)
    ),
    "deepseek_v4": in_tags(
        DSML_CALL, DSML_PARAMETER, ("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"), (("s", "é < 日 & b"),)
    ),
    "minimax_m2": in_tags(INVOKE, PARAMETER, ("<minimax:tool_call>\n", "\n</minimax:tool_call>"), VALUES),
    "dots": in_tags(INVOKE, PARAMETER, ("<dots_function_call>\n", "\n</dots_function_call>"), VALUES),
    "hunyuan_a13b": in_json(BOTH, "<tool_calls>[", ", ", "]</tool_calls>"),
    "phi4_mini_json": (  # its parser in vLLM takes the first bracket for the list's end
        'functools[{"name": "f", "arguments": {"s": "é"}}]',
        'functools[{"name": "f", "arguments": {"s": "é"}}, {"name": "get_weather", "arguments": {"s": "x"}}]',
    ),
}


@functools.cache
def cached_reader(name: str) -> Reader:
    """vLLM's, which is asked once about each text: it says the same each time."""
    return functools.cache(toolparsers.reader(name, TOOLS))


def fresh(name: str) -> WholeCallParser:
    """A parser of the format's."""
    return WholeCallParser(SHAPES[name], cached_reader(name), NAMES)


def made(name: str) -> WholeCallParser:
    """A parser of the format's, as the service has it made."""
    make = choice.parser_maker(PREFIX + name, TOOLS)
    assert make is not None
    parser = make()
    assert isinstance(parser, WholeCallParser)
    return parser


def calls_in(events: Sequence[ParserEvent]) -> list[tuple[str, object]]:
    """Names and arguments of whole calls; there is no part of one."""
    groups = [event for event in events if not isinstance(event, Text | Malformed)]
    assert len(groups) % 3 == 0
    found: list[tuple[str, object]] = []
    for opened, arguments, closed in zip(groups[::3], groups[1::3], groups[2::3], strict=True):
        assert isinstance(opened, CallOpened)
        assert isinstance(arguments, CallArguments)
        assert isinstance(closed, CallClosed)
        assert opened.index == arguments.index == closed.index == len(found)
        found.append((opened.name, json.loads(arguments.text)))
    return found


def expected_calls(name: str, count: int) -> list[tuple[str, object]]:
    """What the format's text with so many calls comes to."""
    first: object = json.loads(NESTED)
    second: object = json.loads(FLAT)
    if name == "phi4_mini_json":
        first, second = {"s": "é"}, {"s": "x"}
    elif SHAPES[name].body == "tags":
        first, second = {"s": "é < 日 & b"} if name.startswith("deepseek") else TYPED, {"s": "Köln"}
    return [("f", first), ("get_weather", second)][:count]


@pytest.fixture(autouse=True, scope="module")
def vllm_is_there() -> None:
    """Importing it takes seconds, and warns of much."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        toolparsers.load("qwen3_coder")
        toolparsers.reader("qwen3_coder", TOOLS)


def test_every_format_that_may_be_chosen_has_a_parser_in_vllm_and_texts_here() -> None:
    assert set(TEXTS) == set(SHAPES)
    for name in SHAPES:
        choice.load(PREFIX + name)


@pytest.mark.parametrize("name", TEXTS)
def test_calls_are_found_whole(name: str) -> None:
    for count, text in enumerate(TEXTS[name], 1):
        events = parsed(made(name), [text])
        assert calls_in(events) == expected_calls(name, count)
        assert not [event for event in events if isinstance(event, Text | Malformed)]


@pytest.mark.parametrize("name", [name for name in TEXTS if not SHAPES[name].bare])
def test_the_text_around_calls_is_passed_on(name: str) -> None:
    events = parsed(fresh(name), [f"Ich sehe 日 nach.{TEXTS[name][1]} Done <"])
    assert events[0] == Text("Ich sehe 日 nach.")
    assert calls_in(events) == expected_calls(name, 2)
    assert events[-1] == Text(" Done <")


@pytest.mark.parametrize("name", TEXTS)
def test_it_makes_no_difference_how_a_text_is_cut(name: str) -> None:
    for text in (*TEXTS[name], TEXTS[name][0] + " and so on\n" + TEXTS[name][0]):
        whole = parsed(fresh(name), [text])
        assert parsed(fresh(name), text) == whole
        for at in range(len(text)):
            assert parsed(fresh(name), [text[:at], text[at:]]) == whole, at


@pytest.mark.parametrize("name", TEXTS)
def test_of_a_text_that_is_broken_off_only_whole_calls_are_found(name: str) -> None:
    _, text = TEXTS[name]
    known = expected_calls(name, 2)
    for at in range(len(text)):
        found = calls_in(parsed(fresh(name), [text[:at]]))
        assert found == known[: len(found)], at


@pytest.mark.parametrize("name", TEXTS)
def test_garbled_texts_come_to_the_same_in_any_cut_and_break_nothing(name: str) -> None:
    """Each with other pieces of the format's in places where they do not belong, or with some left out."""
    chance = random.Random(name)
    shape = SHAPES[name]
    pieces = [shape.opener, shape.closer or "}", *(shape.section or ()), *itertools.chain(*shape.tags), *'{}[]"\\<>é\n']
    for _ in range(40):
        text = TEXTS[name][1]
        for _ in range(chance.randint(1, 4)):
            at, size = chance.randrange(len(text)), chance.choice((0, 0, 1, 5, 20))
            text = text[:at] + chance.choice(["", *pieces]) + text[at + size :]
        whole = parsed(fresh(name), [text])
        calls_in(whole)
        cuts = sorted(chance.sample(range(len(text)), min(6, len(text))))
        parts = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]
        assert parsed(fresh(name), parts) == whole, text


@pytest.mark.parametrize("name", ["qwen3_coder", "seed_oss", "glm45", "minimax_m2", "deepseek_v32", "dots"])
def test_a_value_may_hold_the_calls_own_end(name: str) -> None:
    closer = SHAPES[name].closer or ""
    one, _ = TEXTS[name]
    events = parsed(made(name), [one.replace("日", closer)])
    ((function, arguments),) = expected_calls(name, 1)
    assert isinstance(arguments, dict)
    assert calls_in(events) == [(function, {**arguments, "s": f"é < {closer} & b"})]


@pytest.mark.parametrize("name", ["qwen3_coder", "seed_oss", "mimo", "glm45", "minimax_m2", "deepseek_v4", "dots"])
def test_a_value_that_looks_like_its_own_end_is_not_cut_there(name: str) -> None:
    _, closer = SHAPES[name].tags[-1]
    text = TEXTS[name][0].replace("日", closer)
    events = parsed(made(name), [text])
    assert calls_in(events) == []
    assert "".join(event.text for event in events if isinstance(event, Malformed)).strip() in text


def test_a_long_value_of_markup_is_read_whole() -> None:
    page = '<div class="a">\n  <p id="b">Hello &amp; welcome</p>\n</div>\n' * 200
    (_, arguments), *others = calls_in(parsed(made("qwen3_coder"), [TEXTS["qwen3_coder"][0].replace("日", page)]))
    assert arguments == {**TYPED, "s": f"é < {page} & b"}
    assert not others


def test_a_log_is_read_by_the_format_that_it_names() -> None:
    heard = progress_of("vllm:kimi_k2", TEXTS["kimi_k2"][1])
    assert [each.name for each in heard if isinstance(each, ToolCallOpened)] == ["f", "get_weather"]
    assert len([each for each in heard if isinstance(each, ToolCallClosed)]) == 2


def test_without_vllm_a_format_of_its_is_refused_and_a_log_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.tool_parsers", None)
    with pytest.raises(EngineStartFailed, match="tool_format vllm:kimi_k2 needs vLLM, which cannot be imported here"):
        choice.load("vllm:kimi_k2")
    with pytest.raises(
        DataDamaged, match="the log of run_1 cannot be understood here: tool_format vllm:kimi_k2 needs vLLM"
    ):
        progress_of("vllm:kimi_k2", "Hello")


def test_unusual_schemas_break_nothing() -> None:
    properties = {
        "s": {"type": ["string", "null"]},
        "a": {"$ref": "#/nothing"},
        "n": True,
        "x": {"anyOf": [{"type": "integer"}]},
    }
    for parameters in (
        {"type": "object", "properties": properties},
        {"properties": properties},
        {"type": "object"},
        None,
    ):
        make = choice.parser_maker("vllm:qwen3_coder", [Tool("f", parameters=parameters)])
        assert make is not None
        events = parsed(make(), [TEXTS["qwen3_coder"][0]])
        assert calls_in(events) == [("f", {"s": "é < 日 & b", "a": "5", "n": '{"l": [1, {"z": null}]}'})]


def test_a_parser_that_this_vllm_has_not_is_refused() -> None:
    with pytest.raises(EngineStartFailed, match="has no tool parser of that name"):
        toolparsers.load("unheard_of")


async def test_a_client_gets_calls_of_its_tools_and_an_agent_makes_them(tmp_path: Path) -> None:
    async def look(arguments: dict[str, Any], _: CallContext) -> str:
        return f"rain in {arguments['s']}"

    tool = BodyTool("get_weather", look, parameters=TOOLS[1].parameters)
    first = "So: " + QWEN_CALL.format(name="get_weather", parameters=QWEN_PARAMETER.format(key="s", value="Köln"))
    rules = (Rule(match="rain in Köln", answer="It rains.", within="prompt"), Rule(match="", answer=first))
    config = ModelConfig(model="m", engine="scripted", max_model_len=20_000, tool_format="vllm:qwen3_coder")
    async with served(tmp_path, config, Script(rules=rules), [tool]) as service:
        question = (Message("user", "What is the weather?"),)
        asked = ChatRequest(id="r", model="m", messages=question, tools=TOOLS)
        events = [event async for event in await service.chat(asked)]
        assert [event.name for event in events if isinstance(event, ToolCallOpened)] == ["get_weather"]
        arguments = "".join(event.text for event in events if isinstance(event, ToolCallArguments))
        assert json.loads(arguments) == {"s": "Köln"}
        assert events[-1] == ChoiceFinished(0, "tool_calls")
        assert text_of(events) == "So: "
        events = [event async for event in await service.chat(ChatRequest(id="s", model="agent/a", messages=question))]
        assert [(each.name, each.text) for each in events if isinstance(each, ToolEnded)] == [
            ("get_weather", "rain in Köln")
        ]
        assert text_of(events).endswith("It rains.")


@pytest.mark.parametrize("wanted", ["auto", "vllm:qwen3_coder"])
async def test_without_vllm_a_models_calls_are_text_or_it_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Literal["auto", "vllm:qwen3_coder"]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.tool_parsers", None)
    template = tmp_path / "template.jinja"
    template.write_text("{{ tools }}<tool_call><function=f><parameter=a>{{ messages[0].content }}")
    config = ModelConfig(
        model="m", engine="scripted", max_model_len=20_000, tool_format=wanted, chat_template=str(template)
    )
    text = TEXTS["qwen3_coder"][0]
    async with served(tmp_path, config, Script(rules=(Rule(answer=text),)), []) as service:
        request = ChatRequest(id="r", model="m", messages=(Message("user", "x"),), tools=TOOLS, deadline_s=0.5)
        if wanted == "auto":
            assert text_of([event async for event in await service.chat(request)]) == text
        else:
            with pytest.raises(EngineUnavailable, match="tool_format vllm:qwen3_coder needs vLLM"):
                await service.chat(request)


@asynccontextmanager
async def served(folder: Path, config: ModelConfig, script: Script, tools: list[BodyTool]) -> AsyncIterator[Service]:
    """The service with one scripted model, and an agent that has all tools."""
    model = ServedModel(
        "m",
        (),
        "chat",
        config,
        None,
        0,
        ByteTokenizer,
        (lambda: ScriptedEngine(script, max_model_len=20_000, max_running=4),),
    )
    handles = HandleStore(folder / "handles")
    await handles.open()
    agency = Agency({"a": AgentConfig(model="m", tools=("*",), routing=False)}, Toolbox(tools, handles), None)
    service = Service((model,), SchedulerConfig(restart_backoff_s=0.01), lambda _: None, agency=agency)
    async with asyncio.TaskGroup() as tasks:
        await service.start(tasks)
        try:
            yield service
        finally:
            await service.stop(1.0)


def progress_of(tool_format: str, text: str) -> list[Heard]:
    """What is heard of a run whose model said this."""
    progress = Progress("run_1")
    began = Began(
        agent="a", model="m", messages=(Message("user", "x"),), tools=TOOLS, tool_format=tool_format, prompt=[1]
    )
    ended = StepEnded(
        reason="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=1, queue_s=0.0, ttft_s=0.0, decode_s=0.0
    )
    events = (began, StepBegan(step=0, model="m"), Said(ids=[2], text=text), ended)
    return [heard for event in events for heard in progress.apply(event)]
