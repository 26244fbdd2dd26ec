from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import pytest

from agentflow.engine.protocol import Delta, Engine, GenerateRequest, StartProgress
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.errors import (
    ContextLengthExceeded,
    EngineDied,
    EngineStalled,
    EngineStartFailed,
    InvalidGrammar,
    InvalidRequest,
)
from agentflow.messages import Sampling, Structured
from agentflow.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


def request(text: str = "hi", *, priority: int = 0, salt: str | None = None, **sampling: Any) -> GenerateRequest:
    max_tokens = sampling.pop("max_tokens", 200)
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    return GenerateRequest("r", ids, Sampling(**sampling), max_tokens, priority, salt)


async def all_of(engine: ScriptedEngine, wanted: GenerateRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(wanted)]


async def text_of(engine: ScriptedEngine, wanted: GenerateRequest) -> str:
    return "".join(delta.text for delta in await all_of(engine, wanted))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def note_each(stream: AsyncIterator[Delta], note: Callable[[Delta], None]) -> None:
    async for delta in stream:
        note(delta)


def nobody(_: StartProgress) -> None:
    pass


async def test_it_starts_in_stages_and_answers() -> None:
    seen: list[StartProgress] = []
    engine: Engine = ScriptedEngine(Script(start_s=0.02))
    info = await engine.start(seen.append)
    assert (info.name, info.max_model_len, info.max_running) == ("scripted", 32_768, 1024)
    assert list(dict.fromkeys(progress.stage for progress in seen)) == ["importing", "loading", "warming"]
    fractions = [progress.fraction or 0.0 for progress in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert [delta.text async for delta in engine.generate(request("ab", max_tokens=3))] == ["Y", "o", "u"]


async def test_a_start_can_fail_be_killed_and_be_cancelled() -> None:
    with pytest.raises(EngineStartFailed, match="no such device"):
        await ScriptedEngine(Script(fail_start="no such device")).start(nobody)

    killed = ScriptedEngine(Script(start_s=60))
    async with asyncio.TaskGroup() as tasks:
        start = tasks.create_task(_failed_start(killed))
        await asyncio.sleep(0.01)
        killed.kill()
    assert "killed" in start.result()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await ScriptedEngine(Script(start_s=60)).start(nobody)


async def _failed_start(engine: ScriptedEngine) -> str:
    with pytest.raises(EngineStartFailed) as caught:
        await engine.start(nobody)
    return str(caught.value)


async def test_the_first_rule_that_matches_answers() -> None:
    engine = ScriptedEngine(
        Script(
            rules=(Rule(match="^b$", answer="B"), Rule(match="pirate", within="prompt", answer="Arr"), Rule(match="b"))
        )
    )
    assert await text_of(engine, request("<|user|>\nb<|end|>\n")) == "B"
    assert await text_of(engine, request("<|system|>\npirate<|end|>\n<|user|>\nb!<|end|>\n")) == "Arr"
    assert await text_of(engine, request("<|user|>\npirate b<|end|>\n<|user|>\nb?<|end|>\n")) == "Arr"
    assert await text_of(engine, request("<|user|>\nab<|end|>\n")) == "You said: ab"


async def test_a_request_that_cannot_be_served_is_refused_before_the_first_delta() -> None:
    engine = ScriptedEngine(max_model_len=8)
    refused: list[tuple[GenerateRequest, type[Exception]]] = [
        (request("12345678"), ContextLengthExceeded),
        (GenerateRequest("r", [1, 300], Sampling(), 5), InvalidRequest),
        (GenerateRequest("r", [-1], Sampling(), 5), InvalidRequest),
        (request(structured=Structured("grammar", "x")), InvalidGrammar),
    ]
    for wanted, error in refused:
        with pytest.raises(error):
            await anext(engine.generate(wanted))
    assert engine.stats().outstanding == 0


async def test_the_context_bounds_the_answer() -> None:
    engine = ScriptedEngine(max_model_len=8)
    deltas = await all_of(engine, request("12345", max_tokens=100, ignore_eos=True))
    assert sum(len(delta.token_ids) for delta in deltas) == 3
    assert deltas[-1].finish_reason == "length"


async def test_tokens_come_at_their_rate_and_first_after_the_ttft() -> None:
    engine = ScriptedEngine(Script(tokens_per_s=200, ttft_s=0.05))
    begun = monotonic()
    times: list[float] = []
    stream = engine.generate(request(max_tokens=20, ignore_eos=True))
    await note_each(stream, lambda _: times.append(monotonic() - begun))
    assert times[0] >= 0.045
    assert times[-1] - times[0] >= 18 / 200 - 0.005  # the second token may be early by up to one interval


async def test_what_a_late_reader_missed_comes_merged() -> None:
    engine = ScriptedEngine(Script(tokens_per_s=1000))
    stream = engine.generate(request(max_tokens=50, ignore_eos=True))
    first = await anext(stream)
    await asyncio.sleep(0.1)
    second = await anext(stream)
    assert len(first.token_ids) == 1
    assert len(second.token_ids) == 49
    assert second.finish_reason == "length"


async def test_a_delta_can_hold_several_tokens() -> None:
    engine = ScriptedEngine(
        Script(rules=(Rule(match="slow", tokens_per_s=500, tokens_per_delta=4),), tokens_per_delta=3)
    )
    for text, sizes in (("fast", [3, 3, 3, 1]), ("slow", [4, 4, 2])):
        deltas = await all_of(engine, request(text, max_tokens=10, ignore_eos=True))
        assert [len(delta.token_ids) for delta in deltas] == sizes


async def test_unlimited_streams_take_turns() -> None:
    engine = ScriptedEngine()
    order: list[str] = []

    async def read(name: str) -> None:
        await note_each(engine.generate(request(max_tokens=3, ignore_eos=True)), lambda _: order.append(name))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read("a"))
        tasks.create_task(read("b"))
    assert order == ["a", "b"] * 3


