"""A stored run goes on from every point at which its daemon may have died, and contradicts nothing that was seen."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.progress import Progress
from agentflow.agents.record import Began, CallEnded, CallStarted, Ended, Event, Resumed, Said, StepBegan
from agentflow.engine.script import Rule
from agentflow.errors import Draining, EngineDied
from agentflow.events import TextDelta
from agentflow.messages import Message
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig
from tests.agentflow.agents.agencies import Bench, BodyTool, benched, call, kept, request, text_of

RULES = {
    "paid": "All is done. 再见",
    "booked": "Step four. " + call("pay"),
    "second": "Step three. " + call("book") + "Then I pay.",
    "first": "Step two 查. " + call("look", '{"n": 2}'),
    "go": "Step one. " + call("look", '{"n": 1}'),
    "unknown": "I cannot tell.",
}
STEPS = 5


async def opened(folder: Path) -> DataPlane:
    return await DataPlane.open(DataPlaneConfig(path=str(folder / "data"), hot_layer_mem_mb=64))


def tools(made: Counter[str]) -> list[BodyTool]:
    async def look(arguments: dict[str, Any], _: CallContext) -> str:
        made["look"] += 1
        return {1: "first", 2: "second"}[arguments["n"]]

    async def book(_: dict[str, Any], __: CallContext) -> str:
        made["book"] += 1
        return "booked"

    async def pay(_: dict[str, Any], __: CallContext) -> str:
        made["pay"] += 1
        return "paid"

    return [BodyTool("look", look, idempotent=True), BodyTool("book", book), BodyTool("pay", pay, idempotent=True)]


async def finished(it: Bench, tenant: str, run_id: str) -> None:
    """Wait until a run that was taken up has ended."""
    live = it.service.agents.live(tenant, run_id)
    if live is not None:
        async for _ in live.follow():
            pass
    await it.service.agents.drain()


def text(events: list[Event], run_id: str) -> str:
    progress = Progress(run_id)
    return "".join(heard.text for event in events for heard in progress.apply(event) if isinstance(heard, TextDelta))


async def a_whole_run(folder: Path, plane: DataPlane) -> tuple[str, list[Event]]:
    made: Counter[str] = Counter()
    async with benched(folder, RULES, tools(made), plane=plane, tokens_per_delta=7) as it:
        stream = await it.service.chat(request("go"))
        events = [event async for event in stream]
        assert text_of(events).startswith("Step one. \n\nStep two 查. ")
        await stream.aclose()
        ((name, _),) = await plane.state.scan("default", "run")
    assert made == {"look": 2, "book": 1, "pay": 1}
    return name, [event for _, event in await Archive(plane.state).events("default", name)]


async def test_a_run_goes_on_from_every_point_of_its_log(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    run_id, whole = await a_whole_run(tmp_path, plane)
    assert isinstance(whole[-1], Ended)
    archive = Archive(plane.state)
    made: Counter[str] = Counter()
    cuts = range(1, len(whole))
    for cut in cuts:
        journal = await archive.open(f"t{cut}", RunRecord(id=run_id, agent="a", model="m", created_ms=0))
        await journal.append(whole[:cut], kept)
    async with benched(tmp_path, RULES, tools(made), plane=plane, tokens_per_delta=7) as it:
        assert await it.service.agents.resume() == len(cuts)
        await it.service.agents.drain()
    assert await archive.open_runs() == []
    for cut in cuts:
        events = [event for _, event in await archive.events(f"t{cut}", run_id)]
        assert events[:cut] == whole[:cut]
        assert isinstance(events[-1], Ended)
        assert text(events, run_id).startswith(text(whole[:cut], run_id))
        # A booking that was under way is not made again, and the model is told so; all else comes out as it would have.
        if book_is_open(whole[:cut]):
            assert text(events, run_id).endswith("I cannot tell.")
            (told,) = {event.text for event in events if isinstance(event, CallEnded) and event.is_error}
            assert told == (
                "The outcome of this call is unknown: it was cut off while it was under way. It may have been done, and is not "
                "repeated."
            )
        else:
            assert text(events, run_id) == text(whole, run_id)
        started = Counter(event.name for event in events if isinstance(event, CallStarted))
        assert started["book"] <= 1
    assert made["book"] == sum(1 for cut in cuts if not any(is_book(event) for event in whole[:cut]))
    await plane.close()


def is_book(event: Event) -> bool:
    return isinstance(event, CallStarted) and event.name == "book"


def book_is_open(events: list[Event]) -> bool:
    ids = {event.call_id for event in events if is_book(event) and isinstance(event, CallStarted)}
    return bool(ids) and not any(isinstance(event, CallEnded) and event.call_id in ids for event in events)


async def test_a_run_is_left_open_by_a_daemon_that_stops_and_taken_up_by_the_next(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    began = asyncio.Event()
    free = asyncio.Event()

    async def wait(_: dict[str, Any], __: CallContext) -> str:
        began.set()
        await free.wait()
        return "paid"

    rules = {"paid": "Done.", "go": "Wait. " + call("wait")}
    waiting = [BodyTool("wait", wait, idempotent=True)]
    async with benched(tmp_path, rules, waiting, plane=plane) as it:
        stream = await it.service.chat(request("go"))
        reading = asyncio.create_task(_read(stream))
        await began.wait()
    with pytest.raises(Draining, match="shutting down"):
        await reading
    free.set()
    async with benched(tmp_path, rules, waiting, plane=plane) as it:
        assert await it.service.agents.resume() == 1
        await it.service.agents.drain()
    ((name, _),) = await plane.state.scan("default", "run")
    events = [event for _, event in await Archive(plane.state).events("default", name)]
    assert text(events, name) == "Wait. Done."
    await plane.close()


async def _read(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_a_run_that_is_not_stored_leaves_nothing(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, {"go": "Hello."}, [], plane=plane) as it:
        assert text_of(await it.ask("go", store=False)) == "Hello."
    assert await plane.state.scan("default", "run") == []
    assert await plane.state.scan("/agents", "tenant") == []
    await plane.close()


async def test_an_engine_that_dies_is_replaced_and_the_answer_goes_on(tmp_path: Path) -> None:
    """Each engine dies after four tokens, and the next goes on behind them."""
    rules = {"go": Rule(answer="abcdefghij", die_after_tokens=4)}
    async with benched(tmp_path, rules, []) as it:
        assert text_of(await it.ask("go")) == "abcdefghij"
        assert len(it.ended) == 3


async def test_a_run_ends_with_the_third_engine_that_dies_in_one_step(tmp_path: Path) -> None:
    rules = {"go": Rule(answer="abcdefghijklmnop", die_after_tokens=4)}
    async with benched(tmp_path, rules, []) as it:
        with pytest.raises(EngineDied):
            await it.ask("go")


async def test_a_run_of_which_engines_die_ends_no_other(tmp_path: Path) -> None:
    """It speaks beside them twice; the third engine that dies of it is its own."""
    poison, calm = "abcdefghijklmnop", "word " * 20
    rules = {"poison": Rule(answer=poison, die_after_tokens=4), "calm": Rule(answer=calm)}
    async with benched(tmp_path, rules, [], tokens_per_s=500.0) as it:
        asked = (it.ask(each) for each in ("calm 1", "poison", "calm 2", "calm 3"))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(found.pop(1), EngineDied)
        assert [text_of(each) for each in found if isinstance(each, list)] == [calm] * 3


async def test_half_a_character_is_forgotten_and_said_again(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    archive = Archive(plane.state)
    prompt = list(b"<|user|>\ngo<|end|>\n<|assistant|>\n")
    begun = [
        Began(agent="a", model="m", messages=(Message("user", "go"),), prompt=prompt),
        StepBegan(step=0, model="m"),
        Said(ids=list("再见".encode())[:3], text="再"),
        Said(ids=list("再见".encode())[3:5], text=""),
    ]
    journal = await archive.open("acme", RunRecord(id="run_1", agent="a", model="m", created_ms=0))
    await journal.append(begun, kept)
    async with benched(tmp_path, {"go": "再见, 再见"}, [], plane=plane) as it:
        await it.service.agents.resume()
        await it.service.agents.drain()
    events = [event for _, event in await archive.events("acme", "run_1")]
    assert [event.kept for event in events if isinstance(event, Resumed)] == [3]
    assert text(events, "run_1") == "再见, 再见"
    await plane.close()


async def test_a_run_whose_agent_is_gone_ends_and_says_so(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    archive = Archive(plane.state)
    journal = await archive.open("acme", RunRecord(id="run_1", agent="gone", model="m", created_ms=0))
    await journal.append([Began(agent="gone", model="m", messages=(), prompt=[1]), StepBegan(step=0, model="m")], kept)
    async with benched(tmp_path, {}, [], plane=plane) as it:
        await it.service.agents.resume()
        await it.service.agents.drain()
    found = await archive.find("acme", "run_1")
    assert found is not None
    assert (found.end, found.why) == ("failed", "agent_gone")
    assert await archive.open_runs() == []
    await plane.close()


async def test_a_log_that_cannot_be_read_is_left_for_a_repair_and_stops_no_other(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    archive = Archive(plane.state)
    began = Began(agent="a", model="m", messages=(Message("user", "go"),), prompt=list(b"<|user|>\ngo<|assistant|>\n"))
    for run_id, events in (
        ("run_1", [began, CallEnded(call_id="call_of_nobody", text="x")]),
        ("run_2", [began]),
    ):
        journal = await archive.open("acme", RunRecord(id=run_id, agent="a", model="m", created_ms=0))
        await journal.append(events, kept)
    async with benched(tmp_path, {"go": "Hello."}, [], plane=plane) as it:
        assert await it.service.agents.resume() == 1
        await it.service.agents.drain()
    assert await archive.open_runs() == [("acme", "run_1")]
    await plane.close()
