"""Runs that are cancelled, paused, steered, closed and taken up at awkward moments end once, and as they should."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.agency import Asked
from agentflow.agents.archive import RunRecord
from agentflow.agents.config import AgentConfig
from agentflow.agents.going import Going
from agentflow.agents.journal import Kept
from agentflow.agents.record import (
    Added,
    ApprovalGiven,
    Began,
    Ended,
    Event,
    Paused,
    Resumed,
    Said,
    StepBegan,
    StepEnded,
    Unpaused,
)
from agentflow.agents.runs import new_run_id
from agentflow.errors import Draining, EngineUnavailable, InvalidRequest
from agentflow.library.refusals import DataUnavailable, DiskFull
from agentflow.messages import ChatRequest, Message, Sampling, Structured
from agentflow.tokenizer import ByteTokenizer
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig
from tests.agentflow.agents.agencies import Bench, BodyTool, benched, call, kept, request, text_of


@pytest.fixture
async def plane(tmp_path: Path) -> Any:
    opened = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    yield opened
    await opened.close()


def plainly(text: str = "go", **sampling: Any) -> ChatRequest:
    """A request to the plain model."""
    return ChatRequest(id="r", model="m", messages=(Message("user", text),), sampling=Sampling(**sampling))


async def begun(it: Bench, wanted: ChatRequest | None = None) -> Going:
    return await it.service.agents.begin(request("go") if wanted is None else wanted, Asked(new_run_id()))


async def open_logs(it: Bench) -> list[list[str]]:
    """What the logs of the runs hold that are open, and do not go on."""
    archive = await it.service.agents.archive()
    return [
        [type(event).__name__ for _, event in await archive.events(tenant, run_id)]
        for tenant, run_id in await archive.open_runs()
        if it.service.agents.live(tenant, run_id) is None
    ]


def last(going: Going) -> Ended:
    ended = going.live.progress.ended
    assert ended is not None
    return ended


async def test_a_request_that_is_cancelled_at_any_moment_leaves_no_run_behind(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, {"go": "hello"}, [], plane=plane) as it:
        for moment in range(40):
            beginning = asyncio.ensure_future(begun(it))
            await asyncio.sleep(0.0005 * moment)
            beginning.cancel()
            await asyncio.wait([beginning])
        await it.service.agents.drain()
        assert await open_logs(it) == []


async def test_a_run_that_is_cancelled_again_while_its_end_is_noted_has_an_end(
    tmp_path: Path, plane: DataPlane
) -> None:
    async with benched(tmp_path, {"go": "hello" * 100}, [], plane=plane, tokens_per_s=200) as it:
        archive = await it.service.agents.archive()
        for moment in range(12):
            going = await begun(it)
            live = going.live
            await live.until(lambda live=live: len(live.progress.said) > 2)  # type: ignore[misc]
            going.cancel()
            for _ in range(moment):
                await asyncio.sleep(0)
            await it.service.agents.cancel("default", live.id)
            record = await archive.find("default", live.id)
            assert record is not None
            assert record.end == "cancelled"
        assert await archive.open_runs() == []


async def test_one_run_that_cannot_be_taken_up_holds_up_no_other(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with benched(tmp_path, {"go": "hello" * 100}, [], plane=plane, tokens_per_s=100) as it:
        first, *others = [await begun(it) for _ in range(3)]
        await first.live.until(lambda: bool(first.live.progress.said))
        began_at = first.live.told()[0].at
    async with benched(tmp_path, {"go": "hello" * 100}, [], plane=plane) as it:
        beginnings = it.service.agents._beginnings
        again = beginnings.again

        async def without_the_first(began: Began, tenant: str) -> Any:
            if began.at == began_at:
                raise EngineUnavailable("Its model does not load.", retry_after_s=1.0)
            return await again(began, tenant)

        monkeypatch.setattr(beginnings, "again", without_the_first)
        with pytest.raises(EngineUnavailable):
            await it.service.agents.resume()
        await it.service.agents.drain()
        archive = await it.service.agents.archive()
        assert [run_id for _, run_id in await archive.open_runs()] == [first.live.id]
        for other in others:
            record = await archive.find("default", other.live.id)
            assert record is not None
            assert record.end == "completed"
        monkeypatch.undo()
        assert await it.service.agents.resume() == 1


async def test_an_answer_that_has_a_form_comes_to_its_end_before_a_pause(tmp_path: Path) -> None:
    async with benched(tmp_path, {"go": "x"}, [], tokens_per_s=200) as it:
        going = await begun(it, plainly(structured=Structured("choice", ("a" * 40,), "f")))
        live = going.live
        await live.until(lambda: len(live.progress.said) > 3)
        await it.service.agents.tell("default", live.id, Paused())
        await it.service.agents.tell("default", live.id, Unpaused())
        await it.service.agents.drain()
        assert last(going).end == "completed"
        assert live.progress.said_turn().content == "a" * 40


@pytest.mark.parametrize("most", [40, None])
async def test_tokens_are_counted_over_a_pause(tmp_path: Path, most: int | None) -> None:
    async with benched(tmp_path, {"go": "x" * 100}, [], tokens_per_s=500) as it:
        going = await begun(it, plainly(max_tokens=most))
        live = going.live
        await live.until(lambda: len(live.progress.said) > 20)
        await it.service.agents.tell("default", live.id, Paused())
        await live.until(lambda: it.service.status().running == 0 or live.progress.paused)
        await it.service.agents.tell("default", live.id, Unpaused())
        await it.service.agents.drain()
        progress = live.progress
        assert progress.said_turn().content == "x" * (most or 100)
        assert progress.usage.completion_tokens == len(progress.said)
        assert progress.usage.prompt_tokens == len(progress.prompt)


async def test_the_end_token_and_the_step_s_end_are_told_together(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, {"go": "Hello."}, [], plane=plane) as it:
        going = await begun(it)
        await it.service.agents.drain()
        events = going.live.told()
        (place,) = (n for n, event in enumerate(events) if isinstance(event, Said) and ByteTokenizer.EOS in event.ids)
        assert isinstance(events[place + 1], StepEnded)
        assert events[place].at == events[place + 1].at


async def test_a_tool_that_goes_away_after_its_call_harms_nothing(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def fast(_: dict[str, Any], __: CallContext) -> str:
        return "fast result"

    async def slow(_: dict[str, Any], __: CallContext) -> str:
        await gate.wait()
        return "slow result"

    tools = [BodyTool("fast", fast, idempotent=True, fresh_for_s=0.001), BodyTool("slow", slow)]
    async with benched(tmp_path, {"slow result": "Done.", "go": call("fast") + call("slow")}, tools) as it:
        going = await begun(it)
        live = going.live
        await live.until(lambda: bool(live.progress.calls) and live.progress.calls[0].ended is not None)
        toolbox = it.service.agents._agency.toolbox
        toolbox.changing = True
        toolbox.renew(tools[1:])
        gate.set()
        await it.service.agents.drain()
        assert last(going).end == "completed"


async def test_a_message_that_is_taken_is_read(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, {"also": "Both.", "go": "One."}, [], plane=plane) as it:
        for _ in range(25):
            going = await begun(it)
            live = going.live
            await live.until(lambda live=live: live.progress.step == 0 and not live.progress.speaking)  # type: ignore[misc]
            await it.service.agents.tell("default", live.id, Added(message=Message("user", "also")))
            await going.ended()
            if any(isinstance(event, Added) for event in live.told()):
                assert live.progress.said_turn().content == "Both."


async def test_a_plain_model_s_answer_takes_no_messages(tmp_path: Path) -> None:
    async with benched(tmp_path, {"go": "x" * 60}, [], tokens_per_s=300) as it:
        going = await begun(it, plainly())
        with pytest.raises(InvalidRequest, match="takes no messages"):
            await it.service.agents.tell("default", going.live.id, Added(message=Message("user", "also")))


async def test_no_run_begins_within_the_erasure_of_its_tenant(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with benched(tmp_path, {"go": "hello"}, [], plane=plane) as it:
        runs = it.service.agents
        of, loaded = runs._beginnings.of, asyncio.Event()

        async def once_loaded(*asked: Any) -> Any:
            found = await of(*asked)
            await loaded.wait()
            return found

        monkeypatch.setattr(runs._beginnings, "of", once_loaded)
        beginning = asyncio.ensure_future(begun(it))
        await asyncio.sleep(0.02)
        async with runs.closed("default"):
            loaded.set()
            with pytest.raises(DataUnavailable, match="being erased"):
                await beginning
            assert await runs.resume() == 0


async def test_runs_that_were_admitted_are_taken_up_whatever_the_queue(tmp_path: Path, plane: DataPlane) -> None:
    rules = {"go": "hello" * 20}
    async with benched(tmp_path, rules, [], plane=plane, max_running=1, queue_limit=1, tokens_per_s=1000) as it:
        archive = await it.service.agents.archive()
        going = await begun(it)
        await it.service.agents.drain()
        begin: Sequence[Event] = going.live.told()[:2]
        names = [f"run_{number:024x}" for number in range(5)]
        for name in names:
            journal = await archive.open("default", RunRecord(id=name, agent="a", model="m", created_ms=1))
            await journal.append(begin, kept)
        assert await it.service.agents.resume() == 5
        await it.service.agents.drain()
        for name in names:
            record = await archive.find("default", name)
            assert record is not None
            assert record.end == "completed"


async def test_a_defect_under_one_run_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with benched(tmp_path, {"go": "hello" * 20}, [], tokens_per_s=500) as it:
        going, other = await begun(it), await begun(it)

        async def append(_: Any, __: Any) -> None:
            raise ValueError("a defect")

        monkeypatch.setattr(going.live._journal, "append", append)
        await it.service.agents.drain()
        assert last(other).end == "completed"


async def test_a_run_whose_end_cannot_be_written_is_left_and_ends_no_other(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with benched(tmp_path, {"go": "hello" * 60}, [], plane=plane, tokens_per_s=500) as it:
        going, other = await begun(it), await begun(it)
        following = asyncio.ensure_future(_followed(going))

        async def append(_: Any, __: Any) -> None:
            raise DataUnavailable("The disk is full.", retry_after_s=1.0)

        monkeypatch.setattr(going.live._journal, "append", append)
        assert await it.service.agents.cancel("default", going.live.id)
        with pytest.raises(DataUnavailable, match="disk is full"):
            await following
        await it.service.agents.drain()
        assert last(other).end == "completed"
        assert len(await open_logs(it)) == 1


async def _followed(going: Going) -> None:
    async for _ in going.live.follow():
        pass


async def test_what_is_refused_by_a_drain_is_not_stored(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, {"go": "hello" * 60}, [], plane=plane, tokens_per_s=500) as it:
        going = await begun(it)
        await going.live.until(lambda: bool(going.live.progress.said))
        draining = asyncio.ensure_future(it.service.drain(10.0))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            await begun(it)
        await draining
        assert last(going).end == "completed"
        assert [name for name, _ in await plane.state.scan("default", "run")] == [going.live.id]


async def test_a_drain_does_not_wait_for_people(tmp_path: Path, plane: DataPlane) -> None:
    async def pay(_: dict[str, Any], __: CallContext) -> str:
        return "paid"

    rules = {"paid": "Yes.", "go": call("pay"), "talk": "x" * 200}
    async with benched(tmp_path, rules, [BodyTool("pay", pay, approval=True)], plane=plane, tokens_per_s=400) as it:
        asking, paused = await begun(it), await begun(it, request("talk"))
        await it.service.agents.tell("default", paused.live.id, Paused())
        await asking.live.until(lambda: any(each.asked for each in asking.live.progress.waiting))
        async with asyncio.timeout(20):
            await it.service.drain(60.0)
        assert not asking.live.over
        assert not paused.live.over


async def test_a_log_that_begins_in_its_middle_is_left_for_a_repair(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, {"go": "hello"}, [], plane=plane) as it:
        archive = await it.service.agents.archive()
        journal = await archive.open("default", RunRecord(id="run_" + "0" * 24, agent="a", model="m", created_ms=1))
        await journal.append([StepBegan(step=0, model="m")], kept)
        assert await it.service.agents.resume() == 0
        assert await open_logs(it) == [["StepBegan"]]


@pytest.mark.parametrize("mode", ["overlap", "inject"])
async def test_a_caller_s_stop_string_is_not_in_the_answer(tmp_path: Path, mode: Any) -> None:
    async def look(_: dict[str, Any], __: CallContext) -> str:
        return "seen"

    agent = AgentConfig(tools=("*",), tool_mode=mode)
    rules = {"tool_response": "abcENDdef", "go": call("look") + "more"}
    async with benched(tmp_path, rules, [BodyTool("look", look)], agent) as it:
        text = text_of(await it.ask("go", sampling=Sampling(stop=("END",))))
        assert text == {"overlap": "more\n\nabc", "inject": "abc"}[mode]


async def test_what_no_engine_can_go_on_with_is_told(tmp_path: Path, plane: DataPlane) -> None:
    """The daemon died in the middle of an answer that must have a form."""
    async with benched(tmp_path, {"go": "x"}, [], plane=plane, tokens_per_s=200) as it:
        going = await begun(it, plainly(structured=Structured("choice", ("a" * 40,), "f")))
        await going.live.until(lambda: len(going.live.progress.said) > 3)
    async with benched(tmp_path, {"go": "x"}, [], plane=plane) as it:
        await it.service.agents.resume()
        await it.service.agents.drain()
        events = [event for _, event in await (await it.service.agents.archive()).events("default", going.live.id)]
        assert isinstance(events[-1], Ended)
        assert (events[-1].end, events[-1].why) == ("failed", "SequenceFailed")
        assert not any(isinstance(event, Resumed) for event in events)


async def test_a_defect_in_taking_up_one_run_holds_up_no_other(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with benched(tmp_path, {"go": "hello" * 100}, [], plane=plane, tokens_per_s=100) as it:
        first, other = await begun(it), await begun(it)
    async with benched(tmp_path, {"go": "hello" * 100}, [], plane=plane) as it:
        runs = it.service.agents
        take_up = runs._take_up

        async def defective(archive: Any, tenant: str, run_id: str) -> bool:
            if run_id == first.live.id:
                raise AttributeError("a defect")
            return await take_up(archive, tenant, run_id)

        monkeypatch.setattr(runs, "_take_up", defective)
        assert await runs.resume() == 1
        await runs.drain()
        record = await (await runs.archive()).find("default", other.live.id)
        assert record is not None
        assert record.end == "completed"


class HeldSync:
    """The disk, which makes nothing durable until it is `free`."""

    def __init__(self, plane: DataPlane, monkeypatch: pytest.MonkeyPatch) -> None:
        self._free = threading.Event()
        sync = plane.rocks.sync

        def held() -> None:
            assert self._free.wait(30)
            sync()

        monkeypatch.setattr(plane.rocks, "sync", held)

    def __enter__(self) -> None:
        self._free.clear()

    def __exit__(self, *_: object) -> None:
        self._free.set()


async def test_a_run_whose_last_word_is_lost_is_left_open_for_the_next_daemon(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with benched(tmp_path, {"go": "hello" * 20}, [], plane=plane, tokens_per_s=500) as it:
        going = await begun(it)
        following = asyncio.ensure_future(_followed(going))
        journal = going.live._journal
        append = journal.append

        async def losing(events: Sequence[Event], kept: Kept) -> None:
            if isinstance(events[-1], Ended):
                kept(DiskFull("The disk is full.", retry_after_s=1.0))
            else:
                await append(events, kept)

        monkeypatch.setattr(journal, "append", losing)
        with pytest.raises(DiskFull):
            await following
        await it.service.agents.drain()
        (log,) = await open_logs(it)
        assert log[0] == "Began"
        assert "Ended" not in log


async def test_only_a_call_that_must_not_be_made_twice_waits_for_the_disk(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def tool(name: str, *, idempotent: bool) -> BodyTool:
        async def body(_: dict[str, Any], __: CallContext) -> str:
            made.append(name)
            return "done"

        return BodyTool(name, body, idempotent=idempotent)

    rules = {"done": "It is done.", "go": call("look") + call("book")}
    tools = [tool("look", idempotent=True), tool("book", idempotent=False)]
    async with benched(tmp_path, rules, tools, plane=plane) as it:
        assert text_of(await it.ask("done")) == "It is done."  # what is opened once is open
        with HeldSync(plane, monkeypatch):
            asking = asyncio.create_task(it.ask("go"))
            while "look" not in made:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            run_id = it.service.agents.ids("default")[-1]  # the one before notes its end
            live = it.service.agents.live("default", run_id)
            assert live is not None
            assert made == ["look"]
            assert live.told() == []
            assert live.progress.calls[0].ended is not None
        assert text_of(await asking) == "It is done."
        assert made == ["look", "book"]


async def test_nobody_is_told_that_a_run_began_or_heard_him_before_that_is_kept(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def book(_: dict[str, Any], __: CallContext) -> str:
        return "booked"

    tools = [BodyTool("book", book, approval=True)]
    async with benched(tmp_path, {"booked": "It is.", "go": call("book")}, tools, plane=plane) as it:
        runs, disk = it.service.agents, HeldSync(plane, monkeypatch)
        with disk:
            beginning = asyncio.create_task(begun(it))
            await asyncio.sleep(0.05)
            assert not beginning.done()
        live = (await beginning).live
        await live.until(lambda: any(each.asked for each in live.progress.waiting))
        with disk:
            telling = asyncio.create_task(runs.tell("default", live.id, Paused()))
            word = ApprovalGiven(call_id=live.progress.waiting[0].id, allowed=True)
            approving = asyncio.create_task(runs.approve("default", live.id, word))
            await live.until(lambda: live.progress.calls[0].answer is not None)
            await asyncio.sleep(0.02)
            assert live.progress.paused
            assert not telling.done()
            assert not approving.done()
        assert await asyncio.gather(telling, approving) == [True, True]
        assert await runs.tell("default", live.id, Unpaused())
        await runs.drain()
        assert not await runs.tell("default", live.id, Paused())
