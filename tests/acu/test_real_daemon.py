"""The whole appliance with nothing scripted: the real vLLM, the real encoder, the real `openai` client, real kills.

One daemon serves the tests of what it answers; the tests that kill things start their own, and are the last.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import openai
import psutil
import pytest

from acu.models import pull
from tests.acu.realdaemon import RealDaemon, real_daemon
from tests.acu.running import until

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
ROME = "What is the weather in Rome on 15 May?"
STORY = "Tell me a long story about a river and a bridge."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "langs": {"type": "array", "items": {"enum": ["en", "fr", "zh"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "langs"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


def orphaned_shared_memory() -> set[str]:
    """Names in /dev/shm that multiprocessing made and no living process has mapped."""
    mapped = ""
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):
            mapped += Path(f"/proc/{process}/maps").read_text()
    return {name for name in multiprocessing_names() if f"/dev/shm/{name}" not in mapped}


def multiprocessing_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "sem.", "vllm"))}  # noqa: PTH208


SMALL = {"model": "smollm2-135m-instruct", "kv_cache_mb": 512, "max_model_len": 2048}


@pytest.fixture(scope="module")
def cache(real_model_cache: Path) -> Path:
    for name in ("smollm2-135m-instruct", "all-minilm-l6-v2"):
        pull(name, real_model_cache)
    return real_model_cache


@pytest.fixture(scope="module")
def daemon(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    models = {"large": SMALL, "embed": {"model": "all-minilm-l6-v2"}}
    with real_daemon(tmp_path_factory.mktemp("real"), cache, models) as running:
        yield running


@pytest.mark.parametrize("over_unix", [False, True], ids=["tcp", "unix"])
def test_the_capital_of_france_is_paris_whole_and_streamed(daemon: RealDaemon, over_unix: bool) -> None:
    with daemon.client(over_unix=over_unix) as client:
        whole = client.chat.completions.create(model="large", messages=CAPITAL, temperature=0)
        said = whole.choices[0].message.content
        assert said is not None
        assert "Paris" in said
        assert whole.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(
            model="large", messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len([chunk for chunk in chunks if chunk.choices]) > 4


def test_an_answer_in_a_json_schema_validates(daemon: RealDaemon) -> None:
    ask: Any = {
        "model": "large",
        "messages": [{"role": "user", "content": "Describe a person as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}},
        "max_tokens": 200,
        "temperature": 0,
    }
    with daemon.client() as client:
        whole = client.chat.completions.create(**ask).choices[0].message.content
        chunks = client.chat.completions.create(**ask, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    jsonschema.validate(json.loads(whole), PERSON)
    assert streamed == whole


def test_a_named_tool_call_has_arguments_that_validate(daemon: RealDaemon) -> None:
    with daemon.client() as client:
        answer = client.chat.completions.create(
            model="large",
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[{"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            max_tokens=100,
            temperature=0,
        )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)


def test_a_required_tool_call_streams_and_validates(daemon: RealDaemon) -> None:
    with daemon.client() as client:
        chunks = list(
            client.chat.completions.create(
                model="large",
                messages=[{"role": "user", "content": "What is the weather in Paris?"}],
                tools=[
                    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}}
                ],
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=100,
                temperature=0,
                stream=True,
            )
        )
    name, arguments, reasons = "", "", []
    for chunk in chunks:
        choice = chunk.choices[0]
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, reasons[-1]) == ("weather", "tool_calls")
    jsonschema.validate(json.loads(arguments), WEATHER)


def test_the_nearest_of_ten_sentences_is_the_right_one(daemon: RealDaemon) -> None:
    sentences = [
        "The cat sleeps on the warm sofa.",
        "Interest rates were raised by the central bank.",
        "A volcano erupted on the island last night.",
        "The recipe needs two eggs and some flour.",
        "Our train to Berlin was delayed by an hour.",
        "The orchestra played a symphony by Mahler.",
        "Vaccines train the immune system.",
        "The goalkeeper saved a penalty in the final minute.",
        "Quantum computers use superposition.",
        "The museum shows paintings by Monet.",
    ]
    with daemon.client() as client:
        rows = client.embeddings.create(model="embed", input=sentences).data  # the client asks for base64
        vectors = np.array([row.embedding for row in rows])
        assert vectors.shape == (10, 384)
        for text, nearest in (("A kitten naps on the couch.", 0), ("football match", 7), ("monetary policy", 1)):
            (row,) = client.embeddings.create(model="embed", input=text, encoding_format="float").data
            assert int(np.argmax(vectors @ np.array(row.embedding))) == nearest, text


def test_the_travel_desk_answers_a_chat_with_what_its_tool_says(daemon: RealDaemon) -> None:
    options: Any = {"include_usage": True, "include_acu_events": True}
    asked: Any = [{"role": "user", "content": ROME}]
    with daemon.client() as client:
        chunks = list(
            client.chat.completions.create(model="agent/travel", messages=asked, stream=True, stream_options=options)
        )
    started, ended = [more["acu"] for chunk in chunks if "acu" in (more := chunk.model_extra or {})]
    assert (started["type"], started["name"]) == ("tool.started", "weather")
    assert json.loads(started["arguments"]) == {"city": "Rome", "day": "15 May"}
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert said == ended["output"]
    assert said.startswith("Rome, ")
    assert "usually 24 °C by day" in said
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_the_travel_desks_call_is_streamed_and_the_next_response_goes_on_from_it(daemon: RealDaemon) -> None:
    with daemon.client() as client:
        events: list[Any] = list(client.responses.create(model="agent/travel", input=ROME, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert kinds(events) == [
            *("created", "in_progress", "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.done"),
            *("mcp_call.completed", "output_item.done", "output_item.added", "content_part.added", "output_text.done"),
            *("content_part.done", "output_item.done", "completed"),
        ]
        first = events[-1].response
        call, message = first.output
        assert (call.type, call.name, json.loads(call.arguments)["city"]) == ("mcp_call", "weather", "Rome")
        assert message.content[0].text == call.output
        second: Any = client.responses.create(
            model="agent/travel", input="And in Paris?", previous_response_id=first.id
        )
        assert [item.type for item in second.output] == ["mcp_call", "message"]
        assert json.loads(second.output[0].arguments) == {"city": "Paris", "day": "15 May"}  # the day is the first's
        again = list(client.responses.retrieve(first.id, stream=True))
        assert [event.to_dict() for event in again] == [event.to_dict() for event in events]


def test_a_clients_own_call_is_streamed_and_its_result_is_read_from_cached_blocks(daemon: RealDaemon) -> None:
    tools: Any = [{"type": "function", "name": "weather", "description": "d", "parameters": WEATHER, "strict": True}]
    with daemon.client() as client:
        stream = client.responses.create(
            model="large",
            input="What is the weather in Paris?",
            tools=tools,
            tool_choice={"type": "function", "name": "weather"},
            stream=True,
            temperature=0,
        )
        events: list[Any] = list(stream)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert kinds(events) == [
            *("created", "in_progress", "output_item.added", "function_call_arguments.done", "output_item.done"),
            "completed",
        ]
        first = events[-1].response
        (call,) = first.output
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert len(pieces) > 1
        assert "".join(pieces) == call.arguments
        jsonschema.validate(json.loads(call.arguments), WEATHER)
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 24 degrees"}]
        second = client.responses.create(
            model="large", previous_response_id=first.id, input=result, tools=tools, max_output_tokens=40
        )
    assert second.output_text
    assert second.usage is not None
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached >= whole_blocks(daemon, first.usage.input_tokens)


def test_a_runs_next_step_computes_no_whole_block_of_its_last_one_again(daemon: RealDaemon) -> None:
    with daemon.client() as client:
        asked = "Write five sentences about rivers."
        stream = iter(client.responses.create(model="agent/teller", input=asked, stream=True))
        events: list[Any] = [next(stream) for _ in range(8)]
        run = run_of(events)
        daemon.post(f"{run}/messages", {"content": "Now say goodbye."})
        events += stream
    assert events[-1].response.status == "completed"
    one, two = daemon.get(run)["steps"]
    assert two["cached_tokens"] >= whole_blocks(daemon, one["prompt_tokens"] + one["completion_tokens"] - 1)
    assert two["prompt_tokens"] > one["prompt_tokens"] + one["completion_tokens"]


def test_what_was_chosen_for_this_machine_is_told(daemon: RealDaemon) -> None:
    info = daemon.engine()["info"]
    assert info["name"] == "vllm"
    assert info["choices"]["dtype"] in {"bfloat16", "float32"}
    assert info["max_model_len"] == 2048
    (pid,) = info["pids"]  # EngineCore runs the model itself
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    cores = info["choices"]["cores"]
    assert f"OMP_NUM_THREADS={cores if cores <= 4 else cores - 1}".encode() in environment
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, daemon.process.pid) + 5


def test_clients_that_drop_in_mid_stream_free_the_engine(daemon: RealDaemon) -> None:
    with daemon.client() as client:
        for _ in range(20):
            stream = client.chat.completions.create(
                model="large", messages=CAPITAL, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
            )
            next(iter(stream))
            stream.close()

    def idle() -> bool:
        running = daemon.get("/acu/v1/status")["service"]["running"]
        return bool(running == 0 and daemon.engine()["stats"]["outstanding"] == 0)

    until(idle, "nothing runs any more", 30)


def kinds(events: list[Any]) -> list[str]:
    """What the events of a response are, without those of its growing texts."""
    return [event.type.removeprefix("response.") for event in events if not event.type.endswith(".delta")]


def whole_blocks(daemon: RealDaemon, tokens: int) -> int:
    """How many of so many tokens the KV cache can hold: it holds whole blocks."""
    block: int = daemon.engine()["info"]["choices"]["block_size"]
    return tokens // block * block


def run_of(events: list[Any]) -> str:
    """The path of the run that makes a response."""
    return "/acu/v1/runs/" + str(events[0].response.id.replace("resp_", "run_"))


def beginning_of_a_story(client: openai.OpenAI) -> tuple[Iterator[Any], list[Any]]:
    """An agent's response that has begun to speak, and its first events."""
    stream = iter(client.responses.create(model="agent/teller", input=STORY, stream=True))
    return stream, [next(stream) for _ in range(24)]


