"""The form that a small model fills in: what it reads, and what its grammar leaves it."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.agents import form
from agentflow.messages import Message, Tool

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where.", "x-from-user": "words"},
        "request": {"type": "string", "x-from-user": "message"},
        "note": {"type": "string", "description": "What else."},
        "nights": {"type": "integer"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = Tool("stay", "Book a stay.", SCHEMA)


def fields(*said: str) -> dict[str, Any]:
    """The fields of the grammar's schema after these turns of a user's."""
    sampling = form.sampling(TOOL, [Message("user", text) for text in said])
    assert sampling.structured is not None
    properties: dict[str, Any] = sampling.structured.value["properties"]
    return properties


def test_the_model_reads_the_fields_and_the_end_of_the_conversation_without_its_instructions() -> None:
    conversation = [
        Message("system", "Be kind."),
        Message("user", "first"),
        Message("assistant", "one"),
        Message("user", "second"),
        Message("assistant", "two"),
        Message("user", "third"),
    ]
    head, *turns = form.messages(conversation, TOOL)
    assert head.role == "system"
    assert head.content is not None
    assert "Be kind" not in head.content
    assert "Form: stay" in head.content
    assert "- city (string, required): Where." in head.content
    assert "- nights (integer, optional)" in head.content
    assert [turn.content for turn in turns] == ["second", "two", "third"]


def test_phrases_are_words_that_stand_together_as_they_are_written() -> None:
    found = form.phrases("Sunset in Xi'an on 24 December, please!")
    assert {"Xi'an", "24 December", "in Xi'an", "please"} <= set(found)
    assert "24" not in found  # figures alone name nothing
    assert not any("," in phrase for phrase in found)  # nor does a phrase go on behind a comma


def test_chinese_phrases_are_characters_that_stand_together() -> None:
    found = form.phrases("上海明天怎么样？")  # noqa: RUF001 - as people write it
    assert {"上海", "明天", "上海明天怎么样"} <= set(found)
    assert "？" not in "".join(found)  # noqa: RUF001 - a Chinese question mark
    assert {"巴黎", "12月24日"} <= set(form.phrases("巴黎12月24日几点天黑"))


def test_a_text_without_words_and_a_long_one_have_no_phrases() -> None:
    assert form.phrases("") == []
    assert form.phrases("?! 17 ...") == []
    assert form.phrases("\ud800\x00") == form.phrases("\x00") == []
    assert form.phrases(" ".join(f"word{number}" for number in range(1000))) == []


def test_a_field_of_the_users_words_is_one_of_the_phrases_of_the_turns_that_are_read() -> None:
    field = fields("Sunny in Rome?", "and in Paris?")["city"]
    assert {"Paris", "Rome"} <= set(field["enum"])
    assert field["enum"].index("Paris") < field["enum"].index("Rome")
    assert fields("?")["city"] == {**SCHEMA["properties"]["city"], "maxLength": form.LEAST_TEXT}  # type: ignore[index]


def test_names_in_a_long_text_are_not_listed() -> None:
    field = {"type": "string", "x-from-user": "name"}
    assert taken(field, "巴黎，" * form.PHRASED) == {**field, "maxLength": form.MAX_TEXT}  # noqa: RUF001 - as people write it
    assert taken(field, "巴黎，" * form.PHRASED, "罗马") == {"type": "string", "enum": ["罗马"]}  # noqa: RUF001


def test_a_field_of_the_users_message_is_the_last_one_whole() -> None:
    assert fields("40 euros", "in yen?")["request"] == {"type": "string", "enum": ["in yen?"]}
    assert "enum" not in fields("x" * (form.MAX_TEXT + 1))["request"]


def test_fields_without_the_keyword_are_as_the_schema_has_them_with_a_bound_for_texts() -> None:
    found = fields("Paris, 3 nights")
    assert found["note"] == {"type": "string", "description": "What else.", "maxLength": form.LEAST_TEXT}
    assert found["nights"] == {"type": "integer"}


def test_without_a_conversation_nothing_is_taken_from_it() -> None:
    sampling = form.sampling(TOOL)
    assert sampling.structured is not None
    assert "enum" not in sampling.structured.value["properties"]["city"]
    assert sampling.temperature == 0.0


def test_lists_get_a_bound_and_what_has_one_keeps_it() -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 40}
    assert form.bounded(schema) == {**schema, "maxItems": 40}
    assert form.bounded({"type": "string", "enum": ["a"]}) == {"type": "string", "enum": ["a"]}
    assert form.bounded({"default": {"type": "string"}}) == {"default": {"type": "string"}}


def taken(field: dict[str, Any], *said: str, required: bool = True) -> Any:
    """What the grammar makes of one field of a tool after these turns of a user's; None where it has no such field."""
    schema = {"type": "object", "properties": {"it": field}, "required": ["it"] if required else []}
    sampling = form.sampling(Tool("do", "", schema), [Message("user", text) for text in said])
    assert sampling.structured is not None
    return sampling.structured.value["properties"].get("it")


