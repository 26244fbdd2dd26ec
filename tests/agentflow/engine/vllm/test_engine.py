"""The real engine with a small real model: one start for all, and then what it must do and survive.

The tests at the end start engines of their own or kill the shared one.
"""

import asyncio
import math
import os
import signal
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.protocol import EngineInfo, GenerateRequest
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.engine.vllm.engine import VllmEngine
from agentflow.errors import EngineDied, EngineStartFailed, InvalidRequest
from agentflow.messages import Sampling
from agentflow.scheduler import Scheduler, Upkeep
from tests.agentflow.engine.machine import this_machine
from tests.agentflow.engine.vllm.chats import GREEDY, MODEL_EOS, Chat, structured, until

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # vLLM and torch warn while they are imported
]


@pytest.fixture
async def chat(real_engine: VllmEngine, chat_model: Path) -> Chat:
    return Chat(real_engine, Tokenizer.from_file(str(chat_model / "tokenizer.json")))


# What it says


async def test_the_capital_of_france_is_paris(chat: Chat) -> None:
    deltas = await chat.deltas("What is the capital of France?")
    text = "".join(delta.text for delta in deltas)
    assert "Paris" in text
    assert len(deltas) > 3
    assert text == chat.decode(deltas)  # the end token is no text
    assert deltas[-1].token_ids[-1] == MODEL_EOS
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)
    assert {delta.finish_reason for delta in deltas[:-1]} == {None}


async def test_length_bounds_the_answer(chat: Chat) -> None:
    deltas = await chat.deltas("Tell a long story.", max_tokens=7)
    assert sum(len(delta.token_ids) for delta in deltas) == 7
    assert deltas[-1].finish_reason == "length"


async def test_a_stop_text_ends_the_answer_before_it_and_is_told(chat: Chat) -> None:
    whole = await chat.text("What is the capital of France?")
    deltas = await chat.deltas("What is the capital of France?", Sampling(temperature=0, stop=("Paris", "nowhere")))
    assert "".join(delta.text for delta in deltas) == whole.partition("Paris")[0]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "Paris")
    await until(lambda: chat.engine.stats().outstanding == 0)


async def test_a_stop_text_may_stay_in_the_answer(chat: Chat) -> None:
    sampling = Sampling(temperature=0, stop=("Paris",), include_stop_str_in_output=True)
    assert (await chat.text("What is the capital of France?", sampling)).endswith("Paris")


async def test_a_stop_token_ends_the_answer_and_is_told(chat: Chat) -> None:
    whole = await chat.deltas("What is the capital of France?")
    token = [token for delta in whole for token in delta.token_ids][3]
    deltas = await chat.deltas("What is the capital of France?", Sampling(temperature=0, stop_token_ids=(token,)))
    assert sum(len(delta.token_ids) for delta in deltas) == 4
    assert deltas[-1].stop_reason == token


async def test_the_models_end_can_be_ignored_or_put_off(chat: Chat) -> None:
    ignored = await chat.deltas("Say yes.", Sampling(temperature=0, ignore_eos=True), 60)
    assert (sum(len(delta.token_ids) for delta in ignored), ignored[-1].finish_reason) == (60, "length")
    put_off = await chat.deltas("Say yes.", Sampling(temperature=0, min_tokens=45), 60)
    assert sum(len(delta.token_ids) for delta in put_off) >= 45


async def test_log_probabilities_are_told_with_their_alternatives(chat: Chat) -> None:
    deltas = await chat.deltas("What is the capital of France?", Sampling(temperature=0, logprobs=3))
    told = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [entry.token_id for entry in told] == [token for delta in deltas for token in delta.token_ids]
    for entry in told:
        assert entry.logprob <= 0
        assert len(entry.top) >= 3
        assert entry.top[0].token_id == entry.token_id  # greedy
        assert [other.logprob for other in entry.top] == sorted((other.logprob for other in entry.top), reverse=True)
        assert sum(math.exp(other.logprob) for other in entry.top) <= 1.001
    assert (await chat.deltas("Hi"))[0].logprobs is None


