"""The agents' benchmark measures what it says: on a scripted engine, with real tools, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from agentflow.config import ModelConfig
from agentflow.engine.protocol import GenerateRequest
from agentflow.engine.script import Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.messages import Sampling
from agentflow.prompt import ChatEncoder
from agentflow.service import ServedModel
from agentflow.tokenizer import ByteTokenizer
from agentflow.tools.function import functions_of
from benchmarks import agent, agentcache, agentdispatch, agentmany, agentrouting, agentspeed, agentsteps, agenttools
from benchmarks.agentbench import AgentBench, AgentHost
from benchmarks.agenthost import TOOLS, Host
from benchmarks.agentscript import CLOSING, Forced, Tap, answer, braces, ideal_s
from benchmarks.report import NotMeasured
from benchmarks.routing import Label, Labelled
from benchmarks.serving import MODEL
from benchmarks.tapped import TappedEngine
from benchmarks.vectorpeers import Peer, started

FRAMEWORKS = """
import sys
import time
import psutil
from benchmarks.commands import answer_commands
class Frameworks:
    def answer(self, way, question, texts):
        deadline = time.monotonic() + 10  # a signal takes a moment
        while psutil.Process(int(sys.argv[1])).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
        return {"seconds": 7.0, "text": texts[-1], "calls": texts[0].count("<tool_call>") or 2}
answer_commands(Frameworks())
"""


class ScriptedHost(Host):
    """The host with a scripted engine in vLLM's place, and nothing else."""

    def served(self) -> ServedModel:
        script = Script(tokens_per_s=3000)
        return ServedModel(
            name=MODEL,
            aliases=(),
            role="chat",
            config=ModelConfig(model=MODEL, engine="scripted", max_model_len=40_000),
            path=None,
            created=0,
            tokenizer=ByteTokenizer,
            engines=(lambda: self.tapped(ScriptedEngine(script, max_model_len=40_000)),),
        )


@pytest.fixture
def bench(tmp_path: Path) -> AgentBench:
    return AgentBench(folder=tmp_path, smollm2=tmp_path, peers_python=tmp_path / "none", rounds=1, mixed=(0.3, 0.1, 0.05),
                      ways=agentspeed.LOOPS)  # fmt: skip


