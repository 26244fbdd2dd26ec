"""Crowds against the real daemon, with the scripted engine: departures, floods, idlers, and what stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping

import aiohttp
import psutil

from tests.acu.running import DaemonFactory, RunningDaemon, until

ENDLESS = {"rules": [{"answer": "word ", "tokens_per_s": 20.0}]}


def chat(**more: object) -> dict[str, object]:
    return {
        "model": "large",
        "messages": [{"role": "user", "content": "go on"}],
        "ignore_eos": True,
        "max_tokens": 20_000,
        **more,
    }


def descriptors(running: RunningDaemon) -> int:
    return len(os.listdir(f"/proc/{running.pid}/fd"))  # noqa: PTH208 - a list of links that come and go


async def test_when_200_clients_drop_in_mid_stream_nothing_keeps_running(daemon: DaemonFactory) -> None:
    running = daemon(script=ENDLESS)
    before = descriptors(running)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        answers = await asyncio.gather(
            *(session.post(f"{running.url}/v1/chat/completions", json=chat(stream=True)) for _ in range(200))
        )
        await asyncio.gather(*(answer.content.readline() for answer in answers))
        assert await asyncio.to_thread(running.running) == 200
        for answer in answers:
            assert answer.connection is not None
            transport = answer.connection.transport
            assert transport is not None
            transport.abort()
        await asyncio.to_thread(until, lambda: running.running() == 0, "200 dropped streams are no longer running")
    until(lambda: descriptors(running) <= before, "the connections are closed")

    def reasons() -> list[str]:
        return [line["reason"] for line in running.log_lines() if line["event"] == "request" and line.get("streamed")]

    until(lambda: len(reasons()) == 200, "each has its line in the log, which a thread writes")
    assert set(reasons()) == {"client_gone"}


async def test_clients_that_leave_without_streaming_or_while_they_wait_are_noticed_too(daemon: DaemonFactory) -> None:
    running = daemon({"models": {"large": {"model": "any", "max_running": 10}}}, script=ENDLESS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        posts = [
            asyncio.create_task(session.post(f"{running.url}/v1/chat/completions", json=chat())) for _ in range(50)
        ]
        status = running.status
        await asyncio.to_thread(until, lambda: status()["service"]["queued"] == 40, "10 run and 40 wait")
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        await asyncio.to_thread(
            until, lambda: (status()["service"]["running"], status()["service"]["queued"]) == (0, 0), "all are gone"
        )


async def test_a_full_queue_says_429_with_a_time_to_come_again_and_serves_the_rest(daemon: DaemonFactory) -> None:
    running = daemon(
        {"models": {"large": {"model": "any", "max_running": 4}}, "scheduler": {"queue_limit": 8}},
        script={"rules": [{"answer": "word ", "tokens_per_s": 200.0}]},
    )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask() -> tuple[int, Mapping[str, str]]:
            async with session.post(f"{running.url}/v1/chat/completions", json=chat(max_tokens=200)) as answer:
                body = await answer.json()
                if answer.status != 200:
                    assert body["error"]["code"] == "queue_full"
                    assert "8 may" in body["error"]["message"]
                return answer.status, answer.headers

        results = await asyncio.gather(*(ask() for _ in range(40)))
    statuses = [status for status, _ in results]
    assert (statuses.count(200), statuses.count(429)) == (12, 28)
    refused = [headers for status, headers in results if status == 429]
    assert all(int(headers["retry-after-ms"]) > 0 and int(headers["retry-after"]) >= 1 for headers in refused)


def test_a_thousand_idle_connections_do_not_hinder_anybody(daemon: DaemonFactory) -> None:
    running = daemon()
    host, port = running.url.removeprefix("http://").rsplit(":", 1)
    before = descriptors(running)
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        until(lambda: descriptors(running) > 1000, "all are accepted")
        answer = running.client().post("/v1/chat/completions", chat(max_tokens=3))
        assert answer["usage"]["completion_tokens"] == 3
    until(lambda: descriptors(running) <= before, "their descriptors are free again")


async def test_five_thousand_requests_leave_no_descriptor_and_no_run_behind(daemon: DaemonFactory) -> None:
    running = daemon()
    bodies = [
        chat(max_tokens=2),
        chat(max_tokens=2, stream=True),
        chat(max_tokens=-1),
        {"model": "embed", "input": "text"},
        {"broken": True},
    ]
    paths = ["/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/models/no"]
    wanted = [200, 200, 400, 200, 405]
    counts = [0] * len(bodies)

    async def worker(session: aiohttp.ClientSession, numbers: list[int]) -> None:
        for number in numbers:
            kind = number % len(bodies)
            async with session.post(f"{running.url}{paths[kind]}", json=bodies[kind]) as answer:
                await answer.read()
                assert answer.status == wanted[kind], await answer.text()
                counts[kind] += 1

    async def crowd(requests: int) -> None:
        # Half of the connections are kept alive, half are closed after each request.
        for force_close in (False, True):
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=force_close)) as session,
                asyncio.TaskGroup() as tasks,
            ):
                for start in range(16):
                    tasks.create_task(worker(session, list(range(start, requests // 2, 16))))

    await crowd(200)
    until(lambda: running.running() == 0, "warmed up")
    await asyncio.sleep(0.5)
    before = descriptors(running)
    await crowd(5000)
    assert sum(counts) == 5200
    until(lambda: descriptors(running) <= before, f"no descriptor is left behind (before: {before})")
    assert running.running() == 0


async def test_a_reader_that_stops_reading_costs_little_memory_and_loses_its_connection(
    daemon: DaemonFactory,
) -> None:
    running = daemon(
        {"scheduler": {"slow_reader_s": 1.0}}, script={"rules": [{"answer": "x" * 4000, "tokens_per_delta": 4000}]}
    )
    host, port = running.url.removeprefix("http://").rsplit(":", 1)
    body = json.dumps(chat(stream=True, max_tokens=30_000, n=16)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(request * 40)  # pipelined: far more than socket buffers hold
        until(
            lambda: any(line.get("reason") == "slow_reader" for line in running.log_lines()),
            "the first unread stream is aborted",
        )
        resident_mb = psutil.Process(running.pid).memory_info().rss / 2**20
        assert resident_mb < 300
    until(lambda: running.running() == 0, "nothing runs for readers that are gone")