def check_went_on(daemon: RealDaemon, events: list[Any], seen: list[Any]) -> None:
    """A response whose engine was lost in mid-stream is whole, and nothing of what was `seen` has changed."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.to_dict() for event in events[: len(seen)]] == [event.to_dict() for event in seen]
    log = daemon.get(f"{run_of(events)}/events?limit=1000")["data"]
    types = [event["type"] for event in log]
    assert types.count("resumed") == 1
    lost = types.index("resumed")
    before = [token for event in log[:lost] if event["type"] == "said" for token in event["ids"]]
    assert len(seen) - 4 <= len(before)  # a token each, but for the four that begin it
    assert len(before) - 8 <= log[lost]["kept"] <= len(before)  # of a character's tokens all are kept or none
    assert "said" in types[lost:]
    said = "".join(event["text"] for event in log if event["type"] == "said")
    assert said == events[-1].response.output_text


def test_when_the_engine_is_killed_in_mid_stream_the_reader_is_told_and_the_next_engine_answers(
    cache: Path, tmp_path: Path
) -> None:
    with real_daemon(tmp_path / "d", cache, {"large": SMALL}) as running, running.client() as client:
        pids = running.engine()["info"]["pids"]
        story, seen = beginning_of_a_story(client)
        stream = client.chat.completions.create(
            model="large", messages=CAPITAL, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
        )
        chunks = iter(stream)
        next(chunks)
        os.kill(pids[0], signal.SIGKILL)
        killed_at = time.monotonic()
        with pytest.raises(openai.APIError, match="engine"):
            list(chunks)
        assert time.monotonic() - killed_at < 5
        assert not running.ready()
        # No retry of the client's: it waits in the scheduler for the engine that is starting.
        answer = client.chat.completions.create(model="large", messages=CAPITAL, temperature=0)
        assert "Paris" in (answer.choices[0].message.content or "")
        engine = running.engine()
        assert engine["restarts"] == 1
        assert not set(engine["info"]["pids"]) & set(pids)
        # An agent's run went on behind the tokens that its client had seen.
        check_went_on(running, [*seen, *story], seen)


def test_after_kill_9_of_the_daemon_no_child_lives_and_a_new_daemon_starts(cache: Path, tmp_path: Path) -> None:
    orphans_before = orphaned_shared_memory()
    seen: list[Any] = []
    for delay_s in (0.5, 3.0, 8.0, None):  # in the middle of its start, and when it serves
        with (
            real_daemon(tmp_path / "d", cache, {"large": SMALL}, wait=delay_s is None) as running,
            running.client() as client,
        ):
            if delay_s is None:
                _, seen = beginning_of_a_story(client)
            else:
                time.sleep(delay_s)
            children = running.children()
            running.process.kill()
            running.process.wait()
            _, alive = psutil.wait_procs(children, timeout=5)
            assert not alive, f"{delay_s} s after its start: {alive}"
    with real_daemon(tmp_path / "d", cache, {"large": SMALL}) as running, running.client() as client:
        answer = client.chat.completions.create(model="large", messages=CAPITAL, temperature=0)
        assert "Paris" in (answer.choices[0].message.content or "")
        story = seen[0].response.id
        until(lambda: client.responses.retrieve(story).status != "in_progress", "the story is told", 120)
        check_went_on(running, list(client.responses.retrieve(story, stream=True)), seen)
    assert orphaned_shared_memory() <= orphans_before
