"""Events of a run go out under stable names, with all of their fields."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from acu.http.errors import BadRequest
from acu.http.wire.runs import EVENT_TYPES, MESSAGE_DECODER, event_list, event_object, event_size, message_content
from agentflow.agents.record import Began, CallEnded, Event, Paused, Said, StepBegan
from agentflow.messages import Message, Tool


def test_every_kind_of_event_has_a_name_of_its_own() -> None:
    assert set(EVENT_TYPES) == set(get_args(Event))
    assert len(set(EVENT_TYPES.values())) == len(EVENT_TYPES)


def test_no_field_of_an_event_hides_its_number_or_its_type() -> None:
    for kind in get_args(Event):
        assert not {"sequence_number", "type"} & set(kind.__struct_fields__)


def test_an_event_has_its_fields_those_with_defaults_too() -> None:
    assert event_object(7, CallEnded(at=1500, call_id="call_1", text="a hat")) == {
        "sequence_number": 7, "type": "call_ended", "at": 1.5, "call_id": "call_1", "text": "a hat", "is_error": False,
        "handle": None, "seconds": 0.0, "answered_at": 1.5,
    }  # fmt: skip
    began = Began(agent="a", model="m", messages=(Message("user", "go"),), tools=(Tool("look"),), prompt=[1])
    told = msgspec.json.decode(msgspec.json.encode(event_object(1, began)))
    assert (told["messages"][0]["content"], told["tools"][0]["name"], told["prompt"]) == ("go", "look", [1])


def test_a_page_that_is_full_may_not_be_the_last() -> None:
    events: list[tuple[int, Event]] = [(1, Paused(at=1)), (2, Paused(at=2))]
    assert event_list(events, 2)["has_more"] is True
    assert event_list(events, 3)["has_more"] is False
    assert event_list([], 3) == {"object": "list", "data": [], "has_more": False}


def test_the_size_of_an_event_grows_with_its_tokens_and_texts() -> None:
    assert event_size(Paused()) < 10
    assert event_size(Said(ids=[1] * 100, text="")) >= 100
    assert event_size(StepBegan(step=0, model="m", prompt=[1] * 9000)) >= 9000
    assert event_size(CallEnded(call_id="c", text="x" * 256_000)) >= 1000
    assert event_size(Began(agent="a", model="m", messages=(Message("user", "x" * 256_000),), prompt=[1] * 50)) >= 1050


def test_a_message_with_nul_characters_is_refused() -> None:
    with pytest.raises(BadRequest, match="content"):
        message_content(MESSAGE_DECODER.decode(b'{"content": "a\\u0000b"}'))
