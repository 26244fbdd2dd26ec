"""What /v1/responses does not do is refused with the name of the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.acu.http.library_serving import client
from tests.acu.http.response_serving import serving_responses

FUNCTION: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"background": True}, "background", "unsupported_parameter"),
    ({"top_logprobs": 2}, "top_logprobs", "unsupported_parameter"),
    ({"include": ["message.output_text.logprobs"]}, "include", "unsupported_parameter"),
    ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_tool"),
    ({"tools": [{"type": "mcp", "name": "x"}]}, "tools[0].type", "unsupported_tool"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name", "invalid_value"),
    ({"tools": [{**FUNCTION, "parameters": {"type": "array"}}]}, "tools[0].parameters", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name", "invalid_value"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", "unsupported_parameter"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "missing_required_parameter"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "unsupported_item"),
    ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type", "unsupported_item"),
    ({"input": []}, "input", "missing_required_parameter"),
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": "\0"}, "input", "invalid_value"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
    ({"previous_response_id": "resp_" + "0" * 24}, "previous_response_id", "previous_response_not_found"),
    (
        {"previous_response_id": "resp_1", "conversation": "conv_1"},
        "previous_response_id",
        "mutually_exclusive_parameters",
    ),
    ({"conversation": "conv_1", "store": False}, "store", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"metadata": {"a": "\0"}}, "metadata.a", "invalid_value"),
    ({"extra_body": {"nonsense": 1}}, "nonsense", "unknown_parameter"),
    ({"model": "agent/desk", "tools": [{**FUNCTION, "name": "calculator"}]}, "tools", "invalid_value"),
]


async def test_what_is_not_done_is_refused_with_the_name_of_the_field(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        for fields, param, code in REFUSED:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.responses.create(**{"model": "large", "input": "hello", **fields})
            assert (caught.value.param, caught.value.code) == (param, code), fields


async def test_models_and_agents_that_there_are_not_are_named(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        for model in ("nobody", "agent/nobody"):
            with pytest.raises(openai.NotFoundError) as caught:
                await api.responses.create(model=model, input="hello")
            assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
        # What was refused is not kept.
        state = (await served.service.agents.archive()).state
        assert await state.scan("alice", "response") == []
        assert await state.scan("alice", "run") == []


async def test_queries_are_checked(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.responses.create(model="large", input="hello")
        for query, param in [
            ({"starting_after": "1"}, "starting_after"),
            ({"stream": "true", "starting_after": "-1"}, "starting_after"),
            ({"stream": "maybe"}, "stream"),
            ({"nonsense": "1"}, "nonsense"),
        ]:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.responses.retrieve(made.id, extra_query=query)
            assert caught.value.param == param
        with pytest.raises(openai.BadRequestError) as caught:
            await api.responses.input_items.list(made.id, limit=101)
        assert caught.value.param == "limit"
