"""The real engine keeps to what a request constrains it to, and a hostile constraint harms nobody else."""

import asyncio
import json
import time
from pathlib import Path

import jsonschema
import pytest
from tokenizers import Tokenizer

from agentflow.engine.vllm.engine import VllmEngine
from agentflow.errors import InvalidGrammar
from agentflow.messages import Sampling
from tests.agentflow.engine.vllm.chats import Chat, structured

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # vLLM and torch warn while they are imported
]


@pytest.fixture
async def chat(real_engine: VllmEngine, chat_model: Path) -> Chat:
    return Chat(real_engine, Tokenizer.from_file(str(chat_model / "tokenizer.json")))


async def test_a_json_schema_is_kept(chat: Chat) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    answer = json.loads(await chat.text("Describe Paris as JSON.", structured("json", schema), 80))
    jsonschema.validate(answer, schema)


async def test_one_of_is_taken_as_any_of(chat: Chat) -> None:
    schema = {"oneOf": [{"const": "left"}, {"const": "right"}]}
    assert json.loads(await chat.text("Choose.", structured("json", schema))) in ("left", "right")


async def test_options_of_the_compiler_in_a_schema_are_not_obeyed(chat: Chat) -> None:
    schema = {
        "type": "array",
        "items": {"const": 1},
        "minItems": 3,
        "maxItems": 3,
        "x-guidance": {"whitespace_flexible": True, "item_separator": "X"},
    }
    assert json.loads(await chat.text("Count.", structured("json", schema))) == [1, 1, 1]


async def test_a_regular_expression_is_kept(chat: Chat) -> None:
    assert (await chat.text("Say it.", structured("regex", "[ab]{5}-[0-9]{3}")))[5] == "-"


async def test_a_grammar_is_kept(chat: Chat) -> None:
    assert set(await chat.text("Say it.", structured("grammar", 'start: "a" start "b" | "ab"'), 12)) <= {"a", "b"}


async def test_json_object_gives_an_object(chat: Chat) -> None:
    text = await chat.text("Give me JSON.", structured("json_object"), 30)
    assert text.startswith("{")
    assert "\n" not in text.partition('"')[0]  # no running away in blanks


HOSTILE = {
    "exploding repetition": ("regex", "(a|aa)*b{1000}{1000}"),
    "nested quantifiers": ("regex", "((a+)+)+$"),
    "exponential automaton": ("regex", "(.*a.{18}|.*b.{19}|[ab]*c.{20})"),
    "broken expression": ("regex", "(((("),
    "many alternatives": ("regex", "|".join(f"word{n}x*" for n in range(4000))),
    "endless reference": ("json", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "doubling references": (
        "json",
        {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
            | {"d60": {"type": "string"}},
        },
    ),
    "product of alternatives": (
        "json",
        {"allOf": [{"anyOf": [{"properties": {f"{k}{n}": {"type": "string"}}} for k in "pq"]} for n in range(20)]},
    ),
    "ten thousand values": ("json", {"enum": [f"value {n}" for n in range(10_000)]}),
    "ten thousand choices": ("choice", [f"choice {n}" for n in range(10_000)]),
    "huge minimum": ("json", {"type": "array", "minItems": 1_000_000, "items": {"type": "array", "minItems": 10_000}}),
    "pattern in a schema": ("json", {"type": "string", "pattern": "^(.*a.{18}|.*b.{19})$"}),
    "ambiguous grammar": ("grammar", 'start: e\ne: e e | "a" | '),
    "broken grammar": ("grammar", "start: ((((("),
    "doubling grammar": (
        "grammar",
        "start: a0\n" + "\n".join(f'a{n}: "x" | a{n + 1} a{n + 1}' for n in range(1000)) + '\na1000: "y"',
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_constraint_harms_nobody_but_its_request(chat: Chat, name: str) -> None:
    kind, value = HOSTILE[name]
    neighbour = asyncio.ensure_future(chat.deltas("Count to ten.", Sampling(temperature=0, ignore_eos=True), 40))
    longest = 0.0

    async def heartbeat() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    beating = asyncio.ensure_future(heartbeat())
    try:
        async with asyncio.timeout(60):
            deltas = await chat.deltas("Hi", structured(kind, value), 24)
        assert deltas[-1].finish_reason in ("stop", "length", "error")
    except InvalidGrammar as refusal:
        assert refusal.param == "response_format"
    finally:
        beating.cancel()
    assert sum(len(delta.token_ids) for delta in await neighbour) == 40
    assert longest < 2  # the loop was never held by a compiler
    assert "Paris" in await chat.text("What is the capital of France?")