def test_a_text_that_says_nothing_of_itself_is_words_of_the_user_or_a_message_whole() -> None:
    said = "What is the deployment status of billing?"
    for field in ({"type": "string"}, {"type": "string", "title": "Service", "default": "web"}):
        choices = taken(field, "hello", said)["enum"]
        assert {"billing", "deployment status", said, "hello"} <= set(choices)
        assert choices[-2:] == [said, "hello"]  # the likelier ones stand first
    assert taken({"type": "string"}, "?!") == {"type": "string", "maxLength": form.LEAST_TEXT}


@pytest.mark.parametrize(
    "field", [{"description": "A title."}, {"minLength": 2}, {"x-from-user": "free"}, {"x-from-user": 7}]
)
def test_a_text_that_says_anything_of_itself_is_written_freely(field: dict[str, Any]) -> None:
    assert taken({"type": "string", **field}, "billing") == {"type": "string", **field, "maxLength": form.LEAST_TEXT}


def test_a_text_is_as_long_as_what_the_user_said_at_most() -> None:
    field = {"type": "string", "description": "A title."}
    assert taken(field, "x" * 200, "and y")["maxLength"] == 200
    assert taken(field, "x" * 5000)["maxLength"] == form.MAX_TEXT
    assert taken({**field, "minLength": 150}, "x")["maxLength"] == 150
    assert taken({**field, "maxLength": 1000}, "x")["maxLength"] == 1000
    assert taken({"type": "array", "items": field}, "x")["items"]["maxLength"] == form.LEAST_TEXT


def test_a_day_is_what_the_user_last_called_one_and_never_another_word() -> None:
    day = {"type": "string", "x-from-user": "day", "description": "When."}
    assert taken(day, "When does the sun rise in Athens tomorrow?") == {"type": "string", "enum": ["tomorrow"]}
    assert taken(day, "in Rome on Friday?", "and in Paris?")["enum"] == ["Friday"]
    assert taken(day, "in Rome on Friday?", "and on 3 May?")["enum"] == ["3 May"]


def test_the_words_of_a_day_are_for_the_field_that_asks_for_it_alone() -> None:
    fields = {"city": {"type": "string", "x-from-user": "words"}, "day": {"type": "string", "x-from-user": "day"}}
    tool = Tool("sun", "", {"type": "object", "properties": fields, "required": ["city", "day"]})
    for text, city, day in (("巴黎12月24日几点天黑", "巴黎", "12月24日"), ("Athens tomorrow?", "Athens", "tomorrow")):
        sampling = form.sampling(tool, [Message("user", text)])
        assert sampling.structured is not None
        found = sampling.structured.value["properties"]
        assert city in found["city"]["enum"]
        assert not [phrase for phrase in found["city"]["enum"] if "12月24" in phrase or "tomorrow" in phrase]
        assert found["day"]["enum"] == [day]
    assert taken({"type": "string", "x-from-user": "words"}, "tomorrow")["enum"] == ["tomorrow"]


def test_a_day_that_was_not_named_is_left_out_where_it_may_be() -> None:
    day = {"type": "string", "x-from-user": "day", "default": "today"}
    assert taken(day, "Sunny in Athens?", required=False) is None
    assert taken(day, "Sunny in Athens?") == {**day, "maxLength": form.LEAST_TEXT}
    assert taken(day, "x" * 5000, required=False) is None


def test_a_day_that_was_named_is_not_left_out() -> None:
    day = {"type": "string", "x-from-user": "day", "default": "today"}
    tool = Tool("sun", "", {"type": "object", "properties": {"day": day, "note": {"type": "string"}}})
    for text, required in (("Sunny tomorrow?", ["day"]), ("Sunny?", [])):
        sampling = form.sampling(tool, [Message("user", text)])
        assert sampling.structured is not None
        assert sampling.structured.value["required"] == required
    sampling = form.sampling(tool, [Message("user", "Sunny in Rome tomorrow?"), Message("user", "And in Paris?")])
    assert sampling.structured is not None
    assert sampling.structured.value["required"] == []
    assert sampling.structured.value["properties"]["day"]["enum"] == ["tomorrow"]


