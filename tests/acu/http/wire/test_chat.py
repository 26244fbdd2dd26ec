"""From a chat body to the orchestrator's value, field by field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from acu.http.errors import BadRequest
from acu.http.wire.chat import CHAT_DECODER, ChatBody, chat_request
from acu.http.wire.sampling import HINTS, Envelope
from agentflow.messages import Caller, ChatRequest, Message, Sampling, Structured, Tool, ToolCall, ToolChoice

PLAIN = Sampling()
CALLER = Caller(tenant="t", name="k")
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def decoded(defaults: Sampling = PLAIN, /, **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return chat_request(CHAT_DECODER.decode(msgspec.json.encode(body)), Envelope("chatcmpl-1", CALLER, 2.0, defaults))


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decoded(**fields)
    return caught.value


def test_the_least_that_can_be_said() -> None:
    assert decoded() == ChatRequest(
        id="chatcmpl-1",
        model="m",
        messages=(Message("user", "hi"),),
        tool_choice=ToolChoice("none"),
        sampling=Sampling(),
        deadline_s=2.0,
        caller=CALLER,
    )


def test_all_of_the_sampling_arrives() -> None:
    request = decoded(
        max_completion_tokens=50, temperature=0, top_p=0.5, n=3, seed=-7, stop=["a", "b"], presence_penalty=-2,
        frequency_penalty=2, logit_bias={"42": -100}, logprobs=True, top_logprobs=20, top_k=5, min_p=0.1,
        repetition_penalty=1.1, ignore_eos=True, min_tokens=5, stop_token_ids=[1, 2], include_stop_str_in_output=True,
        skip_special_tokens=False, structured_outputs={"regex": "a+"}, priority=-3,
    )  # fmt: skip
    assert request.n == 3
    assert request.priority == -3
    assert request.sampling == Sampling(
        max_tokens=50, min_tokens=5, temperature=0, top_p=0.5, top_k=5, min_p=0.1, presence_penalty=-2,
        frequency_penalty=2, repetition_penalty=1.1, seed=-7, stop=("a", "b"), stop_token_ids=(1, 2),
        include_stop_str_in_output=True, ignore_eos=True, skip_special_tokens=False, logit_bias={42: -100},
        logprobs=20, structured=Structured("regex", "a+", "structured_outputs.regex"),
    )  # fmt: skip


def test_every_optional_field_may_be_null() -> None:
    nulls = dict.fromkeys(set(ChatBody.__struct_fields__) - {"model", "messages"})
    assert decoded(**nulls) == decoded()


def test_hints_are_accepted_and_change_nothing() -> None:
    values: dict[str, Any] = dict.fromkeys(HINTS, "x") | {"metadata": {"a": "b"}}
    values["prompt_cache_options"] = {"ttl": "30m"}
    values["modalities"] = ["text"]
    assert decoded(**values) == decoded()
    assert set(HINTS) < set(ChatBody.__struct_fields__)


def test_a_run_is_stored_unless_the_request_says_that_it_is_not() -> None:
    assert [decoded(**given).store for given in ({}, {"store": None}, {"store": True}, {"store": False})] == [
        True, True, True, False
    ]  # fmt: skip


@pytest.mark.parametrize("modalities", [[], ["audio"], ["text", "audio"], ["text", "text"]])
def test_no_modality_but_text_is_served(modalities: list[str]) -> None:
    error = refused(modalities=modalities)
    assert (error.code, error.param) == ("unsupported_parameter", "modalities")


def test_every_parameter_that_openais_client_knows_is_known_here() -> None:
    assert CompletionCreateParamsBase.__annotations__.keys() <= set(ChatBody.__struct_fields__)


def test_a_hint_on_a_text_part_changes_nothing() -> None:
    part = {"type": "text", "text": "hi"}
    hinted = part | {"prompt_cache_breakpoint": {"mode": "explicit"}}
    assert decoded(messages=[{"role": "user", "content": [hinted]}]) == decoded()


DEFAULTS = Sampling(
    temperature=0.7,
    top_p=0.8,
    top_k=20,
    min_p=0.05,
    presence_penalty=1.5,
    frequency_penalty=0.5,
    repetition_penalty=1.05,
)


def test_what_a_request_leaves_open_the_model_decides() -> None:
    assert decoded(DEFAULTS).sampling == DEFAULTS
    assert decoded(DEFAULTS, temperature=None, top_k=None).sampling == DEFAULTS


def test_what_a_request_says_wins_even_where_it_says_openais_default() -> None:
    plain = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0,
             "repetition_penalty": 1}  # fmt: skip
    assert decoded(DEFAULTS, **plain).sampling == Sampling()
    assert decoded(DEFAULTS, temperature=0).sampling == msgspec.structs.replace(DEFAULTS, temperature=0)


@pytest.mark.parametrize(("older", "newer", "expected"), [(5, None, 5), (None, 6, 6), (7, 7, 7)])
def test_both_names_of_max_tokens_serve(older: int | None, newer: int | None, expected: int) -> None:
    assert decoded(max_tokens=older, max_completion_tokens=newer).sampling.max_tokens == expected


def test_contradicting_limits_are_refused() -> None:
    assert refused(max_tokens=5, max_completion_tokens=6).param == "max_tokens"
    assert refused(max_tokens=5, min_tokens=6).param == "min_tokens"


def test_stop_may_be_one_string() -> None:
    assert decoded(stop="end").sampling.stop == ("end",)


def test_top_k_of_minus_one_is_off() -> None:
    assert decoded(top_k=-1).sampling.top_k == 0


def test_logprobs_without_alternatives_are_zero_of_them() -> None:
    assert decoded(logprobs=True).sampling.logprobs == 0
    assert decoded(logprobs=False).sampling.logprobs is None


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert decoded(messages=[{"role": "user", "content": parts}]).messages == (Message("user", "ab"),)


def test_an_answer_of_ours_may_come_back_with_the_call_that_it_made() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
              "function_call": None, "tool_calls": [call]}  # fmt: skip
    result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    request = decoded(messages=[{"role": "user", "content": "x"}, answer, result])
    assert request.messages[1] == Message("assistant", None, tool_calls=(ToolCall("call_1", "f", "{}"),))
    assert request.messages[2] == Message("tool", "42", tool_call_id="call_1")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": []}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "messages[0].tool_call_id"),
        (
            {"role": "user", "content": "x", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]},
            "messages[0].tool_calls",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": "x", "name": "a\0"}, "messages[0].name"),
    ],
)
def test_a_message_that_cannot_be_is_refused_at_its_place(message: dict[str, Any], param: str) -> None:
    assert refused(messages=[message]).param == param


def test_tools_arrive_with_their_schemas() -> None:
    request = decoded(tools=[WEATHER], parallel_tool_calls=False)
    assert request.tools == (Tool("weather", None, {"type": "object", "properties": {}}),)
    assert request.tool_choice == ToolChoice("auto")
    assert request.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", ToolChoice("none")),
        ("auto", ToolChoice("auto")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "weather"}}, ToolChoice("named", "weather")),
    ],
)
def test_a_tool_can_be_forced_forbidden_or_left_to_the_model(choice: Any, expected: ToolChoice) -> None:
    assert decoded(tools=[WEATHER], tool_choice=choice).tool_choice == expected


def test_json_can_be_asked_for_in_both_ways() -> None:
    assert decoded(response_format={"type": "text"}).sampling.structured is None
    assert decoded(response_format={"type": "json_object"}).sampling.structured == Structured("json_object")
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
    assert decoded(response_format=wanted).sampling.structured == Structured(
        "json", schema, "response_format.json_schema.schema"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"json": {"type": "object"}}, Structured("json", {"type": "object"}, "structured_outputs.json")),
        ({"json": "{}"}, Structured("json", "{}", "structured_outputs.json")),
        ({"choice": ["a", "b"]}, Structured("choice", ["a", "b"], "structured_outputs.choice")),
        ({"grammar": "root ::= 'a'"}, Structured("grammar", "root ::= 'a'", "structured_outputs.grammar")),
        ({"json_object": True}, Structured("json_object", None, "structured_outputs.json_object")),
    ],
)
def test_vllms_structured_outputs_are_taken(given: dict[str, Any], expected: Structured) -> None:
    assert decoded(structured_outputs=given).sampling.structured == expected


def test_two_forms_for_one_answer_are_refused() -> None:
    both = {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}
    assert refused(**both).param == "structured_outputs"
    assert refused(structured_outputs={}).param == "structured_outputs"


def test_include_usage_is_off_unless_asked_for() -> None:
    def body(**fields: Any) -> ChatBody:
        raw = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
        return CHAT_DECODER.decode(msgspec.json.encode(raw))

    assert body(stream=True).include_usage is False
    assert body(stream=True, stream_options={"include_usage": True}).include_usage is True
