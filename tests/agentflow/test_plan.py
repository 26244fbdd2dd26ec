"""What tool_choice and the model's form of calls come to."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from agentflow.config import ModelConfig
from agentflow.messages import ChatRequest, Message, Sampling, Structured, Tool
from agentflow.parsing.formats import FORMATS
from agentflow.parsing.marked import MarkedParser
from agentflow.plan import tool_use
from agentflow.prompt import ToolFormat

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
    assert set(get_args(ToolFormat)) == {*FORMATS, "none"}
    assert set(get_args(get_type_hints(ModelConfig)["tool_format"])) == {*FORMATS, "none", "auto"}
