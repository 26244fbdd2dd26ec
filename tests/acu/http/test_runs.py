"""/acu/v1/runs: what agents did is seen, what they do can be steered, and each tenant has its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from acu.http.wire.runs import MESSAGE_CHARS
from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.record import Began, StepBegan
from agentflow.messages import Message
from tests.acu.http.hostile import request
from tests.acu.http.raw import talk
from tests.acu.http.run_serving import RUNS, Desk, events_of, log_of, refused, serving_runs
from tests.acu.http.serving import serving
from tests.agentflow.agents.agencies import kept


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with serving_runs(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def web(desk: Desk) -> AsyncIterator[httpx2.AsyncClient]:
    async with desk.client() as made:
        yield made


async def test_runs_are_listed_the_newest_first_in_pages(desk: Desk, web: httpx2.AsyncClient) -> None:
    ids: list[str] = []
    for agent in ("desk", "other", "desk"):
        ids.insert(0, await desk.run("hello", agent=agent))
        await asyncio.sleep(0.002)  # ids have milliseconds
    page = (await web.get(RUNS)).json()
    assert (page["object"], [run["id"] for run in page["data"]], page["has_more"]) == ("list", ids, False)
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
    run = page["data"][0]
    assert (run["agent"], run["model"], run["status"], run["why"]) == ("desk", "scripted", "completed", "stop")
    assert (run["steps"], run["calls"]) == (1, 0)
    assert run["ended_at"] >= run["created_at"] > 1_700_000_000
    page = (await web.get(f"{RUNS}?limit=2")).json()
    assert ([run["id"] for run in page["data"]], page["has_more"]) == (ids[:2], True)
    page = (await web.get(f"{RUNS}?limit=2&after={page['last_id']}")).json()
    assert ([run["id"] for run in page["data"]], page["has_more"]) == (ids[2:], False)
    page = (await web.get(f"{RUNS}?agent=other")).json()
    assert [run["id"] for run in page["data"]] == [ids[1]]
    assert (await web.get(f"{RUNS}?status=failed")).json() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False
    }  # fmt: skip


async def test_runs_that_go_on_are_listed_though_they_are_not_stored(desk: Desk, web: httpx2.AsyncClient) -> None:
    over = await desk.run("hello")
    await asyncio.sleep(0.002)
    kept = await desk.begin("wait")
    await asyncio.sleep(0.002)
    passing = await desk.begin("wait", store=False)
    await desk.waiting(2)
    page = (await web.get(RUNS)).json()
    assert [(run["id"], run["status"], run["calls"]) for run in page["data"]] == [
        (passing, "running", 1), (kept, "running", 1), (over, "completed", 0)
    ]  # fmt: skip
    page = (await web.get(f"{RUNS}?status=running&limit=1")).json()
    assert ([run["id"] for run in page["data"]], page["has_more"]) == ([passing], True)
    assert (await web.get(f"{RUNS}/{passing}")).json()["steps"][0]["text"] == "I wait. "
    assert len(await log_of(web, passing)) >= 4
    desk.gate.open.set()
    await desk.served.service.agents.drain()
    page = (await web.get(RUNS)).json()
    assert [(run["id"], run["status"]) for run in page["data"]] == [(kept, "completed"), (over, "completed")]
    assert refused(await web.get(f"{RUNS}/{passing}")) == (404, "not_found")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_that_is_not_to_be_stored_leaves_no_run(desk: Desk, web: httpx2.AsyncClient, stream: bool) -> None:
    body = {"model": "agent/desk", "messages": [{"role": "user", "content": "sum"}], "stream": stream}
    ids = {}
    for store in (True, None, False):
        answer = await web.post("/v1/chat/completions", json=body | {"store": store})
        assert (answer.status_code, "42" in answer.text) == (200, True)
        ids[store] = answer.headers["x-acu-run-id"]
    await desk.served.service.agents.drain()
    page = (await web.get(RUNS)).json()
    assert {run["id"] for run in page["data"]} == {ids[True], ids[None]}
    assert refused(await web.get(f"{RUNS}/{ids[False]}")) == (404, "not_found")
    assert await desk.state.read("alice", f"run/{ids[False]}") == []
    assert await desk.state.scan("alice", "run", prefix=ids[False], limit=5) == []
    assert await desk.state.scan("alice", "open_run", limit=5) == []


async def test_an_account_tells_steps_and_calls(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.run("sum")
    run = (await web.get(f"{RUNS}/{run_id}")).json()
    assert (run["id"], run["status"], run["why"], run["error"]) == (run_id, "completed", "stop", None)
    first, second = run["steps"]
    assert (first["text"], second["text"]) == ("Let me see. ", "It is 42.")
    assert (second["number"], second["finish_reason"], second["calls"]) == (1, "stop", [])
    (call,) = first["calls"]
    assert (call["name"], call["arguments"], call["result"]) == ("calculator", '{"expression": "6*7"}', "42")
    assert run["created_at"] <= first["began_at"] <= call["started_at"] <= call["ended_at"] <= run["ended_at"]
    usage = run["usage"]
    assert usage["completion_tokens"] == first["completion_tokens"] + second["completion_tokens"]


async def test_an_account_in_mid_flight_tells_so_far(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.begin("wait")
    await desk.waiting()
    run = (await web.get(f"{RUNS}/{run_id}")).json()
    assert (run["status"], run["ended_at"]) == ("running", None)
    (call,) = run["steps"][0]["calls"]
    assert (call["name"], call["ended_at"], call["result"]) == ("wait", None, None)
    assert run["as_of"] >= call["started_at"] > 0


async def test_a_run_is_paused_let_go_on_for_a_step_and_resumed(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.begin("wait")
    await desk.waiting()
    live = desk.served.service.agents.live("alice", run_id)
    assert live is not None
    await live.until(lambda: not live.progress.speaking)  # the call was made before the model was at its end
    for _ in range(2):
        paused = await web.post(f"{RUNS}/{run_id}/pause")
        assert (paused.status_code, paused.json()["status"]) == (200, "paused")
    desk.gate.answers = ["again", "waited"]
    desk.gate.open.set()
    stepping = await web.post(f"{RUNS}/{run_id}/step")
    assert (stepping.status_code, stepping.json()["id"]) == (200, run_id)
    async with asyncio.timeout(30):
        while (run := (await web.get(f"{RUNS}/{run_id}")).json())["status"] != "paused":
            await asyncio.sleep(0.005)
    assert [step["text"] for step in run["steps"]] == ["I wait. ", "Once more. "]
    assert (await web.post(f"{RUNS}/{run_id}/resume")).status_code == 200
    await desk.answers[-1]
    await desk.served.service.agents.drain()
    run = (await web.get(f"{RUNS}/{run_id}")).json()
    assert (run["status"], [step["text"] for step in run["steps"]]) == (
        "completed", ["I wait. ", "Once more. ", "I waited."]
    )  # fmt: skip
    assert [event["type"] for event in await log_of(web, run_id)].count("paused") == 1
    assert len(run["pauses"]) == 2


async def test_a_message_reaches_the_model_with_the_next_step(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.begin("wait")
    await desk.waiting()
    answer = await web.post(f"{RUNS}/{run_id}/messages", json={"content": "hurry"})
    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    desk.gate.open.set()
    await desk.answers[-1]
    await desk.served.service.agents.drain()
    run = (await web.get(f"{RUNS}/{run_id}")).json()
    assert run["steps"][-1]["text"] == "I hurry."
    assert [(each["role"], each["content"], each["step"]) for each in run["messages"]] == [("user", "hurry", 0)]


@pytest.mark.parametrize(
    ("word", "text", "approval"),
    [({"approve": True}, "It is paid.", "allowed"), ({"allowed": False, "why": "too dear"}, "Then not.", "refused")],
)
async def test_a_call_that_waits_for_a_person_gets_its_word(
    desk: Desk, web: httpx2.AsyncClient, word: dict[str, Any], text: str, approval: str
) -> None:
    run_id = await desk.begin("pay")
    asked: list[str] = []
    while not asked:
        steps = (await web.get(f"{RUNS}/{run_id}")).json()["steps"]
        asked = [call["id"] for step in steps for call in step["calls"] if call["approval"] == "asked"]
    listed = (await web.get(f"{RUNS}?status=waiting")).json()["data"]
    assert [(run["id"], run["status"]) for run in listed] == [(run_id, "waiting")]
    assert (await web.get(f"{RUNS}?status=running")).json()["data"] == []
    path = f"{RUNS}/{run_id}/calls/{asked[0]}/approval"
    async with desk.client("bob") as other:
        assert refused(await other.post(path, json=word)) == (404, "not_found")
    assert refused(await web.post(f"{RUNS}/{run_id}/calls/call_x/approval", json=word)) == (400, "invalid_value")
    assert refused(await web.post(path, json={})) == (400, "missing_required_parameter")
    assert refused(await web.post(path, json={"approve": True, "allowed": False})) == (400, "invalid_value")
    assert (await web.post(path, json=word)).status_code == 200
    await desk.answers[-1]
    await desk.served.service.agents.drain()
    run = (await web.get(f"{RUNS}/{run_id}")).json()
    assert run["steps"][-1]["text"] == text
    assert run["steps"][0]["calls"][0]["approval"] == approval
    assert refused(await web.post(path, json=word)) == (409, "run_over")


async def test_agents_are_listed_with_the_models(web: httpx2.AsyncClient) -> None:
    listed = {model["id"]: model for model in (await web.get("/v1/models")).json()["data"]}
    assert {"agent/desk", "agent/other"} <= listed.keys()
    assert listed["agent/desk"]["root"] == listed["large"]["root"]
    assert (await web.get("/v1/models/agent/desk")).json() == listed["agent/desk"]
    assert (await web.get("/v1/models/agent/nobody")).status_code == 404


async def test_an_unknown_model_is_told_the_agents_too_where_they_could_answer(web: httpx2.AsyncClient) -> None:
    def told(answer: httpx2.Response) -> str:
        assert answer.status_code == 404
        return str(answer.json()["error"]["message"])

    messages = [{"role": "user", "content": "hi"}]
    far = told(await web.post("/v1/chat/completions", json={"model": "gpt-4o", "messages": messages}))
    assert far.startswith("The model 'gpt-4o' is not served here. Served: scripted (also large), ")
    assert ", agent/desk, " in far
    assert far.endswith(", agent/other.")
    near = told(await web.post("/v1/chat/completions", json={"model": "agents/desk", "messages": messages}))
    assert "Did you mean 'agent/desk'?" in near
    embed = told(await web.post("/v1/embeddings", json={"model": "agents/desk", "input": "hi"}))
    assert "agent/desk" not in embed


async def test_a_run_is_cancelled_once_however_often_it_is_asked(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.begin("wait", fails="The run was cancelled")
    await desk.waiting()
    for _ in range(2):
        answer = await web.post(f"{RUNS}/{run_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert [event["type"] for event in await log_of(web, run_id)].count("ended") == 1
    assert (await web.get(f"{RUNS}/{run_id}")).json()["status"] == "cancelled"


async def test_a_run_that_is_over_cannot_be_steered(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.run("hello")
    for how in ("cancel", "pause", "resume", "step"):
        answer = await web.post(f"{RUNS}/{run_id}/{how}")
        assert refused(answer) == (409, "run_over")
        assert answer.json()["error"]["message"] == f"The run {run_id} is over: completed. Begin another."
    answer = await web.post(f"{RUNS}/{run_id}/messages", json={"content": "hurry"})
    assert refused(answer) == (409, "run_over")


async def test_a_run_is_removed_once_it_does_not_go_on(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.begin("wait", fails="The run was cancelled")
    await desk.waiting()
    assert refused(await web.delete(f"{RUNS}/{run_id}")) == (409, "run_goes_on")
    await web.post(f"{RUNS}/{run_id}/cancel")
    answer = await web.delete(f"{RUNS}/{run_id}")
    assert answer.json() == {"id": run_id, "object": "run.deleted", "deleted": True}
    assert refused(await web.delete(f"{RUNS}/{run_id}")) == (404, "not_found")
    assert refused(await web.get(f"{RUNS}/{run_id}/events")) == (404, "not_found")
    assert (await web.get(RUNS)).json()["data"] == []


async def test_a_stored_run_that_nobody_goes_on_with_is_open_and_may_be_removed(
    desk: Desk, web: httpx2.AsyncClient
) -> None:
    archive = Archive(desk.state)
    journal = await archive.open("alice", RunRecord(id="run_1", agent="desk", model="m", created_ms=1000))
    began = Began(at=1000, agent="desk", model="m", messages=(Message("user", "hello"),))
    await journal.append([began, StepBegan(at=2000, step=0, model="m")], kept)
    run = (await web.get(f"{RUNS}/run_1")).json()
    assert (run["status"], run["as_of"], run["last"]) == ("open", 2.0, 2)
    assert [run["status"] for run in (await web.get(RUNS)).json()["data"]] == ["open"]
    for how in ("cancel", "resume"):
        assert refused(await web.post(f"{RUNS}/run_1/{how}")) == (409, "run_open")
    async with web.stream("GET", f"{RUNS}/run_1/events?stream=true") as answer:
        assert [event["type"] async for event in events_of(answer)] == ["began", "step_began"]
    assert (await web.delete(f"{RUNS}/run_1")).status_code == 200
    assert await archive.open_runs() == []


async def test_another_tenants_run_is_as_unknown_as_none(desk: Desk) -> None:
    over = await desk.run("hello")
    going = await desk.begin("wait")
    await desk.waiting()
    async with desk.client("bob") as bob:
        assert (await bob.get(RUNS)).json()["data"] == []
        for run_id in (over, going, "run_none", "x" * 5000, "%F0%9F%90%9D"):
            answers = [
                await bob.get(f"{RUNS}/{run_id}"),
                await bob.get(f"{RUNS}/{run_id}/events"),
                await bob.get(f"{RUNS}/{run_id}/events?stream=true"),
                *[await bob.post(f"{RUNS}/{run_id}/{how}") for how in ("cancel", "pause", "resume", "step")],
                await bob.post(f"{RUNS}/{run_id}/messages", json={"content": "hurry"}),
                await bob.delete(f"{RUNS}/{run_id}"),
            ]
            assert {refused(answer) for answer in answers} == {(404, "not_found")}
    async with desk.client() as alice:
        assert (await alice.get(f"{RUNS}/{going}")).json()["status"] == "running"
        assert [event["type"] for event in await log_of(alice, going)].count("paused") == 0


async def test_nobody_sees_runs_without_a_key(desk: Desk) -> None:
    async with httpx2.AsyncClient(base_url=desk.served.url) as nobody:
        assert refused(await nobody.get(RUNS)) == (401, "missing_api_key")


async def test_malformed_requests_are_refused_with_what_is_wrong(desk: Desk, web: httpx2.AsyncClient) -> None:
    run_id = await desk.run("hello")
    wrong = {
        "limit=0": "limit",
        "limit=101": "limit",
        "status=done": "status",
        "order=asc": "order",
        "after=": "after",
        "agent=": "agent",
    }
    for query, param in wrong.items():
        answer = await web.get(f"{RUNS}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), query
    for query in ("after=-1", "after=x", "limit=1001", "stream=maybe", "follow=true", f"after={2**63}"):
        answer = await web.get(f"{RUNS}/{run_id}/events?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])
    for header in ("x", "-1", "1.5", str(2**63), ""):
        answer = await web.get(f"{RUNS}/{run_id}/events?stream=true", headers={"last-event-id": header})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "last-event-id"), header
    for body in ({}, {"content": ""}, {"content": "a\0"}, {"content": 1}, {"content": "a", "role": "system"}):
        assert (await web.post(f"{RUNS}/{run_id}/messages", json=body)).status_code == 400, body


async def test_a_message_that_no_model_would_read_is_refused_before_it_reaches_the_run(
    desk: Desk, web: httpx2.AsyncClient
) -> None:
    run_id = await desk.begin("wait", fails="scripted has a context of 32768")
    await desk.waiting()
    answer = await web.post(f"{RUNS}/{run_id}/messages", json={"content": "x" * 5_000_000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "content")
    assert "length <= 262144" in answer.json()["error"]["message"]
    answer = await web.post(f"{RUNS}/{run_id}/messages", json={"content": "é" * MESSAGE_CHARS})
    assert answer.status_code == 200
    desk.gate.open.set()
    await desk.answers[-1]


async def test_without_a_data_plane_there_are_the_runs_that_go_on(tmp_path: Path) -> None:
    async with serving_runs(tmp_path, stored=False) as desk, desk.client() as web:
        run_id = await desk.begin("wait", fails="The run was cancelled")
        await desk.waiting()
        assert [run["id"] for run in (await web.get(RUNS)).json()["data"]] == [run_id]
        answer = await web.post(f"{RUNS}/{run_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert refused(await web.post(f"{RUNS}/{run_id}/cancel")) == (404, "not_found")
        assert (await web.get(RUNS)).json()["data"] == []


async def test_where_no_agent_is_configured_there_are_no_runs_to_see() -> None:
    async with serving() as served:
        reply = await talk(served, iter([request(method="GET", path=RUNS)]))
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert "No agent is configured here" in (reply.error["message"] or "")