@pytest.fixture
def acu() -> Iterator[subprocess.Popen[bytes]]:
    """What stands for ACU's process, which here is the test's own."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[AgentHost]:
    folder = tmp_path / "host"
    folder.mkdir()
    host = AgentHost(folder, tmp_path, 8192)
    host.force("ready")
    ready, over = asyncio.Event(), asyncio.Event()

    async def serve() -> None:  # a generator's fixture may end in another task than it began in
        async with ScriptedHost(folder, tmp_path, 8192).serving(host.port):
            ready.set()
            await over.wait()

    task = asyncio.create_task(serve())
    waits = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    yield host
    over.set()
    await task


def tap(called: float, *at: float, ends: tuple[int, ...] = (), prompt: int = 0, output: int = 0) -> Tap:
    return Tap(
        id="r-0", called=called, prompt_tokens=prompt, cached_tokens=0, output_tokens=output, at=at, ends=ends or (1,) * len(at)
    )  # fmt: skip


def test_a_brace_is_the_last_character_of_its_call() -> None:
    text = answer((3.0, 1.0))
    calls = [json.loads(text[text.rfind("<tool_call>\n", 0, end) + 12 : end]) for end in braces(text)]
    assert [call["arguments"]["seconds"] for call in calls] == [3.0, 1.0]


def test_a_text_is_there_when_the_token_that_ends_it_is() -> None:
    spoken = tap(0.0, 1.0, 2.0, 3.0, ends=(4, 9, 20))
    assert [spoken.reached(end) for end in (4, 5, 9, 10)] == [1.0, 2.0, 2.0, 3.0]


def test_the_ideal_waits_for_the_latest_of_the_tools_and_the_model() -> None:
    text = answer((3.0, 1.0))
    first = tap(0.1, 1.0, 2.0, 2.5, ends=(*braces(text), len(text)))
    second = tap(9.0, 9.2, 9.4)
    assert ideal_s(0.0, [first, second], text, (3.0, 1.0)) == pytest.approx(4.0 + 0.4)
    assert ideal_s(0.0, [first, second], text, (0.1, 0.1)) == pytest.approx(2.5 + 0.4)


def test_the_last_text_is_said_at_all_further_steps() -> None:
    forced = Forced(texts=("one", "two"))
    assert [forced.text(step) for step in range(4)] == ["one", "two", "two", "two"]


def test_what_whole_blocks_allow_is_the_last_step_rounded_down() -> None:
    steps = [tap(0, 1, prompt=100, output=27), tap(0, 1, prompt=140, output=20), tap(0, 1, prompt=999, output=1)]
    assert agentcache.possible(steps) == [96, 160]


@pytest.mark.parametrize(("request_id", "seed", "said"), [("run_1-1", None, "two"), ("chatcmpl-x", 0, "one")])
async def test_the_step_says_what_a_tapped_engine_says(request_id: str, seed: int | None, said: str) -> None:
    seen: list[Tap] = []
    engine = TappedEngine(ScriptedEngine(), lambda: Forced(texts=("one", "two")), seen.append)
    await engine.start(lambda _: None)
    request = GenerateRequest(request_id, list(b"prompt"), Sampling(seed=seed), 100)
    async with aclosing(engine.generate(request)) as deltas:
        text = "".join([delta.text async for delta in deltas])
    await engine.stop(1.0)
    assert text == said
    assert (seen[0].id, seen[0].prompt_tokens, seen[0].ends[-1]) == (request_id, 6, 3)
    assert list(seen[0].at) == sorted(seen[0].at)


async def test_what_a_slow_reader_missed_is_merged_and_still_has_its_moments() -> None:
    seen: list[Tap] = []
    engine = TappedEngine(ScriptedEngine(), lambda: Forced(texts=("a longer text",)), seen.append)
    await engine.start(lambda _: None)
    deltas = engine.generate(GenerateRequest("run-0", [1], Sampling(), 100))
    texts = [(await anext(deltas)).text]
    async with asyncio.timeout(5):
        while not seen:
            await asyncio.sleep(0.001)
    rest = await anext(deltas)
    await deltas.aclose()
    await engine.stop(1.0)
    assert "".join([*texts, rest.text]) == "a longer text"
    assert rest.finish_reason == "stop"
    assert len(seen[0].at) > 2


async def test_an_answer_is_timed_on_every_way_beside_its_ideal(bench: AgentBench, host: AgentHost) -> None:
    await agentspeed.measure(bench, host, bench.folder)
    figures = bench.figures
    assert figures["ideal_s:mixed"][0] >= 0.3
    assert 0 < figures["overlap_efficiency"][0] <= 1.001
    assert figures["sequential_s:mixed"][0] > 0.45
    assert figures["vs_parallel"][0] / figures["ideal_vs_parallel"][0] == pytest.approx(
        figures["overlap_efficiency"][0]
    )
    assert "overlap_efficiency" in agent.tables(bench)
    assert json.loads(agent.one_line(bench))["vs_sequential"] == figures["vs_sequential"][0]


async def test_frameworks_are_asked_for_the_same_answer_while_acu_is_stopped(
    bench: AgentBench, host: AgentHost, acu: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "frameworks"
    folder.mkdir()
    host.server.process = acu
    peer = Peer("the frameworks", folder, [sys.executable, "-c", FRAMEWORKS, str(acu.pid)])
    bench = replace(bench, ways=("langgraph",))
    with started([peer]):
        await agentspeed.Speed(bench, host, peer).measure()
        with pytest.raises(NotMeasured, match="2 calls of 3"):
            agentspeed.Speed(bench, host, peer)._ask_framework("langgraph", CLOSING, 3)
    assert bench.figures["langgraph_s:mixed"] == [7.0]


async def test_tools_begin_after_their_braces(bench: AgentBench, host: AgentHost) -> None:
    await agentdispatch.measure(bench, host, 1)
    assert 0 < bench.figures["dispatch_p50_ms"][0] <= bench.figures["dispatch_p99_ms"][0]


async def test_of_many_runs_nothing_is_lost_held_or_left_and_the_cut_ones_are_timed(
    bench: AgentBench, host: AgentHost
) -> None:
    await agentmany.measure(bench, host, 8, 0.2)
    figures = bench.figures
    assert [figures[key] for key in ("many_lost_events", "many_slots_held", "many_left")] == [[0], [0], [0]], (
        bench.notes
    )
    assert 0 < figures["cancel_abort_p99_ms"][0] <= figures["cancel_abort_max_ms"][0]
    assert figures["cancel_late_steps"] == [0]  # a scripted engine counts nothing that is over
    assert set(figures) <= set(agent.GOALS)


async def test_where_no_run_was_cancelled_that_is_said(bench: AgentBench, host: AgentHost) -> None:
    with pytest.raises(NotMeasured, match="none of the runs that were cancelled spoke"):
        await agentmany.measure(bench, host, 1, 0.2)


async def test_the_cache_is_off_where_it_is_said_to_be(bench: AgentBench, host: AgentHost) -> None:
    await agentcache.measure(bench, host, 300)
    assert bench.figures["cached_with_cache_off"] == [0.0]
    assert 0 < bench.figures["kv_reuse"][0] < 1


async def test_a_missing_generation_is_not_overlooked(host: AgentHost) -> None:
    (host.folder / "taps.jsonl").touch()
    with pytest.raises(NotMeasured, match="spoke 0 times"):
        host.taps(2)


async def test_each_step_of_the_loop_is_timed(bench: AgentBench) -> None:
    await agentsteps.measure(bench, ByteTokenizer(), 1)
    assert bench.notes["steps"].startswith(f"{agentsteps.STEPS - 1} steps")
    assert 0 < bench.figures["step_overhead_p50_ms"][0] <= bench.figures["step_overhead_p99_ms"][0]


def test_a_route_spares_the_large_model_the_tools_or_the_whole_prompt() -> None:
    turns = [Labelled(set="test", lang="en", route="answer", text=text) for text in ("a", "b", "c")]
    routes: dict[str, Label] = {"a": ("answer", None), "b": ("extract", "x"), "c": ("reason", None)}
    saved, whole = agentrouting.tokens_saved(ChatEncoder(ByteTokenizer()), turns, routes)
    each = whole // 3
    bare, _ = agentrouting.tokens_saved(ChatEncoder(ByteTokenizer()), turns[:1], routes)
    assert saved == each + bare
    assert 0 < bare < each


def test_ways_that_cannot_be_measured_are_left_out_unless_they_were_asked_for(tmp_path: Path) -> None:
    notes: dict[str, str] = {}
    assert agent.ways((), tmp_path / "python", notes) == agentspeed.LOOPS
    assert "scripts/setup --bench" in notes["frameworks"]
    assert agent.ways(("parallel",), tmp_path / "python", notes) == ("parallel",)
    with pytest.raises(NotMeasured, match="langgraph"):
        agent.ways(("langgraph",), tmp_path / "python", notes)


def test_the_tools_are_there_and_a_page_is_as_long_as_it_says() -> None:
    assert set(functions_of(agenttools)) == set(TOOLS)
    assert len(agenttools.page(3).split()) == 300
    assert agenttools.page(3) != agenttools.page(4)


def test_every_figure_of_the_table_is_one_that_is_measured() -> None:
    assert agent.parse(["--short"]).short
    assert CLOSING.endswith(".")
    assert set(agent.GOALS) >= {f"vs_{way}" for way in agent.WAYS}
