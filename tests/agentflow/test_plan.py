"""What tool_choice and the model's form of calls come to."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from agentflow.config import ModelConfig, ToolFormat
from agentflow.messages import ChatRequest, Message, Sampling, Structured, Tool, ToolChoice
from agentflow.parsing.forced import ListParser
from agentflow.parsing.formats import FORMATS
from agentflow.parsing.marked import MarkedParser
from agentflow.parsing.vllmshapes import PREFIX, SHAPES
from agentflow.plan import tool_use

TOOLS = (Tool("f"),)


@pytest.mark.parametrize(
    ("form", "shown"),
    [("hermes", False), ("llama3", False), ("mistral", True), ("pythonic", False), ("bare", False)],
)
def test_special_tokens_are_shown_where_calls_are_not_known_without_them(form: str, shown: bool) -> None:
    request = ChatRequest(id="r", model="m", messages=(Message("user", "x"),), tools=TOOLS)
    sampling, parser = tool_use(request, TOOLS, form)
    assert sampling.skip_special_tokens is not shown
    assert isinstance(parser(), MarkedParser)


def test_without_tools_or_with_a_form_for_the_whole_answer_there_is_no_parser() -> None:
    request = ChatRequest(id="r", model="m", messages=(Message("user", "x"),), tools=TOOLS)
    structured = ChatRequest(
        id="r",
        model="m",
        messages=(Message("user", "x"),),
        sampling=Sampling(structured=Structured("json", {})),
        tools=TOOLS,
    )
    assert tool_use(request, (), "mistral")[1]() is None
    assert tool_use(request, TOOLS, "none")[1]() is None
    assert tool_use(structured, TOOLS, "mistral") == (structured.sampling, tool_use(request, (), "hermes")[1])


def test_every_form_that_a_model_may_be_said_to_have_has_a_parser() -> None:
    assert get_type_hints(ModelConfig)["tool_format"] == ToolFormat
    assert set(get_args(ToolFormat)) == {*FORMATS, *(PREFIX + name for name in SHAPES), "none", "auto"}


def test_a_call_that_is_asked_for_is_json_whatever_the_form_of_others() -> None:
    request = ChatRequest(
        id="r", model="m", messages=(Message("user", "x"),), tools=TOOLS, tool_choice=ToolChoice("required")
    )
    sampling, parser = tool_use(request, TOOLS, "vllm:qwen3_coder")
    assert sampling.structured is not None
    assert isinstance(parser(), ListParser)