async def test_a_bias_can_force_a_token(chat: Chat) -> None:
    deltas = await chat.deltas("Hi", Sampling(temperature=0, logit_bias={1234: 100.0}), 3)
    assert [token for delta in deltas for token in delta.token_ids] == [1234] * 3


async def test_a_seed_repeats_and_temperature_is_the_callers_alone(chat: Chat) -> None:
    first, again, other = [
        await chat.text("Tell a story.", Sampling(temperature=1.5, seed=seed), 24) for seed in (1, 1, 2)
    ]
    assert first == again != other


async def test_many_sequences_run_together_and_each_gets_its_own_answer(chat: Chat) -> None:
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(chat.text("?", structured("choice", [f"answer number {n}"]))) for n in range(40)]
    assert [answer.result() for answer in answers] == [f"answer number {n}" for n in range(40)]


async def test_a_common_prefix_is_found_again_by_the_same_tenant_alone(chat: Chat) -> None:
    text = "In the beginning there was a small fox who lived at the edge of a wide forest. " * 8
    first = await chat.deltas(text, max_tokens=2, cache_salt="a")
    again = await chat.deltas(text, max_tokens=2, cache_salt="a")
    other = await chat.deltas(text, max_tokens=2, cache_salt="b")
    assert (first[0].cached_tokens, other[0].cached_tokens) == (0, 0)
    assert again[0].cached_tokens >= 96
    assert chat.engine.stats().prefix_cache_hits >= again[0].cached_tokens


