"""What is damaged of runs, responses and conversations, over HTTP: it says so itself, hides no other, and can be deleted."""

from __future__ import annotations

from pathlib import Path

import httpx2

from dataplane import EventRecord, StateStore
from tests.acu.http.library_serving import key_of
from tests.acu.http.response_serving import serving_responses
from tests.acu.http.run_serving import RUNS, serving_runs
from tests.acu.http.serving import Served

RESPONSES = "/v1/responses"


async def spoil_log(state: StateStore, run_id: str) -> None:
    await state.append("alice", f"run/{run_id}", [EventRecord("said", 1, b"no event")])


def web_of(served: Served) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key_of('alice')}"}
    return httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=20)


def damaged(answer: httpx2.Response, what: str) -> None:
    """The answer is the error of what is damaged."""
    assert answer.status_code == 500
    error = answer.json()["error"]
    says = f"What is stored of the {what} is damaged: restore a backup, or delete it. The daemon's log says more."
    assert error == {"message": says, "type": "server_error", "param": None, "code": "data_damaged"}


async def test_a_run_that_is_damaged_says_so_is_listed_beside_others_and_can_be_deleted(tmp_path: Path) -> None:
    async with serving_runs(tmp_path) as desk, desk.client() as web:
        bad, unlisted, good = [await desk.run("hello") for _ in range(3)]
        await spoil_log(desk.state, bad)
        await desk.state.put("alice", "run", unlisted, b"{")
        for query in ("", "?status=completed", "?agent=desk"):
            listed = (await web.get(f"{RUNS}{query}")).json()["data"]
            assert {run["id"] for run in listed} == {bad, good}
        damaged(await web.get(f"{RUNS}/{bad}"), f"run {bad}")
        damaged(await web.get(f"{RUNS}/{bad}/events"), f"run {bad}")
        damaged(await web.get(f"{RUNS}/{unlisted}/events?stream=true"), f"run {unlisted}")
        damaged(await web.post(f"{RUNS}/{unlisted}/pause", json={}), f"run {unlisted}")
        assert (await web.get(f"{RUNS}/{unlisted}")).json()["status"] == "completed"
        for each in (bad, unlisted):
            assert (await web.delete(f"{RUNS}/{each}")).json()["deleted"]
            assert (await web.get(f"{RUNS}/{each}")).status_code == 404
        for kind in ("run", "run_by"):
            names = [name for name, _ in await desk.state.scan("alice", kind)]
            assert names
            assert all(name.endswith(good) for name in names)


async def test_a_response_that_is_damaged_says_so_and_can_be_deleted_and_its_conversation_goes_on(
    tmp_path: Path,
) -> None:
    async with serving_responses(tmp_path) as served, web_of(served) as web:
        state = (await served.service.agents.archive()).state
        place = {"model": "agent/desk", "conversation": (await web.post("/v1/conversations", json={})).json()["id"]}
        items = f"/v1/conversations/{place['conversation']}/items"
        for record in (b"", b"{", b'{"id": "", "model": "m", "input": []}'):
            bad = (await web.post(RESPONSES, json={"input": "hello", **place})).json()["id"]
            await served.service.agents.drain()
            await spoil_log(state, bad.replace("resp_", "run_"))
            if record:
                await state.put("alice", "response", bad, record)
            for path in ("", "?stream=true"):
                damaged(await web.get(f"{RESPONSES}/{bad}{path}"), f"response '{bad}'")
            after = {"model": "agent/desk", "input": "go on", "previous_response_id": bad}
            damaged(await web.post(RESPONSES, json=after), f"response '{bad}'")
            count = len((await web.get(items)).json()["data"])
            good = await web.post(RESPONSES, json={"input": "hello", **place})
            assert good.json()["status"] == "completed"
            await served.service.agents.drain()
            assert len((await web.get(items)).json()["data"]) == count + 2
            assert (await web.delete(f"{RESPONSES}/{bad}")).json()["deleted"]
            assert (await web.get(f"{RESPONSES}/{bad}")).status_code == 404
            assert await state.scan("alice", "conversation_due") == []


async def test_a_conversation_that_is_damaged_says_so_and_can_be_deleted(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, web_of(served) as web:
        state = (await served.service.agents.archive()).state
        said = [{"role": "user", "content": text} for text in ("one", "two")]
        made = (await web.post("/v1/conversations", json={"items": said})).json()["id"]
        path, what = f"/v1/conversations/{made}", f"conversation '{made}'"
        first, second = [item["id"] for item in (await web.get(f"{path}/items?order=asc")).json()["data"]]
        ((name, record), _) = await state.scan("alice", "conversation_item")
        await state.put("alice", "conversation_item", name, record.value[:-1])
        assert [item["id"] for item in (await web.get(f"{path}/items")).json()["data"]] == [second]
        damaged(await web.get(f"{path}/items/{first}"), f"item '{first}' of {what}")
        for other in ("msg_unknown", "user", "%ff", "%ed%b3%bf"):
            assert (await web.get(f"{path}/items/{other}")).status_code == 404
            assert (await web.delete(f"{path}/items/{other}")).status_code == 404
        assert (await web.delete(f"{path}/items/{first}")).status_code == 200
        assert (await web.get(f"{path}/items/{first}")).status_code == 404
        await state.put("alice", "conversation", made, b"{")
        for each in (path, f"{path}/items"):
            damaged(await web.get(each), what)
        assert (await web.delete(path)).json()["deleted"]
        assert (await web.get(path)).status_code == 404
        assert await state.scan("alice", "conversation_item") == []