async def test_more_than_max_running_wait_by_priority_then_by_arrival() -> None:
    engine = ScriptedEngine(Script(tokens_per_s=100), max_running=1)
    order: list[str] = []

    async def read(name: str, priority: int) -> None:
        stream = engine.generate(request(max_tokens=2, ignore_eos=True, priority=priority))
        await note_each(stream, lambda _: order.append(name))

    async with asyncio.TaskGroup() as tasks:
        for name, priority in (("first", 9), ("late", 5), ("b", 1), ("c", 1), ("urgent", -1)):
            tasks.create_task(read(name, priority))
            await asyncio.sleep(0)
        stats = engine.stats()
        assert (stats.outstanding, stats.running, stats.waiting) == (5, 1, 4)
    assert order == [name for name in ("first", "urgent", "b", "c", "late") for _ in range(2)]
    assert engine.stats().outstanding == 0


async def test_a_closed_stream_frees_its_slot_at_once() -> None:
    engine = ScriptedEngine(Script(tokens_per_s=100), max_running=1)
    stream = engine.generate(request(ignore_eos=True))
    await anext(stream)
    async with asyncio.TaskGroup() as tasks:
        second = tasks.create_task(all_of(engine, request(max_tokens=2)))
        await asyncio.sleep(0)
        assert engine.stats().waiting == 1
        await stream.aclose()
        assert (engine.stats().running, engine.stats().waiting) == (1, 0)
    assert len(second.result()) == 2


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_cancelled_reader_frees_its_slot_at_once(waiting: bool) -> None:
    engine = ScriptedEngine(Script(tokens_per_s=1, ttft_s=60), max_running=1)
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(all_of(engine, request())) for _ in range(2)]
        await eventually(lambda: engine.stats().outstanding == 2)
        readers[waiting].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (engine.stats().running, engine.stats().waiting) == (1, 0)
        readers[not waiting].cancel()
    assert engine.stats().outstanding == 0


async def test_a_slot_that_was_given_to_a_cancelled_reader_is_given_on() -> None:
    engine = ScriptedEngine(max_running=1)
    stream = engine.generate(request(ignore_eos=True))
    await anext(stream)
    async with asyncio.TaskGroup() as tasks:
        doomed = tasks.create_task(all_of(engine, request(max_tokens=2)))
        await asyncio.sleep(0)
        last = tasks.create_task(all_of(engine, request(max_tokens=2)))
        await asyncio.sleep(0)
        await stream.aclose()  # the slot is doomed's now, which does not know it yet
        doomed.cancel()
    assert len(last.result()) == 2
    assert engine.stats().outstanding == 0


async def test_the_last_delta_frees_the_slot_before_it_is_read_on() -> None:
    engine = ScriptedEngine()
    stream = engine.generate(request(max_tokens=1))
    assert (await anext(stream)).finish_reason == "length"
    assert engine.stats().outstanding == 0
    await stream.aclose()


async def test_killing_it_ends_running_waiting_and_later_streams() -> None:
    engine = ScriptedEngine(Script(tokens_per_s=0.01), max_running=2)
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(_died(engine)) for _ in range(4)]
        await eventually(lambda: engine.stats().outstanding == 4)
        engine.kill()
        engine.kill()
    assert [reader.result() for reader in readers] == ["the scripted engine was killed"] * 4
    assert isinstance(engine.failure, EngineDied)
    assert await _died(engine) == "the scripted engine was killed"
    assert engine.stats().outstanding == 0


async def _died(engine: ScriptedEngine) -> str:
    with pytest.raises(EngineDied) as caught:
        await all_of(engine, request(ignore_eos=True))
    return str(caught.value)


async def test_what_it_is_killed_for_is_what_streams_raise() -> None:
    engine = ScriptedEngine(Script(rules=(Rule(hang_after_tokens=1),)))
    stream = engine.generate(request())
    await anext(stream)
    engine.kill(EngineStalled("no token for 60 s"))
    engine.kill(EngineDied("again"))
    with pytest.raises(EngineStalled, match="no token for 60 s") as caught:
        await anext(stream)
    assert caught.value is not engine.failure
    assert isinstance(engine.failure, EngineStalled)


