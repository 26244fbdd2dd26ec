"""What a run has done, as pages of its events and as a stream that follows it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest_asyncio

from tests.acu.http.run_serving import RUNS, Desk, events_of, log_of, serving_runs


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with serving_runs(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def web(desk: Desk) -> AsyncIterator[httpx2.AsyncClient]:
    async with desk.client() as made:
        yield made


async def test_events_come_in_pages_with_their_fields(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.run("sum")
    whole = await log_of(web, run_id)
    assert [event["sequence_number"] for event in whole] == list(range(1, len(whole) + 1))
    assert (whole[0]["type"], whole[0]["agent"]) == ("began", "desk")
    assert whole[0]["messages"][0]["content"] == "sum"
    assert (whole[-1]["type"], whole[-1]["end"], whole[-1]["error"]) == ("ended", "completed", None)
    (called,) = [event for event in whole if event["type"] == "call_ended"]
    assert (called["text"], called["is_error"], called["handle"]) == ("42", False, None)
    page = (await web.get(f"{RUNS}/{run_id}/events?after=2&limit=3")).json()
    assert (page["data"], page["has_more"]) == (whole[2:5], True)
    page = (await web.get(f"{RUNS}/{run_id}/events?after={len(whole)}")).json()
    assert (page["data"], page["has_more"]) == ([], False)


async def test_a_stream_of_a_run_that_is_over_has_its_whole_log(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.run("sum")
    whole = await log_of(web, run_id)
    async with web.stream("GET", f"{RUNS}/{run_id}/events?stream=true") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert [event async for event in events_of(answer)] == whole
    async with web.stream("GET", f"{RUNS}/{run_id}/events?stream=true&after=3") as answer:
        assert [event async for event in events_of(answer)] == whole[3:]
    back = {"last-event-id": "5"}
    async with web.stream("GET", f"{RUNS}/{run_id}/events?stream=true&after=3", headers=back) as answer:
        assert [event async for event in events_of(answer)] == whole[5:]


async def test_a_stream_follows_a_run_to_its_end(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.begin("wait")
    seen: list[dict[str, Any]] = []
    async with web.stream("GET", f"{RUNS}/{run_id}/events?stream=true") as answer:
        async for event in events_of(answer):
            seen.append(event)
            if event["type"] == "call_started":
                desk.gate.open.set()
    await desk.served.service.agents.drain()
    assert seen == await log_of(web, run_id)
    assert seen[-1]["type"] == "ended"


async def test_a_follower_that_leaves_leaves_nothing_and_the_run_goes_on(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.begin("wait")
    await desk.waiting()
    tasks = len(asyncio.all_tasks())
    async with desk.client() as other, other.stream("GET", f"{RUNS}/{run_id}/events?stream=true") as answer:
        async for event in events_of(answer):
            if event["type"] == "call_started":
                break
    records = await desk.served.recorded(1)
    assert (records[-1]["route"], records[-1]["status"], records[-1]["streamed"]) == (
        "/acu/v1/runs/{run_id}/events", 499, True
    )  # fmt: skip
    async with asyncio.timeout(30):
        while len(asyncio.all_tasks()) > tasks:
            await asyncio.sleep(0.005)
    desk.gate.open.set()
    await desk.served.service.agents.drain()
    assert (await web.get(f"{RUNS}/{run_id}")).json()["status"] == "completed"


async def test_followers_are_told_when_the_daemon_leaves_the_run(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.begin("wait")
    await desk.waiting()
    async with web.stream("GET", f"{RUNS}/{run_id}/events?stream=true") as answer:
        lines = [line async for line in _leaving(desk, answer) if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2][6:])["error"]["code"] == "draining"


async def _leaving(desk: Desk, answer: httpx2.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if '"call_started"' in line:
            await desk.served.service.leave_runs()
        yield line
