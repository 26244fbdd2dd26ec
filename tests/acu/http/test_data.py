"""/acu/v1/data over a real data plane: who may ask, what is refused, and jobs."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acu.data.jobs import DataJobs
from acu.http.audit import Hooks
from acu.http.auth import Keys
from agentflow.library.records import HOUSE, FileRecord, Records
from agentflow.library.refusals import DataUnavailable
from dataplane.cold.attachments import tenant_folder
from dataplane.store import DataPlane, opened
from tests.acu.http.hostile import request
from tests.acu.http.raw import Reply, talk
from tests.acu.http.serving import Served, serving
from tests.dataplane.planes import NAME, TENANT, config, filled, vectors

OPS, TEAM = "sk-ops-0123456789", "sk-team-0123456789"
KEYS = f"- {{name: ops, key: {OPS}, scopes: [admin]}}\n- {{name: team, key: {TEAM}}}\n"


@asynccontextmanager
async def served_data(folder: Path, counted_s: float = 0) -> AsyncIterator[tuple[Served, DataPlane, DataJobs]]:
    """A face with keys, over a data plane with 30 rows."""
    path = folder / "keys.yaml"
    path.write_text(KEYS)
    path.chmod(0o600)
    settings = msgspec.structs.replace(config(folder / "data"), archive_every_s=None)
    async with opened(settings) as plane:
        await filled(plane, vectors(30))

        async def opened_plane() -> DataPlane:
            return plane

        jobs = DataJobs(opened_plane, lambda: {"state": "open", "plane": {}}, counted_s=counted_s)
        async with serving(keys=Keys(path), hooks=Hooks(data=lambda: jobs)) as served:
            try:
                yield served, plane, jobs
            finally:
                await jobs.close()


async def ask(
    served: Served, method: str, path: str, body: dict[str, Any] | None = None, key: str | None = OPS
) -> Reply:
    """One answer from below /acu/v1/data."""
    content = b"" if body is None else json.dumps(body).encode()
    extra = "" if key is None else f"Authorization: Bearer {key}\r\n"
    sent = request(content, method=method, path=f"/acu/v1/data/{path}", extra=extra)
    return await talk(served, iter([sent]))


async def ended(served: Served, reply: Reply) -> dict[str, Any]:
    """The job that has begun, once it has ended."""
    assert reply.status == 202, reply
    job: dict[str, Any] = json.loads(reply.body)
    async with asyncio.timeout(20):
        while job["state"] == "running":
            await asyncio.sleep(0.02)
            job = json.loads((await ask(served, "GET", f"jobs/{job['id']}")).body)
    return job


async def test_every_job_ends_with_what_came_of_it(tmp_path: Path) -> None:
    async with served_data(tmp_path) as (served, plane, _):
        job = await ended(served, await ask(served, "POST", "archive", {}))
        assert (job["kind"], job["state"], job["result"]["rows"], job["result"]["manifest"]) == (
            "archive",
            "done",
            30,
            1,
        )
        job = await ended(served, await ask(served, "POST", "verify", {"deep": True}))
        assert (job["result"]["problems"], job["result"]["rows"]) == ([], 30)
        job = await ended(served, await ask(served, "POST", "backup", {"folder": str(tmp_path / "backup")}))
        assert job["result"]["folder"] == str(tmp_path / "backup")
        assert (job["stage"], job["done"]) == ("backing up", job["total"])
        job = await ended(served, await ask(served, "POST", "erase", {"tenant": TENANT, "collection": NAME}))
        assert (job["result"]["rows"], job["result"]["left"]) == (30, [])
        assert plane.collections(TENANT) == {}
        assert job["ended_at"] >= job["created_at"]


async def test_the_status_counts_uploaded_files_and_lives_with_records_that_cannot_be_read(tmp_path: Path) -> None:
    async with served_data(tmp_path) as (served, plane, _):
        nothing = {"files": 0, "bytes": 0, "damaged_files": 0, "waiting_files": 0, "waiting_bytes": 0}
        assert json.loads((await ask(served, "GET", "status")).body)["uploads"] == nothing
        await plane.state.put(HOUSE, "tenant", TENANT, b"")
        record = FileRecord(id="file-1", filename="a.txt", purpose="assistants", bytes=7, created_ms=0)
        await Records(plane.state).put(TENANT, "file", record.id, record)
        one = {"files": 1, "bytes": 7, "damaged_files": 1, "waiting_files": 1, "waiting_bytes": 7}
        assert json.loads((await ask(served, "GET", "status")).body)["uploads"] == one
        await plane.state.put(TENANT, "file", "file-2", b"{broken")
        reply = await ask(served, "GET", "status")
        assert (reply.status, json.loads(reply.body)["uploads"]) == (200, None)


async def test_uploaded_files_are_counted_now_and_then_and_after_each_job(tmp_path: Path) -> None:
    async with served_data(tmp_path, counted_s=3600) as (served, plane, _):
        assert json.loads((await ask(served, "GET", "status")).body)["uploads"]["files"] == 0
        await plane.state.put(HOUSE, "tenant", TENANT, b"")
        record = FileRecord(id="file-1", filename="a.txt", purpose="assistants", bytes=7, created_ms=0)
        await Records(plane.state).put(TENANT, "file", record.id, record)
        assert json.loads((await ask(served, "GET", "status")).body)["uploads"]["files"] == 0
        await ended(served, await ask(served, "POST", "verify", {}))
        assert json.loads((await ask(served, "GET", "status")).body)["uploads"]["files"] == 1


async def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    async with served_data(tmp_path) as (served, _, _):
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").write_text("")
        for folder, why in ((tmp_path / "full", "nothing is overwritten"), (tmp_path / "data" / "b", "outside of it")):
            job = await ended(served, await ask(served, "POST", "backup", {"folder": str(folder)}))
            assert (job["state"], job["result"]) == ("failed", None)
            assert why in job["error"]


async def test_one_job_runs_at_a_time(tmp_path: Path) -> None:
    async with served_data(tmp_path) as (served, plane, jobs):
        with plane.keeper.held():  # which a backup waits for
            first = await ask(served, "POST", "backup", {"folder": str(tmp_path / "backup")})
            second = await ask(served, "POST", "verify", {})
            assert (second.status, second.error["code"]) == (409, "job_running")
            assert json.loads(first.body)["id"] in str(second.error["message"])
        assert (await ended(served, first))["state"] == "done"
        assert (await ended(served, await ask(served, "POST", "verify", {})))["state"] == "done"
        assert jobs.job("nobody") is None


async def test_a_job_ends_with_the_daemon(tmp_path: Path) -> None:
    async with served_data(tmp_path) as (served, plane, jobs):
        with plane.keeper.held():
            reply = await ask(served, "POST", "backup", {"folder": str(tmp_path / "backup")})
            closing = asyncio.create_task(jobs.close())
            await asyncio.sleep(0.05)
        await closing
        found = jobs.job(json.loads(reply.body)["id"])
        assert found is not None
        assert (found.state, found.error) == ("failed", "The daemon was stopped.")
        assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("path", ["status", "jobs/x", "verify", "backup", "archive", "erase"])
async def test_only_administrators_may_ask(path: str, tmp_path: Path) -> None:
    method = "GET" if path in {"status", "jobs/x"} else "POST"
    body: dict[str, Any] | None = None if method == "GET" else {}
    async with served_data(tmp_path) as (served, _, _):
        assert (await ask(served, method, path, body, key=TEAM)).error["code"] == "missing_scope"
        assert (await ask(served, method, path, body, key=None)).error["code"] == "missing_api_key"


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("backup", {}, "missing_required_parameter", "folder"),
        ("backup", {"folder": "relative"}, "invalid_value", "folder"),
        ("backup", {"folder": "/a\0b"}, "invalid_value", "folder"),
        ("verify", {"deep": 1}, "invalid_type", "deep"),
        ("verify", {"fast": True}, "unknown_parameter", "fast"),
        ("erase", {}, "missing_required_parameter", "tenant"),
        ("erase", {"tenant": "t", "ids": ["a"]}, "invalid_value", "collection"),
        ("erase", {"tenant": "t", "collection": "c", "ids": []}, "invalid_value", "ids"),
        ("erase", {"tenant": "a\0"}, "invalid_value", "tenant"),
    ],
)
async def test_a_body_that_is_wrong_begins_nothing(
    path: str, body: dict[str, Any], code: str, param: str, tmp_path: Path
) -> None:
    async with served_data(tmp_path) as (served, _, _):
        reply = await ask(served, "POST", path, body)
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, code, param)


async def test_an_unknown_job_and_a_daemon_without_a_data_plane(tmp_path: Path) -> None:
    async with served_data(tmp_path) as (served, _, _):
        reply = await ask(served, "GET", "jobs/nobody")
        assert (reply.status, reply.error["code"]) == (404, "unknown_job")
        assert json.loads((await ask(served, "GET", "status")).body)["state"] == "open"

    async def away() -> DataPlane:
        raise DataUnavailable("It is on another planet.", retry_after_s=5)

    jobs = DataJobs(away, dict)
    async with serving(keys=Keys(tmp_path / "keys.yaml"), hooks=Hooks(data=lambda: jobs)) as served:
        reply = await ask(served, "POST", "verify", {})
        assert (reply.status, reply.error["message"]) == (503, "It is on another planet.")
    async with serving(keys=Keys(tmp_path / "keys.yaml")) as served:
        reply = await ask(served, "GET", "status")
        assert (reply.status, reply.error["code"]) == (503, "data_plane_unavailable")


async def test_a_file_that_a_deep_verify_has_found_flipped_is_in_the_status_until_the_next_finds_it_whole(
    tmp_path: Path,
) -> None:
    async with served_data(tmp_path) as (served, plane, _):
        await plane.state.put(HOUSE, "tenant", TENANT, b"")
        path = plane.folder / "library" / "files" / tenant_folder(TENANT) / "file-1"
        path.parent.mkdir(parents=True)
        record = FileRecord(
            id="file-1",
            filename="a.txt",
            purpose="assistants",
            bytes=5,
            created_ms=0,
            sha256=hashlib.sha256(b"whole").hexdigest(),
        )
        await Records(plane.state).put(TENANT, "file", record.id, record)
        told = []
        for content, deep in ((b"whale", False), (b"whale", True), (b"whale", False), (b"whole", True)):
            path.write_bytes(content)
            await ended(served, await ask(served, "POST", "verify", {"deep": deep}))
            told.append(json.loads((await ask(served, "GET", "status")).body)["uploads"]["damaged_files"])
        assert told == [0, 1, 1, 0]