@pytest.mark.parametrize(
    ("said", "words", "names"),
    [
        ("巴黎12月24日几点天黑", {"巴黎", "天黑"}, {"巴黎"}),
        ("后天悉尼的太阳几点升起", {"悉尼", "太阳", "升起"}, {"悉尼", "升起"}),
        ("When is sunset in The Hague tomorrow?", {"The Hague", "sunset", "Hague"}, {"The Hague", "Hague"}),
        ("太阳", {"太阳"}, {"太", "阳", "太阳"}),
        ("sunset", {"sunset"}, {"sunset"}),
    ],
)
def test_a_name_is_none_of_the_words_by_which_the_tool_is_found_unless_there_are_no_others(
    said: str, words: set[str], names: set[str]
) -> None:
    properties = {
        "words": {"type": "string", "x-from-user": "words"},
        "name": {"type": "string", "x-from-user": "name"},
        "day": {"type": "string", "x-from-user": "day"},
    }
    tool = Tool("sun", "", {"type": "object", "properties": properties, "required": ["words", "name"]})
    sampling = form.sampling(tool, [Message("user", said)], ("太阳", "天黑", "sunset"))
    assert sampling.structured is not None
    found = {name: set(field["enum"]) for name, field in sampling.structured.value["properties"].items()}
    assert words <= found["words"]
    assert not {"点天", "When", "in The Hague"} & found["words"]
    assert found["name"] == names


def offered(source: str, *said: str) -> list[str]:
    """What the grammar has of these turns for a field with that source, of a tool that is found by a few words."""
    tool = Tool("do", "", {"type": "object", "properties": {"it": {"type": "string", "x-from-user": source}}})
    found = form.sampling(tool, [Message("user", text) for text in said], ("天气", "冷吗", "weather")).structured
    assert found is not None
    choices: list[str] = found.value["properties"]["it"]["enum"]
    return choices


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("巴塞罗那几点了", "巴塞罗那"),
        ("永和天气怎么样", "永和"),
        ("高要天气", "高要"),
        ("共和几点了", "共和"),
        ("从化怎么样", "从化"),
        ("那曲几点了", "那曲"),
        ("政和今天冷吗", "政和"),
        ("巴塞罗那天气怎么样", "巴塞罗那"),
    ],
)
def test_a_name_with_a_character_of_function_words_may_be_taken(said: str, name: str) -> None:
    assert name in offered("words", said)
    assert name in offered("name", said)


def test_what_lies_within_a_longer_stretch_and_ends_with_a_function_word_is_none() -> None:
    for source in ("words", "name"):
        assert "北京和" not in offered(source, "北京和上海天气")
        assert "悉尼的" not in offered(source, "悉尼的天气")


def test_a_name_of_chinese_is_a_whole_stretch_and_a_single_character_one_where_there_is_nothing_else() -> None:
    assert offered("name", "莫斯科冷吗") == ["莫斯科"]
    assert offered("name", "weather in Q?") == ["Q"]
    assert offered("name", "津天气") == ["津"]
    assert offered("name", "weather in Q, near Rome?") == ["near", "Rome", "near Rome"]
    assert offered("name", "weather in Rome?", "weather in Q?") == ["Rome"]
    assert offered("name", "weather?") == ["weather"]


SCALE = Tool(
    "scale",
    "Scale a service.",
    {
        "type": "object",
        "properties": {
            "service": {"type": "string", "x-from-user": "name"},
            "note": {"type": "string", "x-from-user": "words"},
            "replicas": {"type": "integer", "minimum": 1, "maximum": 20},
            "share": {"anyOf": [{"type": "number", "exclusiveMaximum": 1.0}, {"type": "null"}], "default": None},
        },
        "required": ["service", "note", "replicas"],
    },
)


def scaled(field: str, *said: str) -> list[str]:
    """What may stand in a field of SCALE after these turns of a user's."""
    sampling = form.sampling(SCALE, [Message("user", text) for text in said], ("scale",))
    assert sampling.structured is not None
    choices: list[str] = sampling.structured.value["properties"][field].get("enum", [])
    return choices


@pytest.mark.parametrize("field", ["service", "note"])
@pytest.mark.parametrize(
    ("before", "last", "inside", "outside"),
    [
        ("Scale checkout to 5 replicas", "Restart the ledger service", "ledger", "checkout"),
        ("What is the status of billing?", "Restart search", "search", "billing"),
        ("checkout 服务是谁负责的", "ledger 服务是谁负责的", "ledger", "checkout"),
    ],
)
def test_a_name_is_taken_from_the_last_turn_where_that_has_one(
    field: str, before: str, last: str, inside: str, outside: str
) -> None:
    found = scaled(field, before, last)
    assert inside in found
    assert outside not in found


@pytest.mark.parametrize("last", ["And to 8 replicas?", "那 8 个呢", "8", "And for how long, in hours?"])
def test_a_follow_up_and_a_turn_without_names_leave_it_to_the_turns_before(last: str) -> None:
    assert "checkout" in scaled("service", "Scale checkout to 5", last)