async def test_a_prompt_is_forgotten_but_for_what_is_kept_of_it_and_for_what_another_tenant_has(chat: Chat) -> None:
    text = "Once there was a heron who stood all day in the shallow water of a slow river. " * 8
    prompt = chat.request(text).prompt_token_ids
    size = len(prompt)

    async def cached(salt: str) -> int:
        return (await chat.deltas(text, max_tokens=2, cache_salt=salt))[0].cached_tokens

    assert [await cached(salt) for salt in ("a", "b", "a", "b")][:2] == [0, 0]
    whole = await cached("a")
    assert 96 <= whole < size
    assert await chat.engine.forget(prompt, size // 2, "a") > 0
    kept = await cached("a")
    assert 0 < kept <= size // 2  # whole blocks of the first half, and no other
    assert await cached("a") == whole
    assert await chat.engine.forget(prompt, 0, "a") >= whole
    assert await chat.engine.forget(prompt, 0, "a") == 0
    assert (await cached("a"), await cached("b")) == (0, whole)


async def test_what_was_said_is_forgotten_too_and_nothing_of_a_prompt_that_is_at_work(chat: Chat) -> None:
    text = "Count the boats that pass, and write down for each of them its name and its port. " * 8
    said: list[int] = []
    request = chat.request(text, Sampling(temperature=0, ignore_eos=True), 300, cache_salt="c")
    running = chat.engine.generate(request)
    async for delta in running:
        said += delta.token_ids
        if len(said) > 70:  # two blocks at least
            break

    async def cached(ids: list[int]) -> int:
        again = GenerateRequest("again", ids, GREEDY, 1, cache_salt="c")
        deltas = [delta async for delta in chat.engine.generate(again)]
        return deltas[0].cached_tokens

    sequence = [*request.prompt_token_ids, *said]
    assert await chat.engine.forget(sequence, 0, "c") == 0
    assert await cached(request.prompt_token_ids) >= 96
    await running.aclose()
    await until(lambda: chat.engine.stats().outstanding == 0)
    known = await cached(sequence)
    assert known > len(request.prompt_token_ids)
    await asyncio.sleep(0.5)  # the engine is done with the one that was stopped, and with the last
    assert await chat.engine.forget(sequence, 0, "c") >= known
    assert await cached(sequence) == 0


async def test_memory_is_given_back_by_all_that_nobody_uses(chat: Chat) -> None:
    texts = [f"Lake {name} is cold and deep, and has a steamer that calls at every village. " * 6 for name in "AB"]
    await chat.deltas(texts[0], max_tokens=2, cache_salt="f")
    running = chat.engine.generate(
        chat.request(texts[1], Sampling(temperature=0, ignore_eos=True), 300, cache_salt="f")
    )
    await anext(running)
    assert await chat.engine.free_memory() >= 64
    cached = [(await chat.deltas(text, max_tokens=2, cache_salt="f"))[0].cached_tokens for text in texts]
    assert cached[0] == 0
    assert cached[1] >= 64
    await running.aclose()


async def test_idle_runs_lose_their_kv_above_the_watermark_the_oldest_first(chat: Chat) -> None:
    class Started(VllmEngine):
        """The engine that runs already."""

        def __init__(self) -> None:
            vars(self).update(vars(chat.engine))

        async def start(self, progress: Any) -> EngineInfo:
            return EngineInfo("vllm", 1024, 32, kv_cache_tokens=pool, kv_block_tokens=size)

        def kill(self, reason: Any = None) -> None: ...

        async def stop(self, timeout_s: float) -> None: ...

    cache = chat.engine._host.llm.vllm_config.cache_config
    pool, size = cache.kv_cache_size_tokens, cache.block_size
    config = SchedulerConfig()
    scheduler = Scheduler(config, lambda _: None)
    supervisor = Supervisor("m/0", Started, SupervisorLimits())
    models, upkeep = scheduler.add_pool("m", (supervisor,)), Upkeep(config, scheduler)
    blocks, prompts = 0, []
    while blocks * size <= 0.95 * pool:
        prompts.append(chat.request(f"{len(prompts)} is a number. " * 40, cache_salt="w").prompt_token_ids)
        blocks += len(prompts[-1]) // size

    async def cached(prompt: list[int]) -> int:
        request = GenerateRequest("again", prompt, GREEDY, 1, cache_salt="w")
        return (await anext(chat.engine.generate(request))).cached_tokens

    await chat.engine.free_memory()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        upkeep.prefixes.start(tasks)
        await until(lambda: supervisor.engine is not None)
        for prompt in prompts:
            await upkeep.pools.look(models)
            assert upkeep.pools.status("m").released == 0  # type: ignore[union-attr]
            reading = upkeep.prefixes.begin("m", "w", prompt)
            assert await cached(prompt) < 64
            upkeep.prefixes.end(reading, [])
        await upkeep.pools.look(models)
        status, gone = upkeep.pools.status("m"), math.ceil(0.30 * len(prompts))
        assert status is not None
        assert (status.runs, status.above, status.released) == (len(prompts), True, gone)
        assert 0.95 < status.share <= 1
        await until(lambda: len(upkeep.prefixes) == len(prompts) - gone)
        await asyncio.sleep(0.5)  # the engine has forgotten
        assert [await cached(prompt) > 64 for prompt in prompts[::-1]] == [True] * (len(prompts) - gone) + [
            False
        ] * gone
        upkeep.prefixes.stop()
        await supervisor.stop(1)
    await chat.engine.free_memory()


# Who leaves, and what is refused


async def test_closing_a_stream_ends_its_sequence_at_once(chat: Chat) -> None:
    stream = chat.engine.generate(chat.request("Tell a long story.", Sampling(temperature=0, ignore_eos=True), 900))
    await anext(stream)
    assert chat.engine.stats().outstanding == 1
    await stream.aclose()
    assert chat.engine.stats().outstanding == 0
    assert len(await chat.deltas("Hi", max_tokens=4)) <= 4
    assert chat.engine.stats().running == 0  # at EngineCore too, or its last step would have told of two


async def test_cancelling_at_any_moment_leaves_nothing_running(chat: Chat) -> None:
    for turns in range(12):
        task = asyncio.ensure_future(chat.deltas("Tell.", Sampling(temperature=0, ignore_eos=True), 900))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert chat.engine.stats().outstanding == 0
    assert "Paris" in await chat.text("What is the capital of France?")


async def test_a_reader_that_lags_gets_merged_deltas_and_every_token(chat: Chat) -> None:
    tokens: list[int] = []
    count = 0
    async for delta in chat.engine.generate(
        chat.request("Count.", Sampling(temperature=0, ignore_eos=True, logprobs=0), 30)
    ):
        assert len(delta.logprobs or ()) == len(delta.token_ids)
        tokens += delta.token_ids
        count += 1
        await asyncio.sleep(0.3)
    assert len(tokens) == 30
    assert count < 30


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"prompt_token_ids": [5] * 2000}, "2000"),
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt_token_ids": [999_999]}, "vocabulary"),
        ({"sampling": Sampling(logprobs=21)}, "logprobs"),
        ({"sampling": Sampling(temperature=-1)}, "temperature"),
        ({"sampling": Sampling(logit_bias={999_999: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(min_tokens=50)}, "min_tokens"),
    ],
)
async def test_what_the_engine_cannot_do_is_refused_with_a_reason(
    chat: Chat, change: dict[str, Any], match: str
) -> None:
    values: dict[str, Any] = {"id": "bad", "prompt_token_ids": [5], "sampling": GREEDY, "max_tokens": 10} | change
    with pytest.raises(InvalidRequest, match=match):
        async for _ in chat.engine.generate(GenerateRequest(**values)):
            pass
    assert chat.engine.stats().outstanding == 0


