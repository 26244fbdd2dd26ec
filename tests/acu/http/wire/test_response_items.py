"""Items are read as they are sent, and as answers gave them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from acu.http.errors import BadRequest
from acu.http.wire.response_items import InputItem, read_items
from acu.http.wire.response_objects import item_object
from agentflow.responses.items import CallItem, Item, MessageItem, ResultItem, ToolItem


def read(*items: dict[str, Any]) -> tuple[Item, ...]:
    return read_items(msgspec.json.decode(msgspec.json.encode(items), type=list[InputItem]), "input")


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("Hello.", ("Hello.",)),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b", "annotations": []}], ("a", "b")),
        ([{"type": "refusal", "refusal": "No."}], ("No.",)),
    ],
)
def test_a_message_is_text_or_parts_of_text(content: Any, texts: tuple[str, ...]) -> None:
    (item,) = read({"role": "user", "content": content})
    assert isinstance(item, MessageItem)
    assert (item.role, item.texts, item.id[:4]) == ("user", texts, "msg_")


def test_what_an_answer_gave_can_be_sent_back() -> None:
    items: list[Item] = [
        MessageItem(id="msg_1", role="assistant", texts=("I look.",)),
        CallItem(id="fc_1", call_id="c1", name="f", arguments="{}"),
        ResultItem(id="fco_1", call_id="c1", output="r"),
        ToolItem(id="mcp_1", name="t", arguments="{}", output="o"),
    ]
    sent = [msgspec.json.decode(msgspec.json.encode(item_object(item))) for item in items]
    found = read(*sent)
    assert [msgspec.structs.replace(item, id="") for item in found] == [
        msgspec.structs.replace(item, id="") for item in items
    ]
    search = item_object(ToolItem(id="fs_1", name="file_search", arguments='{"query": "q"}', output="o"))
    assert read(msgspec.json.decode(msgspec.json.encode(search)), {"type": "reasoning", "summary": []}) == ()


def test_a_tools_error_comes_back_as_one() -> None:
    failed = item_object(ToolItem(id="mcp_1", name="t", arguments="{}", output="It broke.", status="failed"))
    (item,) = read(msgspec.json.decode(msgspec.json.encode(failed)))
    assert isinstance(item, ToolItem)
    assert (item.status, item.output) == ("failed", "It broke.")


@pytest.mark.parametrize(
    ("arguments", "queries"), [('{"queries": ["a", "b"]}', ["a", "b"]), ("[", []), ("", []), ("{}", [])]
)
def test_a_search_tells_what_it_was_for_as_far_as_that_can_be_read(arguments: str, queries: list[str]) -> None:
    shown = item_object(ToolItem(id="fs_1", name="file_search", arguments=arguments))
    assert getattr(shown, "queries", None) == queries


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ({"type": "item_reference", "id": "x"}, "input[0].type", "unsupported_item"),
        ({"type": "nonsense"}, "input[0].type", "unsupported_item"),
        ({"content": "x"}, "input[0].role", "missing_required_parameter"),
        ({"role": "user"}, "input[0].content", "missing_required_parameter"),
        ({"role": "user", "content": []}, "input[0].content", "invalid_value"),
        ({"role": "user", "content": "\0"}, "input[0].content", "invalid_value"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0]", "unsupported_content"),
        ({"role": "user", "content": [{"type": "text"}]}, "input[0].content[0].text", "missing_required_parameter"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments", "missing_required_parameter"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id", "missing_required_parameter"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output", "missing_required_parameter"),
        ({"type": "mcp_call", "arguments": "{}"}, "input[0].name", "missing_required_parameter"),
    ],
)
def test_what_cannot_be_read_is_named(item: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(item)
    assert (caught.value.param, caught.value.code) == (param, code)