async def test_stopping_it_ends_everything() -> None:
    engine = ScriptedEngine()
    stream = engine.generate(request(ignore_eos=True))
    await anext(stream)
    await engine.stop(1.0)
    await engine.stop(1.0)
    with pytest.raises(EngineDied, match="stopped"):
        await anext(stream)


async def test_it_dies_after_so_many_tokens_with_all_that_runs_on_it() -> None:
    engine = ScriptedEngine(Script(rules=(Rule(match="die", die_after_tokens=5),), tokens_per_delta=2))
    other = engine.generate(request("other", ignore_eos=True))
    await anext(other)
    sizes: list[int] = []
    with pytest.raises(EngineDied, match="died after 5 tokens"):
        await note_each(engine.generate(request("die")), lambda delta: sizes.append(len(delta.token_ids)))
    assert sizes == [2, 2, 1]
    with pytest.raises(EngineDied):
        await anext(other)


async def test_it_hangs_after_so_many_tokens_with_all_that_runs_on_it_until_it_is_killed() -> None:
    engine = ScriptedEngine(Script(rules=(Rule(match="hang", hang_after_tokens=1),)))
    other = engine.generate(request("other", ignore_eos=True))
    await anext(other)
    hanging = engine.generate(request("hang", ignore_eos=True))
    await anext(hanging)
    async with asyncio.TaskGroup() as tasks:
        silent = [tasks.create_task(_next_died(stream)) for stream in (hanging, other)]
        await asyncio.sleep(0.01)
        progress_at = engine.stats().last_progress_at
        late = tasks.create_task(_died(engine))
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in (*silent, late))
        stats = engine.stats()
        assert (stats.outstanding, stats.last_progress_at) == (3, progress_at)
        assert engine.failure is None
        engine.kill()
    assert engine.stats().outstanding == 0


async def _next_died(stream: Any) -> None:
    with pytest.raises(EngineDied):
        await anext(stream)


async def test_a_hanging_engine_lets_go_of_a_reader_that_leaves() -> None:
    engine = ScriptedEngine(Script(rules=(Rule(hang_after_tokens=0),)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await all_of(engine, request())
    assert engine.stats().outstanding == 0


async def test_a_sequence_is_forgotten_but_for_what_is_kept_of_it_and_what_others_use() -> None:
    engine = ScriptedEngine(Script(answer="y" * 1000, tokens_per_s=50.0))
    prompt = "x" * 100 + TOKENIZER.EOS_TEXT
    ids = TOKENIZER.encode(prompt, add_special_tokens=False)

    async def cached(text: str) -> int:
        return (await all_of(engine, request(text, salt="acme", max_tokens=1)))[0].cached_tokens

    assert (await cached(prompt), await cached(prompt)) == (0, 96)
    assert await engine.forget(ids, 0, "other") == 0
    assert await engine.forget(ids, 40, "acme") == 64
    assert await cached(prompt) == 32
    running = engine.generate(request("x" * 60, salt="acme"))
    await anext(running)
    assert await engine.forget(ids, 0, "acme") == 48
    assert await cached(prompt) == 48  # 60 tokens are at work, and they have three whole blocks
    await running.aclose()
    assert await engine.forget([*ids, *range(50)], 0, "acme") == 96
    assert await cached(prompt) == 0
    engine.kill()
    with pytest.raises(EngineDied):
        await engine.forget(ids, 0, "acme")


async def test_the_longest_known_prefix_of_whole_blocks_counts_as_cached() -> None:
    engine = ScriptedEngine()

    async def cached(text: str, salt: str | None = None) -> int:
        return (await all_of(engine, request(text, salt=salt, max_tokens=1)))[0].cached_tokens

    text = "0123456789abcdef" * 4
    assert await cached(text) == 0
    assert await cached(text) == 48  # the last token is always computed, so its block is not counted
    assert await cached(text + "!") == 48
    assert await cached(text + "!") == 64
    assert await cached(text[:40] + "other" * 5) == 32
    assert await cached("x" + text) == 0
    assert await cached(text, salt="tenant") == 0
    assert await cached(text, salt="tenant") == 48
    stats = engine.stats()
    assert stats.prefix_cache_hits == 48 + 48 + 64 + 32 + 48
    assert stats.prefix_cache_queries == 4 * 64 + 4 * 65


async def test_a_thousand_streams_run_at_once() -> None:
    engine = ScriptedEngine(Script(tokens_per_s=200))
    streams = [engine.generate(request(max_tokens=20, ignore_eos=True)) for _ in range(1000)]
    firsts = [await anext(stream) for stream in streams]
    assert engine.stats().running == 1000
    assert 0 < engine.stats().kv_cache_usage < 1
    counts = [len(first.token_ids) for first in firsts]

    async def read_on(place: int) -> None:
        async for delta in streams[place]:
            counts[place] += len(delta.token_ids)

    async with asyncio.TaskGroup() as tasks:
        for place in range(1000):
            tasks.create_task(read_on(place))
    assert counts == [20] * 1000
