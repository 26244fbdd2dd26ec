"""The headline's benchmark measures what it says: the real daemon with scripted engines, its tools, and the real service."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced

from agentflow.engine.protocol import GenerateRequest
from agentflow.engine.scripted import ScriptedEngine
from agentflow.messages import Sampling
from benchmarks import workflow, workflowacu, workflowservice, workflowspeed, workflowtables
from benchmarks.agentmodel import TEMPLATE
from benchmarks.agentscript import Forced
from benchmarks.report import NotMeasured, Ratio
from benchmarks.server import Server
from benchmarks.serving import MODEL
from benchmarks.workflowacu import AcuSide
from benchmarks.workflowhost import FollowingEngine
from benchmarks.workflowpeers import missing, redis_binary
from benchmarks.workflowscript import CALLS, HANDLE, TEXTS, Parts, documents, parts, said, values, weather
from benchmarks.workflowspeed import Played, Written, arounds, ceilings, plain, ratios, rows

SCRIPTED = {
    "large": {"model": "bench", "served_name": MODEL, "engine": "scripted", "max_model_len": 40_000},
    "embed": {"model": "embedder", "engine": "scripted"},
}
ORDERS = workflowtables.table()


def took(*seconds: float) -> list[Parts]:
    return [Parts(seconds=each, model_s=each / 2, tools_s=each / 4, rest_s=each / 4) for each in seconds]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Server]:
    server = workflowspeed._service(tmp_path)
    server.start()
    server.wait(30)
    yield server
    server.stop()


@pytest.fixture
async def side(tmp_path: Path, service: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AcuSide]:
    orders, folder = tmp_path / "orders.csv", tmp_path / "acu"
    orders.write_bytes(ORDERS)
    folder.mkdir()
    monkeypatch.setattr(workflowacu, "documents", lambda: documents(100))
    side = AcuSide(folder, SCRIPTED, orders, service.port)
    side.force("ready")
    side.server.start()
    try:
        side.server.wait(60)
        async with side:
            yield side
    finally:
        side.server.stop()


async def test_a_request_to_acu_is_told_by_its_parts(side: AcuSide) -> None:
    passages = await side.fill()
    assert len(passages) >= 100
    before = Written.by(side.processes())
    answers = await side.play(10_000, 3, 2)
    taps = side.taps()
    side._read = 0  # they are read again
    # A request is of the run that says so, whatever the order in which they were asked and began.
    spans = sorted((answer.span for answer in answers), reverse=True)
    found, means = await side.parts([replaced(each, span=span) for each, span in zip(answers, spans, strict=True)])
    assert [request.seconds for request in found] == [end - start for start, end in spans]
    spoke = [[tap.ended - tap.called for tap in taps if tap.id.startswith(f"{each.run}-")] for each in answers]
    assert [len(each) for each in spoke] == [len(TEXTS)] * 3
    assert [request.model_s for request in found] == pytest.approx([sum(each) for each in spoke])
    assert means["engine_s"] == pytest.approx(sum(sum(each) for each in spoke) / 3)
    assert means["prompt_tokens"] == sum(tap.prompt_tokens for tap in taps) / 3
    assert means["serialised"] > len(weather("Rostock"))
    found, _ = await side.parts(await side.play(10_003, 1, 1))
    assert workflowservice.DELAY_S < found[0].model_s + found[0].tools_s < found[0].seconds
    assert side._engines == frozenset()  # scripted ones have no processes
    assert Written.by(side.processes()).since(before) > 4 * sum(workflowtables.SIZES.values())


def test_only_what_acu_names_as_an_engine_is_left_out_of_what_is_written(tmp_path: Path) -> None:
    side = AcuSide(tmp_path, SCRIPTED, tmp_path / "orders.csv", 1)
    nested = "import subprocess; subprocess.run(['sleep', '60'])"
    daemon = (
        "import subprocess, sys\n"
        "both = [subprocess.Popen([sys.executable, '-c', sys.argv[1]]) for _ in range(2)]\n"
        "[each.wait() for each in both]"
    )
    side.server = Server("daemon", [sys.executable, "-c", daemon, nested], 1, "", tmp_path / "daemon.log")
    side.server.start()
    try:
        deadline = time.monotonic() + 30
        while len(everyone := {each.pid for each in side.processes()}) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(everyone) == 5
        engine = side.server.front.children()[0]
        side._engines = frozenset({engine.pid})
        (below,) = engine.children()
        assert {each.pid for each in side.processes()} == everyone - {engine.pid, below.pid}
    finally:
        for each in side.server.front.children(recursive=True):
            if not each.children():
                each.kill()  # and whoever waits for it ends, and is waited for
        assert side.server.process is not None
        side.server.process.wait(30)
        side.server.stop()


async def test_a_text_names_the_last_handle_of_the_prompt() -> None:
    engine = FollowingEngine(
        ScriptedEngine(), lambda: Forced(texts=(f"take {HANDLE}",)), lambda _: None, lambda ids: bytes(ids).decode()
    )
    request = GenerateRequest("run_1-0", list(b"h_1f6c0e9a4b7d, then h_00000000000a."), Sampling(), 100)
    told = engine._told(request)
    assert told.sampling.structured is not None
    assert told.sampling.structured.value == ["take h_00000000000a"]
    assert replaced(told, sampling=Sampling()) == request


def test_a_text_that_needs_a_handle_is_not_said_without_one() -> None:
    assert said("no handle", "") == "no handle"
    with pytest.raises(ValueError, match="no tool has given a handle"):
        said(TEXTS[1], "h_nothing")


def test_the_tables_are_as_large_as_they_say_and_what_they_should_be() -> None:
    refined, listed = workflowtables.refine(ORDERS), workflowtables.summarise(ORDERS)
    found = {"collect": len(ORDERS), "refine": len(refined), "summarise": len(listed)}
    assert found == workflowtables.SIZES
    assert sum(found.values()) == pytest.approx(12e6, rel=0.001)
    lines = ORDERS.decode().splitlines()
    assert refined.decode().splitlines() == [line for line in lines if ",coast," not in line]
    orders = [line.split(",") for line in lines[1:]]
    assert listed.decode().splitlines() == [f"{order[0]},{order[5]}" for order in orders]


def test_three_texts_make_all_calls() -> None:
    assert len(TEXTS) == 3
    assert sum(text.count("<tool_call>") for text in TEXTS) == CALLS == 11
    assert all(280 <= len(value) <= 300 for value in values().values())
    assert 1500 <= len(weather("Rostock")) <= 2500
    assert len({passage for text in documents() for passage in text.split("\n\n")}) == 1000


def test_parts_do_not_count_what_lies_under_the_model_twice() -> None:
    found = parts((0.0, 10.0), [(1.0, 4.0), (8.0, 9.0)], [(2.0, 5.0), (3.0, 6.0), (7.0, 7.5)])
    assert found == Parts(seconds=10.0, model_s=4.0, tools_s=2.5, rest_s=3.5)


def test_the_plain_ratio_is_the_worst_of_the_concurrencies() -> None:
    results = {
        ("acu", 1): Played([took(1.0, 1.0), took(1.0, 2.0)], [{"engine_s": 0.5}, {"engine_s": 0.5}]),
        ("usual", 1): Played([took(4.0, 4.0), took(4.0, 6.0)], [{"saver_s": 1.0}, {"saver_s": 2.0}]),
        ("acu", 4): Played([took(1.0), took(1.0)], [{"engine_s": 0.5}, {"engine_s": 0.5}]),
        ("usual", 4): Played([took(3.0), took(2.0)], [{}, {}]),
    }
    found = ratios(results, ["usual"])
    assert found["vs_split_p50:1"].median == 4.0
    assert found["vs_split_p50"] == found["vs_split_p50:4"]
    assert (found["vs_split_p99:1"].median, found["vs_split_p99:1"].low, found["vs_split_p99:1"].high) == (
        3.0,
        3.0,
        4.0,
    )
    assert "usual" in rows(results)
    assert plain(results)["usual_saver_s:1"] == 1.5
    line = json.loads(workflow.one_line({"smollm2": results}, ["usual"], {"how": "so"}))
    assert line["smollm2_vs_split_p50:1"] == 4.0
    assert line["spread"]["smollm2_vs_split_p99:1"] == [3.0, 4.0]
    assert "vs_split_p99:4" in workflow.headline(results, ["usual"], workflow.GOAL)


def test_what_is_around_the_engine_is_a_requests_mean_less_the_engines() -> None:
    results = {
        ("acu", 1): Played([took(1.0, 3.0), took(2.0)], [{"engine_s": 1.0}, {"engine_s": 1.5}]),
        ("usual", 1): Played([took(4.0, 6.0), took(5.0)], [{"engine_s": 2.0}, {"engine_s": 3.0}]),
        ("acu", 4): Played([took(2.0), took(2.0)], [{"engine_s": 1.0}, {"engine_s": 1.0}]),
        ("usual", 4): Played([took(3.0), took(3.0)], [{"engine_s": 1.0}, {"engine_s": 1.0}]),
    }
    found = arounds(results, ["usual"])
    assert found["around_vs_split_mean:1"] == Ratio(2.5 / 0.75, 3.0, 4.0)
    assert found["around_vs_split_mean"] == found["around_vs_split_mean:4"] == Ratio(2.0, 2.0, 2.0)
    assert plain(results)["usual_around_s:1"] == 2.5
    most = ceilings(results, ["usual"])
    assert most["ceiling_vs_split_mean:1"] == Ratio(5.0 / 1.25, 5.0 / 1.5, 5.0)
    assert most["ceiling_vs_split_mean"] == most["ceiling_vs_split_mean:4"] == Ratio(3.0, 3.0, 3.0)
    line = json.loads(workflow.one_line({"two-layer": results}, ["usual"], {}))
    assert line["around_vs_split_mean:4"] == 2.0
    assert line["spread"]["around_vs_split_mean:1"] == [3.0, 4.0]
    assert "around_vs_split_mean:4" in workflow.headline(results, ["usual"], workflow.GOAL)
    with pytest.raises(NotMeasured, match="longer than the requests"):
        Played([took(1.0)], [{"engine_s": 1.0}]).around()


def test_the_p99_of_under_a_hundred_is_the_slowest_and_told_as_that() -> None:
    for count, slowest in ((1, 1.0), (99, 99.0), (100, 99.0)):
        results = {("acu", 1): Played([took(*map(float, range(1, count + 1)))], [{}])}
        assert plain(results)["acu_p99_ms:1"] == slowest * 1e3
        assert "p99 ms (under 100: the slowest)" in rows(results)


def test_what_is_missing_is_said_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "scripts/setup --bench" in (missing(tmp_path / "python") or "")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NotMeasured, match="apt-get install redis-server"):
        redis_binary(Path(sys.executable).parent / "none" / "python")


def test_without_a_choice_both_models_and_both_splits_are_measured() -> None:
    args = workflow.parse([])
    assert (args.model, args.ways, args.rounds) == (["two-layer", "smollm2"], ["usual", "tuned"], 2)


def test_a_model_gets_the_template_that_knows_tools(tmp_path: Path) -> None:
    given, made = tmp_path / "given", tmp_path / "made"
    given.mkdir()
    (given / "config.json").write_text("{}")
    (given / "chat_template.jinja").write_text("its own")
    assert workflow.with_tools(given, made) == made
    assert (made / "config.json").read_text() == "{}"
    assert (made / "chat_template.jinja").read_text() == TEMPLATE
    assert (given / "chat_template.jinja").read_text() == "its own"