# Its end


def folders() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("acu-engine-*")}


def exists(name: str) -> bool:
    return Path("/dev/shm", name).exists()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"no_such_thing": 1}, "engine_args holds what AsyncEngineArgs does not know: .*no_such_thing"),
        ({"tensor_parallel_size": 0}, "engine_args: tensor_parallel_size: Input should be greater than or equal to 1$"),
        ({"max_num_seqs": 0}, "engine_args: max_num_seqs is 0: it must be a whole number above 0$"),
    ],
)
async def test_a_start_with_wrong_arguments_names_them(chat_model: Path, args: dict[str, Any], told: str) -> None:
    engine = VllmEngine(chat_model, ModelConfig(model="m", engine_args=args), this_machine, 10)
    with pytest.raises(EngineStartFailed, match=told):
        await engine.start(lambda _: None)
    await engine.stop(5)


async def test_a_start_that_fails_in_the_engines_process_tells_the_cause_in_one_sentence(
    chat_model: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((chat_model / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")  # no tensor in it
    config = ModelConfig(model="m", kv_cache_mb=64, max_model_len=512, engine_args={"enforce_eager": True})
    engine = VllmEngine(tmp_path, config, this_machine, 10)
    with pytest.raises(EngineStartFailed, match=r"^vLLM did not start: .*weights") as failure:
        await engine.start(lambda _: None)
    assert "\n" not in str(failure.value)
    await engine.stop(5)


async def test_what_was_read_of_a_long_prompt_is_progress(chat: Chat) -> None:
    engine = chat.engine
    before = engine.stats().last_progress_at
    long = asyncio.ensure_future(chat.deltas(" ".join(f"{number}" for number in range(10, 240)), max_tokens=1))
    await until(lambda: engine.stats().last_progress_at > before)
    assert not long.done(), "it has read a part, and has said nothing"
    await long


async def test_a_cancelled_start_leaves_no_process_and_no_file(chat_model: Path) -> None:
    before = folders()
    config = ModelConfig(model="m", kv_cache_mb=64, max_model_len=512, engine_args={"enforce_eager": True})
    engine = VllmEngine(chat_model, config, this_machine, 10)
    processes = engine._host.processes
    start = asyncio.ensure_future(engine.start(lambda _: None))
    await until(lambda: processes.pids, 60)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    pids = processes.pids
    await engine.stop(30)
    assert not any(map(lives, pids))
    assert folders() <= before


async def test_when_its_process_is_killed_every_stream_ends_at_once_and_nothing_is_left(chat: Chat) -> None:
    engine = chat.engine
    streams = [
        asyncio.ensure_future(chat.deltas(f"Story {n}.", Sampling(temperature=0, ignore_eos=True), 900))
        for n in range(8)
    ]
    await until(lambda: engine.stats().running == 8)
    pids = engine._host.processes.pids
    memory = engine._host._shared_memory
    assert len(pids) == 1
    killed_at = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    for stream in streams:
        with pytest.raises(EngineDied):
            await stream
    assert time.monotonic() - killed_at < 5
    assert isinstance(engine.failure, EngineDied)
    with pytest.raises(EngineDied):
        await chat.deltas("Hi")
    await engine.stop(10)
    assert not any(map(lives, pids))
    assert not [name for name in memory if exists(name)]
