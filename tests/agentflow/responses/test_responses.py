"""A response is its run's log: it survives the daemon at every point, and is told as it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.overview import Overview, Wanted
from agentflow.agents.record import CallEnded, Event
from agentflow.engine.script import Rule
from agentflow.errors import ContextLengthExceeded, InvalidRequest
from agentflow.library.refusals import DataDamaged, NotStored
from agentflow.library.values import PageRequest
from agentflow.messages import ChatRequest, Tool
from agentflow.responses.conversations import Conversations
from agentflow.responses.events import ResponseEvent
from agentflow.responses.ids import run_of
from agentflow.responses.items import CallItem, MessageItem, ToolItem
from agentflow.responses.projection import Projection
from agentflow.responses.records import ResponseRecord, Settings
from agentflow.responses.store import ResponseStore
from agentflow.responses.values import NewResponse
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig, EventRecord
from tests.agentflow.agents.agencies import BodyTool, benched, call, kept
from tests.agentflow.agents.test_lifetimes import HeldSync

RULES: dict[str, str | Rule] = {
    "go": "I ask 查. " + call("weather", '{"city": "Paris"}'),
    "slow": Rule(answer="s" * 5000, tokens_per_s=200),
}
WEATHER = Tool("weather", "Tells the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


async def opened(folder: Path) -> DataPlane:
    return await DataPlane.open(DataPlaneConfig(path=str(folder / "data"), hot_layer_mem_mb=64))


def asked(text: str, model: str = "m", **settings: Any) -> NewResponse:
    request = ChatRequest(id="req", model=model, messages=(), tools=(WEATHER,) if model == "m" else ())
    item = MessageItem(id="msg_1", role="user", texts=(text,))
    return NewResponse(request=request, input=(item,), settings=Settings(**settings))


def told(record: ResponseRecord, log: list[Event]) -> list[ResponseEvent]:
    projection = Projection(record)
    return [each for event in log for each in projection.apply(event)]


async def test_a_plain_models_answer_is_finished_by_another_daemon_from_every_point(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    archive = Archive(plane.state)

    async def same() -> Archive:
        return archive

    store = ResponseStore(same)
    async with benched(tmp_path, RULES, [], plane=plane, tokens_per_delta=7) as it:
        stream = await it.service.responses.create(asked("go"))
        whole_state = await stream.finish()
        await it.service.agents.drain()
    record, run_id = whole_state.record, run_of(whole_state.record.id)
    whole = [event for _, event in await archive.events("default", run_id)]
    text, called = whole_state.output
    assert isinstance(text, MessageItem)
    assert isinstance(called, CallItem)
    assert (text.texts, called.arguments) == (("I ask 查. ",), '{"city": "Paris"}')
    cuts = range(1, len(whole))
    for cut in cuts:
        journal = await archive.open(f"t{cut}", RunRecord(id=run_id, agent="", model="m", created_ms=0))
        await journal.append(whole[:cut], kept)
        await store.put(f"t{cut}", record)
    async with benched(tmp_path, RULES, [], plane=plane, tokens_per_delta=7) as it:
        assert await it.service.agents.resume() == len(cuts)
        await it.service.agents.drain()
        for cut in cuts:
            state = await it.service.responses.retrieve(f"t{cut}", record.id)
            assert state.status == "completed"
            assert state.output == whole_state.output
            log = [event for _, event in await archive.events(f"t{cut}", run_id)]
            before = told(record, whole[:cut])
            stream = await it.service.responses.stream(f"t{cut}", record.id, -1)
            assert [event async for event in stream] == told(record, log)
            assert told(record, log)[: len(before)] == before
    await plane.close()


async def test_an_agents_response_with_a_clients_call_is_finished_by_another_daemon_from_every_point(
    tmp_path: Path,
) -> None:
    async def look(_: dict[str, Any], __: CallContext) -> str:
        return "a hat"

    plane, tools = await opened(tmp_path), [BodyTool("look", look, idempotent=True)]
    rules: dict[str, str | Rule] = {"go": "I do both. " + call("weather", '{"city": "Paris"}') + call("look")}
    archive = Archive(plane.state)

    async def same() -> Archive:
        return archive

    async with benched(tmp_path, rules, tools, plane=plane, tokens_per_delta=7) as it:
        new = asked("go", "agent/a")
        new = replace(new, request=replace(new.request, tools=(WEATHER,)))
        whole_state = await (await it.service.responses.create(new)).finish()
        await it.service.agents.drain()
    record, run_id = whole_state.record, run_of(whole_state.record.id)
    whole = [event for _, event in await archive.events("default", run_id)]
    assert [type(item) for item in whole_state.output] == [MessageItem, CallItem, ToolItem]
    assert (whole_state.status, whole_state.output[2].output) == ("completed", "a hat")  # type: ignore[union-attr]
    cuts = range(1, len(whole))
    for cut in cuts:
        journal = await archive.open(f"t{cut}", RunRecord(id=run_id, agent="a", model="m", created_ms=0))
        await journal.append(whole[:cut], kept)
        await ResponseStore(same).put(f"t{cut}", record)
    async with benched(tmp_path, rules, tools, plane=plane, tokens_per_delta=7) as it:
        assert await it.service.agents.resume() == len(cuts)
        await it.service.agents.drain()
        for cut in cuts:
            state = await it.service.responses.retrieve(f"t{cut}", record.id)
            *others, looked = state.output
            assert (state.status, others) == ("completed", list(whole_state.output[:2])), cut
            ended = [each for _, each in await archive.events(f"t{cut}", run_id) if isinstance(each, CallEnded)]
            assert looked == replace(whole_state.output[2], at=ended[0].at), cut
    await plane.close()


async def test_a_response_that_goes_on_is_ended_by_its_deletion_and_cannot_be_gone_on_from(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, RULES, [], plane=plane) as it:
        responses = it.service.responses
        stream = await responses.create(asked("slow"))
        with pytest.raises(InvalidRequest, match="not over yet"):
            await responses.create(asked("go", previous_response_id=stream.id))
        reading = asyncio.create_task(stream.finish())
        await responses.delete("default", stream.id)
        assert (await reading).status == "cancelled"
        with pytest.raises(NotStored):
            await responses.retrieve("default", stream.id)
        assert await plane.state.scan("default", "run") == []
        assert await plane.state.scan("default", "response") == []
        await stream.aclose()
    await plane.close()


async def test_a_response_whose_run_is_deleted_leaves_only_what_it_gave_to_its_conversation(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, RULES, [], plane=plane) as it:
        responses = it.service.responses
        conversation = await responses.conversations.create("default", {}, ())
        state = await (await responses.create(asked("go", conversation=conversation.id))).finish()
        await it.service.agents.drain()
        await Overview(it.service.agents, responses.drop).delete("default", run_of(state.record.id))
        for kind in ("response", "run", "conversation_due"):
            assert await plane.state.scan("default", kind) == []
        items = await responses.conversations.all_items("default", conversation.id)
        assert items == [*state.record.input, *state.output]
        await responses.drop("default", "run_" + "0" * 24)  # of no response: nothing happens
    await plane.close()


async def test_a_response_that_is_deleted_leaves_nothing_of_its_tools_results(tmp_path: Path) -> None:
    async def long(_: dict[str, Any], __: CallContext) -> str:
        return "long " * 10_000

    plane = await opened(tmp_path)
    rules = {"long long": "Read.", "go": call("long")}
    async with benched(tmp_path, rules, [BodyTool("long", long)], plane=plane) as it:
        state = await (await it.service.responses.create(asked("go", "agent/a"))).finish()
        assert [path.is_file() for path in (tmp_path / "handles").rglob("h_*")] == [True]
        await it.service.responses.delete("default", state.record.id)
        assert list((tmp_path / "handles").rglob("h_*")) == []
    await plane.close()


async def test_a_conversation_waits_for_no_other_and_reads_no_log_of_a_response_that_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plane = await opened(tmp_path)
    archive, slow, free = Archive(plane.state), asyncio.Event(), asyncio.Event()
    response_id = "resp_" + "1" * 24
    going = {run_of(response_id)}

    async def opening() -> Archive:
        if (task := asyncio.current_task()) is not None and task.get_name() == "slow":
            slow.set()
            await free.wait()
        return archive

    store = ResponseStore(opening)

    async def nothing(_: str, __: str) -> None: ...

    conversations = Conversations(opening, store, lambda _, run_id: run_id in going, nothing)
    first, second = [await conversations.create("default", {}, ()) for _ in range(2)]
    settings = Settings(conversation=second.id)
    await store.put("default", ResponseRecord(id=response_id, model="m", input=(), settings=settings))
    await plane.state.append("default", f"run/{run_of(response_id)}", [EventRecord("said", 1, b"no event")])
    settling = asyncio.create_task(conversations.settle("default", first.id), name="slow")
    await slow.wait()
    async with asyncio.timeout(10):
        assert await conversations.all_items("default", second.id) == []
    assert caplog.text == ""
    going.clear()
    assert await conversations.all_items("default", second.id) == []
    assert [record.__dict__["response"] for record in caplog.records] == [response_id]
    free.set()
    await settling
    await plane.close()


async def test_a_response_that_fails_before_its_first_word_leaves_nothing_behind(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, RULES, [], plane=plane) as it:
        with pytest.raises(ContextLengthExceeded):
            await it.service.responses.create(asked("x" * 30_000))
        for kind in ("response", "run", "open_run"):
            assert await plane.state.scan("default", kind) == []
    await plane.close()


async def test_nobody_is_told_what_a_loss_of_power_would_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = asyncio.Event()

    async def look(_: dict[str, Any], __: CallContext) -> str:
        await free.wait()
        return "a hat"

    plane, rules = await opened(tmp_path), {"a hat": "It is a hat.", "go": call("look")}
    async with benched(tmp_path, rules, [BodyTool("look", look)], plane=plane) as it:
        responses, overview = it.service.responses, Overview(it.service.agents)
        conversation = await responses.conversations.create("default", {}, ())
        stream = await responses.create(asked("go", "agent/a", conversation=conversation.id))
        live = it.service.agents.live("default", stream.run_id)
        assert live is not None
        await live.until(lambda: any(each.attempt for each in live.progress.calls))
        await live.kept()
        with HeldSync(plane, monkeypatch):
            free.set()
            await live.until(lambda: live.over)
            state = await responses.retrieve("default", stream.id)
            assert (state.status, [type(item) for item in state.output]) == ("in_progress", [ToolItem])
            with pytest.raises(InvalidRequest) as caught:
                await responses.create(asked("go", previous_response_id=stream.id))
            assert caught.value.code == "previous_response_in_progress"
            assert await responses.conversations.all_items("default", conversation.id) == []
            (run,), _ = await overview.page("default", Wanted(limit=5))
            assert (run.status, run.steps, run.calls) == ("running", 1, 1)
        assert (await stream.finish()).status == "completed"
        await it.service.agents.drain()
        (run,), _ = await overview.page("default", Wanted(limit=5))
        assert (run.status, run.steps, run.calls) == ("completed", 2, 1)
        assert len(await responses.conversations.all_items("default", conversation.id)) == 3
    await plane.close()


async def test_what_cannot_be_read_is_told_as_damage(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, RULES, [], plane=plane) as it:
        conversations = it.service.responses.conversations
        kept = await conversations.create("default", {}, ())
        await plane.state.put("default", "conversation", kept.id, b"{")
        with pytest.raises(DataDamaged, match="restore it from a backup"):
            await conversations.retrieve("default", kept.id)
        response_id = "resp_" + "0" * 24
        await plane.state.put("default", "response", response_id, b"[]")
        with pytest.raises(DataDamaged, match="restore it from a backup"):
            await it.service.responses.retrieve("default", response_id)
    await plane.close()


async def test_a_record_without_a_log_is_no_response(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, RULES, [], plane=plane) as it:
        archive = await it.service.agents.archive()
        record = ResponseRecord(id="resp_" + "0" * 24, model="m", input=())
        await ResponseStore(it.service.agents.archive).put("default", record)
        for ask in (
            it.service.responses.retrieve("default", record.id),
            it.service.responses.stream("default", record.id, 0),
            it.service.responses.input_items("default", record.id, PageRequest()),
            it.service.responses.cancel("default", record.id),
        ):
            with pytest.raises(NotStored):
                await ask
        assert await archive.open_runs() == []
        await it.service.responses.delete("default", record.id)
        assert await plane.state.scan("default", "response") == []
    await plane.close()
