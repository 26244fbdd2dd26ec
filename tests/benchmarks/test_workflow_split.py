"""The split of the headline's benchmark: LangGraph, Redis, Chroma, the embedder and the service as they are, the model a small
server that says what it is told. Without .venv-bench, or without the embedder's weights, what needs them is skipped.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from acu.config.places import default_model_cache
from benchmarks import workflowpeers, workflowspeed, workflowtables
from benchmarks.agentbench import AgentBench
from benchmarks.report import NotMeasured
from benchmarks.server import Server, free_port
from benchmarks.workflowacu import EMBEDDER, AcuSide
from benchmarks.workflowpeers import EXIT, SplitSide, Spoken, redis_binary, spoken
from benchmarks.workflowscript import CALLS, TEXTS, documents
from benchmarks.workflowservice import DELAY_S
from tests.benchmarks.forcedserver import GENERATION_S

PYTHON = Path(__file__).parents[2] / ".venv-bench/bin/python"


def need_the_split() -> None:
    """Skip where it is not. By its files: `missing` imports all of them, which takes long."""
    packages = [*PYTHON.parent.parent.glob("lib/python*/site-packages")]
    if not PYTHON.is_file() or not all((packages[0] / name).is_dir() for name in ("langgraph", "chromadb", "redis")):
        pytest.skip("no split: scripts/setup --bench")
    try:
        redis_binary(PYTHON)
    except NotMeasured as error:
        pytest.skip(str(error))


def threads(folder: Path, way: str) -> set[str]:
    """That have checkpoints."""
    with sqlite3.connect(folder / f"{way}.sqlite") as connection:
        found = {row[0] for row in connection.execute("SELECT thread_id FROM checkpoints")}
    connection.close()
    return found


def checkpoints(folder: Path, way: str, thread: str) -> tuple[int, int]:
    """How many of a thread there are, and the bytes of the writes between them and of themselves."""
    of = f"WHERE thread_id = '{thread}'"
    with sqlite3.connect(folder / f"{way}.sqlite") as connection:
        ((count, size),) = connection.execute(f"SELECT count(*), sum(length(checkpoint)) FROM checkpoints {of}")
        ((written,),) = connection.execute(f"SELECT coalesce(sum(length(value)), 0) FROM writes {of}")
    connection.close()
    return count, size + written


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SplitSide, Path]]:
    need_the_split()
    if not (default_model_cache(os.environ) / EMBEDDER).is_dir():
        pytest.skip(f"no weights of {EMBEDDER}")
    port, server = free_port(), Path(__file__).with_name("forcedserver.py")
    model = Server("model", [sys.executable, str(server), "--port", str(port)], port, "/health", tmp_path / "model.log")
    monkeypatch.setattr(workflowpeers, "vllm", lambda *_: model)
    orders, folder = tmp_path / "orders.csv", tmp_path / "split"
    orders.write_bytes(workflowtables.table())
    folder.mkdir()
    service = workflowspeed._service(tmp_path)
    service.start()
    try:
        service.wait(30)
        side = SplitSide(folder, PYTHON, tmp_path / "no-model", orders, service.port)
        with side.started():
            side.fill("\n\n".join(documents(100)).split("\n\n"))
            yield side, folder
    finally:
        service.stop()


async def test_a_request_of_the_split_makes_all_calls_and_leaves_what_is_then_forgotten(
    split: tuple[SplitSide, Path], tmp_path: Path
) -> None:
    side, folder = split
    kept = {}
    with side.running():
        for way in (*workflowpeers.WAYS, EXIT):
            began = side.spoken()
            found, means = side.play(way, 7, 2, 2)
            assert len(found) == 2
            for request in found:
                assert DELAY_S < request.model_s + request.tools_s < request.seconds
                assert request.rest_s > 0
            assert means["prompt_tokens"] == 100 * len(TEXTS)
            assert min(means["storage_s"], means["embed_s"], means["serialise_s"], means["saver_s"]) > 0
            ended = side.spoken(began.generations + 2 * len(TEXTS))
            assert ended.seconds - began.seconds == 2 * len(TEXTS) * GENERATION_S
            assert threads(folder, way) == {"case-7", "case-8"}
            kept[way] = checkpoints(folder, way, "case-7")
            side.forget(way, 7, 2)
            assert threads(folder, way) == set()
        with pytest.raises(NotMeasured, match="and should 1"):
            side.spoken(1)
    tables = sum(workflowtables.SIZES.values())
    assert kept["usual"][1] > tables  # the artifacts are in the graph's state
    assert kept["tuned"][1] < tables / 100
    assert kept["usual"][0] == kept["tuned"][0] > CALLS // len(TEXTS)
    assert kept[EXIT][0] == 1

    acu = AcuSide(tmp_path, {}, tmp_path / "orders.csv", 1)
    acu.server = Server("idle", ["sleep", "60"], 1, "", tmp_path / "idle.log")
    acu.server.start()
    try:
        bench = AgentBench(folder=tmp_path, smollm2=tmp_path, peers_python=PYTHON, rounds=1)
        found, means = await workflowspeed.Rounds(bench, acu, side)._side("tuned", 1, 2)
        assert acu.server.front.status() != psutil.STATUS_STOPPED
    finally:
        acu.server.stop()
    assert len(found) == 2
    assert means["engine_s"] == len(TEXTS) * GENERATION_S
    assert means["written"] > tables / 2  # to Redis
    assert threads(folder, "tuned") == set()


def test_the_checkpoints_of_the_split_wait_for_no_disk(tmp_path: Path) -> None:
    need_the_split()
    script = """
import asyncio, pathlib, sys
from benchmarks.workflowsplit import _saver
from benchmarks.workflowstores import Meters

async def told():
    async with _saver(pathlib.Path(sys.argv[1]), Meters()) as saver:
        for name in ("journal_mode", "synchronous"):
            async with saver.conn.execute(f"PRAGMA {name}") as found:
                print(*await found.fetchone())

asyncio.run(told())
"""
    command = [str(PYTHON), "-c", script, str(tmp_path / "checkpoints.sqlite")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PYTHON.parents[2])
    assert found.stdout.split() == ["wal", "1"]  # NORMAL


def test_what_vllm_counts_is_read_from_its_metrics() -> None:
    name = "vllm:e2e_request_latency_seconds"
    text = (
        f"# HELP {name} Histogram of e2e request latency in seconds.\n# TYPE {name} histogram\n"
        f'{name}_bucket{{engine="0",le="0.3",model_name="bench"}} 2.0\n'
        f'{name}_bucket{{engine="0",le="+Inf",model_name="bench"}} 3.0\n'
        f'{name}_count{{engine="0",model_name="bench"}} 3.0\n{name}_sum{{engine="0",model_name="bench"}} 1.25\n'
        f'{name}_count{{engine="1",model_name="bench"}} 1.0\n{name}_sum{{engine="1",model_name="bench"}} 0.5\n'
        "# HELP vllm:request_queue_time_seconds Waiting.\n# TYPE vllm:request_queue_time_seconds histogram\n"
        'vllm:request_queue_time_seconds_count{engine="0"} 9.0\nvllm:request_queue_time_seconds_sum{engine="0"} 9.0\n'
    )
    assert spoken(text) == Spoken(4, 1.75)
    assert spoken("") == Spoken(0, 0.0)