def test_a_number_is_not_cut_to_its_bounds_which_the_tools_own_schema_tells_of() -> None:
    sampling = form.sampling(SCALE, [Message("user", "Scale ledger to 50")])
    assert sampling.structured is not None
    properties = sampling.structured.value["properties"]
    assert properties["replicas"] == {"type": "integer"}
    assert properties["share"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert SCALE.parameters["properties"]["replicas"]["maximum"] == 20


PRICE = Tool(
    "price",
    "",
    {
        "type": "object",
        "properties": {
            "item": {"type": "string", "x-from-user": "words"},
            "currency": {"type": "string", "enum": ["EUR", "USD"]},
            "kind": {"enum": ["net", "gross"], "x-from-user": "free"},
            "count": {"type": "integer"},
            "note": {"type": "string", "description": "What else."},
            "unit": {"enum": ["piece", "box"]},
        },
        "required": ["item", "unit"],
    },
)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (("What does a gasket cost?",), set()),
        (("What does a gasket cost in usd?",), {"currency"}),
        (("What do 12 gaskets cost?",), {"count"}),
        (("What do 12 gaskets cost in USD?", "And screws?"), {"currency", "count"}),
        (("What do 12 gaskets cost in USD?", "What does a screw cost?"), set()),
        (("垫圈多少钱",), set()),
        (("三个垫圈多少USD",), {"currency", "count"}),
    ],
)
def test_a_choice_and_a_number_that_may_be_left_out_are_in_the_form_where_the_user_says_one(
    said: tuple[str, ...], left: set[str]
) -> None:
    sampling = form.sampling(PRICE, [Message("user", text) for text in said])
    assert sampling.structured is not None
    assert sampling.structured.value["properties"].keys() == {"item", "kind", "note", "unit"} | left
    assert sampling.structured.value["properties"]["unit"] == {"enum": ["piece", "box"]}


def test_a_day_is_no_number_for_a_tool_that_takes_days() -> None:
    day = {"type": "string", "x-from-user": "day"}
    schema = {"type": "object", "properties": {"day": day, "nights": {"type": "integer"}}}
    for text, found in (("A room on 3 May", {"day"}), ("A room on 3 May for 2 nights", {"day", "nights"})):
        sampling = form.sampling(Tool("stay", "", schema), [Message("user", text)])
        assert sampling.structured is not None
        assert sampling.structured.value["properties"].keys() == found


@pytest.mark.parametrize("said", [(), ("What does a gasket cost?",)])
def test_no_field_comes_into_the_form_that_the_tool_does_not_have(said: tuple[str, ...]) -> None:
    sampling = form.sampling(PRICE, [Message("user", text) for text in said])
    assert sampling.structured is not None
    assert sampling.structured.value["additionalProperties"] is False


def test_a_field_that_is_left_out_does_not_come_back_where_the_tool_takes_others_too() -> None:
    for text, more in (("What does a gasket cost?", False), ("12 gaskets in USD", True)):
        tool = Tool("price", "", {**PRICE.parameters, "additionalProperties": True})
        sampling = form.sampling(tool, [Message("user", text)])
        assert sampling.structured is not None
        assert sampling.structured.value["additionalProperties"] is more


FLAG = {"type": "boolean"}


def form_of(text: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The form for a message, of a tool with these parameters."""
    schema = {"type": "object", "properties": fields, **more}
    structured = form.sampling(Tool("order", "", schema), [Message("user", text)]).structured
    assert structured is not None
    return structured.value  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("gift_wrap", "#/properties/gift_wrap"),
        ("gift wrap", "#/properties/gift%20wrap"),
        ("gift/wrap", "#/properties/gift~1wrap"),
        ("gift_wrap", "#/properties/gift_wrap/type"),
    ],
)
def test_a_field_that_another_refers_to_is_not_taken_out(name: str, reference: str) -> None:
    fields = {"item": {"type": "string", "description": "d"}, name: FLAG, "express": {"$ref": reference}, "size": FLAG}
    left = form_of("Order a gasket", fields, required=["item", "express"])
    assert left["properties"].keys() == {"item", name, "express"}


def test_fields_that_are_taken_out_are_not_counted_on() -> None:
    fields = {"name": {"type": "string", "description": "d"}, "size": {"type": "integer"}}
    left = form_of("Update alpha", fields, minProperties=2, required=["name"])
    assert left["properties"].keys() == {"name"}
    assert "minProperties" not in left
    assert left["additionalProperties"] is False
    assert form_of("Update alpha to 3", fields, minProperties=2, required=["name"])["minProperties"] == 2


def test_a_form_stays_open_for_fields_that_are_described_or_required_elsewhere() -> None:
    fields = {"name": {"type": "string", "description": "d"}, "size": {"type": "integer"}}
    others = {"type": "string", "maxLength": 9}
    assert form_of("Update alpha", fields, additionalProperties=others)["additionalProperties"] == others
    assert "additionalProperties" not in form_of("Update alpha", fields, required=["label"])
