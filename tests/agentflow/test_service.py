"""The service over the scripted engine: what goes in as a request comes out as events."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import pytest

from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.scripted_embedder import ScriptedEmbedder
from agentflow.errors import (
    ContextLengthExceeded,
    Draining,
    EngineDied,
    EngineStartFailed,
    EngineUnavailable,
    InvalidGrammar,
    InvalidRequest,
    UnknownModel,
)
from agentflow.events import ChoiceFinished, Event, TextDelta, ToolCallArguments, ToolCallOpened, Usage
from agentflow.messages import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Message,
    Sampling,
    Structured,
    Tool,
    ToolChoice,
)
from agentflow.run import Run, RunStatus
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import ByteTokenizer

WEATHER = Tool(
    "weather",
    "The weather of a city",
    {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]},
)


class Bench:
    def __init__(self, service: Service, ended: list[Run], engines: list[ScriptedEngine]) -> None:
        self.service = service
        self.ended = ended
        self.engines = engines

    async def chat(self, text: str, **more: Any) -> tuple[list[Event], Usage]:
        request = ChatRequest(id="req", model="m", messages=(Message("user", text),), **more)
        stream = await self.service.chat(request)
        try:
            return [event async for event in stream], stream.usage
        finally:
            await stream.aclose()


@asynccontextmanager
async def bench(script: Script | None = None, max_running: int = 8, **config: Any) -> AsyncIterator[Bench]:
    ended: list[Run] = []
    engines: list[ScriptedEngine] = []

    def engine() -> ScriptedEngine:
        engines.append(ScriptedEngine(script, max_model_len=4096, max_running=max_running))
        return engines[-1]

    models = (
        ServedModel("m", ("large",), "chat", ModelConfig(model="scripted"), None, 1, ByteTokenizer, (engine,)),
        ServedModel(
            "e", ("embed",), "embed", ModelConfig(model="scripted"), None, 1, ByteTokenizer, (ScriptedEmbedder,)
        ),
    )
    service = Service(models, SchedulerConfig(restart_backoff_s=0.01, **config), ended.append)
    async with asyncio.TaskGroup() as tasks:
        await service.start(tasks)
        try:
            yield Bench(service, ended, engines)
        finally:
            await service.stop(1.0)


def text_of(events: list[Event], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.choice == choice)


def says(answer: str, **more: Any) -> Script:
    return Script(rules=(Rule(answer=answer, **more),))


async def test_a_chat_gives_text_then_the_reason_that_it_ended() -> None:
    async with bench(says("hello")) as it:
        events, usage = await it.chat("hi")
        assert text_of(events) == "hello"
        assert events[-1] == ChoiceFinished(0, "stop")
        assert usage.completion_tokens >= 5
        assert usage.prompt_tokens == len(it.ended[0].prompt_token_ids)
        assert (it.ended[0].id, it.ended[0].status) == ("req", RunStatus.FINISHED)


async def test_a_model_answers_to_its_aliases_and_to_no_other_name() -> None:
    async with bench(says("x")) as it:
        stream = await it.service.chat(ChatRequest(id="1", model="large", messages=(Message("user", "hi"),)))
        assert text_of([event async for event in stream]) == "x"
        with pytest.raises(UnknownModel, match="'huge' is not served here. Served: e"):
            await it.service.chat(ChatRequest(id="2", model="huge", messages=(Message("user", "hi"),)))
        with pytest.raises(InvalidRequest, match="makes embeddings"):
            await it.service.chat(ChatRequest(id="3", model="embed", messages=(Message("user", "hi"),)))


async def test_several_answers_come_side_by_side_and_the_prompt_counts_once() -> None:
    async with bench(says("abc")) as it:
        events, usage = await it.chat("hi", n=3)
        assert [text_of(events, choice) for choice in range(3)] == ["abc"] * 3
        assert sorted(event.choice for event in events if isinstance(event, ChoiceFinished)) == [0, 1, 2]
        assert usage.prompt_tokens == len(it.ended[0].prompt_token_ids)
        assert usage.completion_tokens == sum(run.completion_tokens for run in it.ended)
        assert sorted(run.id for run in it.ended) == ["req-0", "req-1", "req-2"]


async def test_more_answers_than_seats_do_not_deadlock() -> None:
    async with bench(says("abc"), max_running=1) as it:
        events, _ = await it.chat("hi", n=4)
        assert [text_of(events, choice) for choice in range(4)] == ["abc"] * 4


async def test_a_prompt_too_long_is_refused_with_both_numbers() -> None:
    async with bench() as it:
        await it.chat("warm up", sampling=Sampling(max_tokens=1))
        with pytest.raises(ContextLengthExceeded, match=r"has \d+ tokens; m has a context of 4096"):
            await it.chat("x" * 5000)
        with pytest.raises(ContextLengthExceeded, match=r"4000 were asked for, \d+ together; m has a context of 4096"):
            await it.chat("x" * 500, sampling=Sampling(max_tokens=4000))
        assert len(it.ended) == 1


async def test_a_prompt_too_long_that_came_while_the_engine_loaded_is_refused_and_gives_its_seat_back() -> None:
    async with bench(Script(start_s=0.1)) as it:
        with pytest.raises(ContextLengthExceeded):
            await it.chat("x" * 5000)
        assert it.ended[0].reason == "invalid_request"
        assert it.service.status().running == 0


async def test_a_stream_that_is_closed_unread_gives_its_seats_back() -> None:
    async with bench(says("x" * 1000, tokens_per_s=10.0)) as it:
        for n in (1, 3):
            request = ChatRequest(id="r", model="m", messages=(Message("user", "hi"),), n=n)
            stream = await it.service.chat(request)
            assert it.service.status().running == n
            await stream.aclose()
            assert it.service.status().running == 0
        assert {run.status for run in it.ended} == {RunStatus.ABORTED}


async def test_a_stream_that_is_closed_in_the_middle_aborts_every_choice() -> None:
    async with bench(says("x" * 1000, tokens_per_s=50.0)) as it:
        request = ChatRequest(id="r", model="m", messages=(Message("user", "hi"),), n=3)
        stream = await it.service.chat(request)
        async for _ in stream:
            break
        await stream.aclose()
        assert it.engines[0].stats().outstanding == 0
        assert {(run.status, run.reason) for run in it.ended} == {(RunStatus.ABORTED, "client_gone")}


async def test_when_the_engine_dies_in_mid_stream_the_reader_gets_what_was_said_and_then_the_error() -> None:
    for n in (1, 2):
        async with bench(says("x" * 1000, tokens_per_s=100.0, die_after_tokens=3)) as it:
            request = ChatRequest(id="r", model="m", messages=(Message("user", "hi"),), n=n)
            stream = await it.service.chat(request)
            seen: list[Event] = []
            with pytest.raises(EngineDied):
                async for event in stream:
                    seen.append(event)  # noqa: PERF401 - what came before the error is what is asked
            await stream.aclose()
            assert text_of(seen).startswith("xxx")


async def test_a_tool_call_in_the_text_becomes_events() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    async with bench(says("Let me see. " + call)) as it:
        events, _ = await it.chat("weather?", tools=(WEATHER,))
        assert text_of(events).strip() == "Let me see."
        opened = [event for event in events if isinstance(event, ToolCallOpened)]
        assert [(event.index, event.name) for event in opened] == [(0, "weather")]
        arguments = "".join(event.text for event in events if isinstance(event, ToolCallArguments))
        assert json.loads(arguments) == {"city": "Paris"}
        assert events[-1] == ChoiceFinished(0, "tool_calls")


async def test_with_tool_choice_none_the_text_stays_text() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    async with bench(says(call)) as it:
        events, _ = await it.chat("weather?", tools=(WEATHER,), tool_choice=ToolChoice("none"))
        assert text_of(events) == call


@pytest.mark.parametrize(
    ("choice", "reason"), [(ToolChoice("named", "weather"), "stop"), (ToolChoice("required"), "tool_calls")]
)
async def test_a_forced_call_has_arguments_that_validate(choice: ToolChoice, reason: str) -> None:
    async with bench() as it:
        events, _ = await it.chat("weather?", tools=(WEATHER,), tool_choice=choice)
        assert [event.name for event in events if isinstance(event, ToolCallOpened)] == ["weather"]
        arguments = "".join(event.text for event in events if isinstance(event, ToolCallArguments))
        jsonschema.validate(json.loads(arguments), WEATHER.parameters or {})
        assert events[-1] == ChoiceFinished(0, reason)  # type: ignore[arg-type]
        assert text_of(events) == ""


async def test_a_forced_tool_that_is_not_there_is_refused() -> None:
    async with bench() as it:
        with pytest.raises(InvalidRequest, match="names 'clock'"):
            await it.chat("?", tools=(WEATHER,), tool_choice=ToolChoice("named", "clock"))
        with pytest.raises(InvalidRequest, match="there are no tools"):
            await it.chat("?", tool_choice=ToolChoice("required"))


async def test_a_grammar_over_its_bounds_never_reaches_the_engine() -> None:
    async with bench(grammar_max_bytes=1000) as it:
        huge = Structured("choice", ["x" * 2000])
        with pytest.raises(InvalidGrammar):
            await it.chat("?", sampling=Sampling(structured=huge))
        assert it.ended == []


async def test_completions_continue_each_prompt_n_times_in_order() -> None:
    async with bench(Script(rules=(Rule(match="one", within="prompt", answer="1"), Rule(answer="2")))) as it:
        request = CompletionRequest(id="r", model="m", prompts=("one", "two", (104, 105)), n=2)
        stream = await it.service.complete(request)
        events = [event async for event in stream]
        assert [text_of(events, choice) for choice in range(6)] == ["1", "1", "2", "2", "2", "2"]
        assert stream.usage.prompt_tokens == 3 + 3 + 2
        with pytest.raises(InvalidRequest, match="outside the vocabulary"):
            await it.service.complete(CompletionRequest(id="r", model="m", prompts=((999_999,),)))


async def test_token_ids_outside_the_vocabulary_are_refused_by_their_field() -> None:
    async with bench() as it:
        for sampling, param in (
            (Sampling(stop_token_ids=(5, 300)), "stop_token_ids"),
            (Sampling(logit_bias={70_000: 1.0}), "logit_bias"),
        ):
            with pytest.raises(InvalidRequest, match="is outside the vocabulary") as refusal:
                await it.chat("hi", sampling=sampling)
            assert refusal.value.param == param
        assert it.ended == []


async def test_each_answer_has_a_seed_of_its_own_within_64_bits() -> None:
    async with bench(says("x")) as it:
        for seed, expected in ((7, {7, 8, 9}), (2**63 - 2, {2**63 - 2, 2**63 - 1, 2**63 - 4})):
            it.ended.clear()
            await it.chat("hi", n=3, sampling=Sampling(seed=seed))
            assert {run.sampling.seed for run in it.ended} == expected


async def test_too_many_answers_are_refused() -> None:
    async with bench(max_choices=4) as it:
        with pytest.raises(InvalidRequest, match="5 answers were asked for; at most 4"):
            await it.chat("hi", n=5)


async def test_embeddings_are_unit_vectors_and_may_be_cut() -> None:
    async with bench() as it:
        request = EmbeddingRequest(id="r", model="e", inputs=("hello world", "hello there", (1, 2, 3)))
        result = await it.service.embed(request)
        vectors: Any = result.vectors
        assert vectors.shape[0] == 3
        assert (vectors**2).sum(axis=1) == pytest.approx([1.0] * 3, abs=1e-5)
        assert result.prompt_tokens == 11 + 11 + 3
        cut: Any = (
            await it.service.embed(EmbeddingRequest(id="r", model="e", inputs=("hello",), dimensions=8))
        ).vectors
        assert cut.shape == (1, 8)
        assert float((cut**2).sum()) == pytest.approx(1.0, abs=1e-5)
        with pytest.raises(InvalidRequest, match="dimensions is 99999"):
            await it.service.embed(EmbeddingRequest(id="r", model="e", inputs=("hello",), dimensions=99999))
        assert {run.kind for run in it.ended} == {"embed"}


async def test_an_embedding_input_too_long_is_refused_by_its_number() -> None:
    async with bench() as it:
        with pytest.raises(ContextLengthExceeded, match="Input 1 has 9000 tokens; e takes 8192"):
            await it.service.embed(EmbeddingRequest(id="r", model="e", inputs=("ok", "x" * 9000)))
        assert it.service.status().running == 0


async def test_status_tells_what_is_missing_and_then_that_all_is_there() -> None:
    async with bench(Script(start_s=0.2)) as it:
        status = it.service.status()
        assert not status.ready
        assert status.reason is not None
        assert status.reason.startswith("m is starting")
        await it.chat("hi", sampling=Sampling(max_tokens=1))
        await it.service.embed(EmbeddingRequest(id="r", model="e", inputs=("hello",)))
        status = it.service.status()
        assert (status.ready, status.reason) == (True, None)
        assert [(model.name, model.ready, model.max_model_len) for model in status.models] == [
            ("m", True, 4096),
            ("e", True, 8192),
        ]


async def test_an_end_from_outside_reaches_readers_that_are_not_reading() -> None:
    for n in (1, 3):
        async with bench(says("x" * 4000, tokens_per_s=5000.0)) as it:
            request = ChatRequest(id="r", model="m", messages=(Message("user", "hi"),), n=n)
            stream = await it.service.chat(request)
            events = aiter(stream)
            await anext(events)
            await asyncio.sleep(0.1)  # the buffer between engine and reader is full
            it.service.abort_all()
            with pytest.raises(Draining):
                async with asyncio.timeout(5):
                    while True:
                        await anext(events)
            await stream.aclose()
            assert {(run.status, run.reason) for run in it.ended} == {(RunStatus.ABORTED, "draining")}


async def test_an_echo_begins_the_answer_with_its_prompt() -> None:
    async with bench(says("!")) as it:
        request = CompletionRequest(id="r", model="m", prompts=("one", (116, 119, 111)), n=2, echo=True)
        stream = await it.service.complete(request)
        events = [event async for event in stream]
        assert [text_of(events, choice) for choice in range(4)] == ["one!", "one!", "two!", "two!"]
        with pytest.raises(InvalidRequest, match="Leave logprobs out"):
            await it.service.complete(
                CompletionRequest(id="r", model="m", prompts=("a",), echo=True, sampling=Sampling(logprobs=1))
            )


async def test_log_probabilities_of_the_text_survive_the_search_for_calls() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    async with bench(says("Let me see. " + call)) as it:
        events, _ = await it.chat("weather?", tools=(WEATHER,), sampling=Sampling(logprobs=0))
        told = [p.token for event in events if isinstance(event, TextDelta) for p in event.logprobs or ()]
        assert "".join(told).startswith("Let me see.")
        assert "Paris" not in "".join(told)


async def test_a_forced_call_and_a_form_of_the_answer_exclude_each_other() -> None:
    async with bench() as it:
        with pytest.raises(InvalidRequest, match="leave one of them out") as refusal:
            await it.chat(
                "?",
                tools=(WEATHER,),
                tool_choice=ToolChoice("required"),
                sampling=Sampling(structured=Structured("json_object")),
            )
        assert refusal.value.param == "tool_choice"


async def test_a_tokenizer_that_does_not_load_is_told_and_tried_again() -> None:
    tries = 0

    def flaky() -> ByteTokenizer:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise EngineStartFailed("tokenizer.json is cut off")
        return ByteTokenizer()

    served = ServedModel("m", (), "chat", ModelConfig(model="x"), None, 1, flaky, (ScriptedEngine,))
    service = Service((served,), SchedulerConfig(restart_backoff_s=0.2), lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        await service.start(tasks)
        with pytest.raises(EngineUnavailable, match="cut off"):
            await service.chat(ChatRequest(id="1", model="m", messages=(Message("user", "hi"),), deadline_s=0.1))
        assert not service.status().ready
        assert "cut off" in (service.status().reason or "")
        stream = await service.chat(ChatRequest(id="2", model="m", messages=(Message("user", "hi"),)))
        assert [event async for event in stream]
        assert (tries, service.status().ready) == (3, True)
        await service.stop(1.0)


async def test_an_answer_with_too_many_log_probabilities_is_refused_before_it_is_made() -> None:
    async with bench() as it:
        await it.chat("warm up", sampling=Sampling(max_tokens=1))
        with pytest.raises(InvalidRequest, match="could carry 504000 log probabilities; at most 250000") as refusal:
            await it.chat("hi", n=8, sampling=Sampling(max_tokens=3000, logprobs=20))
        assert refusal.value.param == "logprobs"
        await it.chat("hi", n=2, sampling=Sampling(max_tokens=3000, logprobs=20))


async def test_many_texts_are_encoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    encode = ByteTokenizer.encode

    def watched(self: ByteTokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        threads.add(threading.get_ident())
        return encode(self, text, add_special_tokens=add_special_tokens)

    async with bench() as it:
        await it.chat("warm up")  # the chat model tries its template in a thread when it is loaded
        monkeypatch.setattr(ByteTokenizer, "encode", watched)
        await it.service.embed(EmbeddingRequest(id="r", model="e", inputs=("x" * 2000,) * 20))
        assert threading.get_ident() not in threads
        assert len(threads) == 1
        await it.service.embed(EmbeddingRequest(id="r", model="e", inputs=("x",)))
        assert threading.get_ident() in threads


async def test_a_models_sampling_is_told_by_name_and_by_alias_and_in_its_status() -> None:
    wanted = Sampling(temperature=0.2, top_p=0.9)
    engines = (ScriptedEngine,)
    served = ServedModel(
        "m", ("large",), "chat", ModelConfig(model="x"), None, 1, ByteTokenizer, engines, sampling=wanted
    )
    service = Service((served,), SchedulerConfig(), lambda _: None)
    assert service.sampling_defaults("m") == service.sampling_defaults("large") == wanted
    assert service.sampling_defaults("other") == Sampling()
    assert service.status().models[0].sampling == {"temperature": 0.2, "top_p": 0.9}
