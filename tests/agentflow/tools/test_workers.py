"""Workers: real processes that run functions, as many as may be, and what is told of each call."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentflow.tools.errors import (
    InvalidArguments,
    InvalidTool,
    ToolDied,
    ToolError,
    ToolFailed,
    ToolUnavailable,
)
from agentflow.tools.tool import Content
from agentflow.tools.workers import Workers
from tests.agentflow.tools.pools import ENVIRONMENT, Pool, is_running, source, until

on_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_workers() -> AsyncIterator[Workers]:
    workers = Workers(source(workers=1), ENVIRONMENT)
    yield workers
    await workers.close()
    assert not workers.pids


@pytest.fixture
def shared(shared_workers: Workers, tmp_path: Path) -> Pool:
    """For calls that leave their process as it was."""
    return Pool(shared_workers, tmp_path)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    workers = Workers(source(), ENVIRONMENT)
    yield Pool(workers, tmp_path)
    await workers.close()
    assert not workers.pids


# What calls give


@on_one_loop
async def test_a_module_is_described_without_being_imported_here(shared: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "example_tools", raising=False)  # other tests run some of it here
    tools = {described.spec.name: described for described in await shared.workers.describe()}
    assert tools["weather"].spec.aliases == ("天气",)
    assert list(tools["weather"].spec.parameters["properties"]) == ["city", "day", "scale", "stay", "options"]
    assert [name for name, described in tools.items() if described.trusted] == [
        "here",
        "here_for",
        "here_async_for",
        "here_async",
        "here_failing",
    ]
    assert "example_tools" not in sys.modules


@on_one_loop
async def test_plain_and_async_functions_are_called_in_one_process_after_another(shared: Pool) -> None:
    stay = {"place": {"latitude": 1, "longitude": 2}}
    text = await shared.call("weather", city="上海", scale="f", stay=stay, options={"verbose": True})
    assert isinstance(text, str)
    assert json.loads(text) == {
        "city": "上海",
        "day": "today",
        "scale": "f",
        "nights": 1,
        "place": True,
        "verbose": True,
    }
    assert await shared.call("add", a=2) == "3"
    assert await shared.call("greet", whom="Ann") == "Hello, Ann."
    assert len(shared.workers.pids) == 1


@on_one_loop
async def test_long_results_and_bytes_are_files_at_the_contexts_place(shared: Pool) -> None:
    place = shared.folder / "result"
    assert await shared.call("give", what="text", size=40_000) == Content(place, 80_000, "text/plain")
    assert place.read_text() == "é" * 40_000
    assert await shared.call("give", what="bytes", size=3) == Content(place, 6, "application/octet-stream")
    assert await shared.call("give", what="blob", folder=str(shared.folder)) == Content(place, 40, "text/csv")
    assert place.read_bytes() == b"a,b\n" * 10
    assert await shared.call("give", what="list") == "[0,1,2,3,4,5,6,7,8,9]"


@on_one_loop
async def test_content_becomes_what_the_function_asks_for(shared: Pool) -> None:
    kept = shared.folder / "kept"
    kept.write_text("[1, 2]")
    content = Content(kept, 6, "text/csv")
    text = await shared.call("take", blob=content, text=content, data=content, rows=content)
    assert isinstance(text, str)
    assert json.loads(text) == [[6, *["[1, 2]"] * 3, "text/csv"], "[1, 2]", "[1, 2]", [1, 2], None]
    with pytest.raises(InvalidArguments, match="'place' is wrong in the content"):
        await shared.call("take", place=content)


@on_one_loop
async def test_megabytes_of_arguments_pass_and_more_are_refused(shared: Pool) -> None:
    assert await shared.call("greet", whom="x" * 3_000_000) == Content(
        shared.folder / "result", 3_000_008, "text/plain"
    )
    with pytest.raises(InvalidArguments, match="too much for the tool greet"):
        await shared.call("greet", whom="x" * 5_000_000)
    with pytest.raises(InvalidArguments, match="too much for the tool add"):
        await shared.call("add", a=2**70)


# What functions raise


@on_one_loop
async def test_what_a_function_raises_fails_its_call_and_no_other(shared: Pool) -> None:
    await shared.workers.warm(1)
    before = shared.workers.pids
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("fail", {"how": "politely"}, "^There is no such day.$"),
        ("fail", {"how": "otherwise"}, "^The tool fail failed: ValueError: no good$"),
        ("fail", {"how": "unspeakably"}, "^The tool fail raised ValueError with text that is no Unicode "),
        ("give", {"what": "object"}, "The tool give returned what has no JSON"),
        ("give", {"what": "surrogate"}, "The tool give returned text that is no Unicode"),
        ("give", {"what": "cycle"}, "The tool give returned what has no JSON"),
    )
    for name, arguments, sentence in cases:
        with pytest.raises(ToolFailed, match=sentence) as caught:
            await shared.call(name, **arguments)
        assert caught.value.again == (arguments == {"how": "politely"})
        assert await shared.call("greet", whom="Ann") == "Hello, Ann."
    assert shared.workers.pids == before


async def test_a_process_that_was_to_exit_or_that_ran_out_of_memory_is_not_used_again(pool: Pool) -> None:
    for how, sentence in (
        ("exit", "The tool fail ended itself with sys.exit"),
        ("interrupt", "The tool fail failed: KeyboardInterrupt"),
        ("memory", "The tool fail needs more memory than it may have"),
    ):
        with pytest.raises(ToolFailed, match=sentence):
            await pool.call("fail", how=how)
        assert not pool.workers.pids


@on_one_loop
async def test_arguments_that_do_not_fit_are_the_models_fault(shared: Pool) -> None:
    with pytest.raises(InvalidArguments, match="'a' is wrong: Expected `int`, got `str`"):
        await shared.call("add", a="two")
    assert shared.workers.idle == 1


# The pool


async def test_calls_run_side_by_side_and_wait_for_their_turn(pool: Pool) -> None:
    answers = await asyncio.gather(*(pool.call("greet", whom=str(number)) for number in range(20)))
    assert answers == [f"Hello, {number}." for number in range(20)]
    assert len(pool.workers.pids) <= 2


async def test_a_call_that_gets_no_process_in_time_is_told_so(pool: Pool) -> None:
    hanging = []
    for number in range(2):
        marker = pool.folder / f"marker{number}"
        hanging.append(asyncio.create_task(pool.call("hang", marker=str(marker))))
        await until(marker.exists)
    with pytest.raises(ToolUnavailable, match="All processes for the tool greet were taken for too long"):
        await pool.call("greet", within_s=0.05, whom="Ann")
    waiting = asyncio.create_task(pool.call("greet", whom="Ann"))
    await asyncio.sleep(0)
    hanging[0].cancel()
    assert await waiting == "Hello, Ann."
    hanging[1].cancel()
    await asyncio.wait(hanging)


async def test_a_cancelled_waiter_loses_no_worker(pool: Pool) -> None:
    await pool.workers.warm(2)
    for _ in range(50):
        calls = [asyncio.create_task(pool.call("greet", whom="Ann")) for _ in range(6)]
        await asyncio.sleep(0)
        for call in calls[2:]:
            call.cancel()
        await asyncio.wait(calls)
        assert [call.result() for call in calls[:2]] == ["Hello, Ann."] * 2
    assert pool.workers.idle == 2


async def test_warm_workers_are_there_before_a_call_and_replaced_after_a_death(tmp_path: Path) -> None:
    workers = Workers(source(warm=2), ENVIRONMENT)
    try:
        await workers.warm(5)  # more than there may be
        before = workers.pids
        assert len(before) == workers.idle == 2
        with pytest.raises(ToolDied):
            await Pool(workers, tmp_path).call("die", how="exit")
        await until(lambda: workers.idle == 2)
        assert len(workers.pids - before) == 1
    finally:
        await workers.close()


async def test_close_ends_all_and_fails_what_runs_and_waits(tmp_path: Path) -> None:
    workers = Workers(source(workers=1), ENVIRONMENT)
    pool, marker = Pool(workers, tmp_path), tmp_path / "marker"
    running = asyncio.create_task(pool.call("hang", marker=str(marker), child=True))
    await until(marker.exists)
    waiting = asyncio.create_task(pool.call("greet", whom="Ann"))
    await asyncio.sleep(0)
    await workers.close()
    await workers.close()
    for call in (running, waiting, asyncio.create_task(pool.call("greet", whom="Ann"))):
        with pytest.raises(ToolUnavailable, match="shut down"):
            await call
    assert not any(map(is_running, map(int, marker.read_text().split())))


async def test_close_in_the_middle_of_a_start_leaves_nothing(tmp_path: Path) -> None:
    for pause in (0.0, 0.002, 0.02, 0.05):
        workers = Workers(source(workers=1), ENVIRONMENT)
        call = asyncio.create_task(Pool(workers, tmp_path).call("greet", whom="Ann"))
        await asyncio.sleep(pause)
        await workers.close()
        with pytest.raises(ToolUnavailable):
            await call
        assert not workers.pids


async def test_a_worker_that_dies_of_itself_is_not_replaced_until_somebody_calls(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(
        "import os, threading\nfrom agentflow.tools.function import tool\n@tool\ndef one() -> int:\n    return os.getpid()\n"
        "threading.Timer(0.1, os._exit, (1,)).start()\n"
    )
    workers = Workers(source(tmp_path / "dying.py", warm=1), ENVIRONMENT)
    try:
        await workers.describe()
        (pid,) = workers.pids
        await until(lambda: not workers.pids)
        await asyncio.sleep(0.3)
        assert not workers.pids
        assert await Pool(workers, tmp_path).call("one") != str(pid)
    finally:
        await workers.close()


# Modules that cannot be imported


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import no_such_thing", "bad.py, line 1: there is no module 'no_such_thing': install it for "),
        ("import os\nprint('last words', flush=True)\nos._exit(3)", r"bad.py: .*exit code 3\): last words: correct"),
        (
            "x = 'x' * (2 << 30)",
            "bad.py.*importing it takes more memory than memory_mb allows|bad.py, line 1: MemoryError",
        ),
        ("import time\ntime.sleep(60)", "bad.py: importing it took more than 0.3 s"),
    ],
)
async def test_a_module_that_cannot_be_imported_is_told_with_file_and_line(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "bad.py").write_text(text)
    workers = Workers(
        source(tmp_path / "bad.py", warm=2, start_timeout_s=0.3 if "sleep" in text else 60.0), ENVIRONMENT
    )
    try:
        with pytest.raises(InvalidTool, match=sentence) as caught:
            await workers.describe()
        assert not caught.value.again
        with pytest.raises(InvalidTool, match=sentence):
            await workers.warm(1)
        assert not workers.pids
    finally:
        await workers.close()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (
            signal.SIGKILL,
            r"bad.py: it was being imported, and its process was killed from outside \(by the kernel, if memory",
        ),
        (signal.SIGSEGV, r"bad.py: it was being imported, and its process crashed \(SIGSEGV\)"),
    ],
)
async def test_a_process_that_is_killed_while_it_imports_is_told_as_that_and_may_be_tried_again(
    tmp_path: Path, number: int, sentence: str
) -> None:
    marker, module = tmp_path / "marker", tmp_path / "bad.py"
    module.write_text(
        f"import os\nfrom pathlib import Path\nPath({str(marker)!r}).write_text(str(os.getpid()))\nwhile True: pass"
    )
    workers = Workers(source(module), ENVIRONMENT)
    try:
        call = asyncio.create_task(Pool(workers, tmp_path).call("one"))
        await until(lambda: marker.exists() and marker.read_text() != "")
        os.kill(int(marker.read_text()), number)
        with pytest.raises(ToolUnavailable, match=sentence) as caught:
            await call
        assert caught.value.again
        module.write_text("from agentflow.tools.function import tool\n@tool\ndef one() -> int:\n    return 1\n")
        assert await Pool(workers, tmp_path).call("one") == "1"
    finally:
        await workers.close()


async def test_a_module_that_was_mended_is_imported_by_the_next_call(tmp_path: Path) -> None:
    module = tmp_path / "mended.py"
    module.write_text("(")
    workers = Workers(source(module), ENVIRONMENT)
    try:
        with pytest.raises(ToolError, match="SyntaxError"):
            await Pool(workers, tmp_path).call("one")
        module.write_text("from agentflow.tools.function import tool\n@tool\ndef one() -> int:\n    return 1\n")
        assert await Pool(workers, tmp_path).call("one") == "1"
        with pytest.raises(ToolFailed, match="no longer has the tool two"):
            await Pool(workers, tmp_path).call("two")
    finally:
        await workers.close()
