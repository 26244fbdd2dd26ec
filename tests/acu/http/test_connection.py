"""acu.http.connection: who comes in when every connection is at work, and clients that vanish."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from acu.http import connection, server
from tests.acu.http.hostile import chat, request
from tests.acu.http.raw import Reply, read_reply
from tests.acu.http.serving import Served, limits, serving

HEALTH = request(method="GET", path="/healthz")


@asynccontextmanager
async def all_at_work() -> AsyncIterator[Served]:
    """A server whose two connections stream answers."""
    async with serving(limits(max_connections=2)) as served:
        for _ in range(2):
            reader, writer = await served.connect()
            writer.write(request(chat(messages=[{"role": "user", "content": "slow"}], stream=True)))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        yield served


async def ask(served: Served, what: bytes = HEALTH, *, unix: bool = False) -> tuple[Reply, asyncio.StreamReader]:
    reader, writer = await served.connect(unix=unix)
    writer.write(what)
    return await read_reply(reader), reader


async def test_the_unix_socket_has_a_reserve_that_keeps_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RESERVE", 2)
    async with all_at_work() as served:
        assert [(await ask(served, unix=True))[0].status for _ in range(3)] == [200, 200, 503]
        assert served.runner.connections == (4, 0, 0)


async def test_a_probe_over_tcp_is_answered_once_and_anything_else_is_told_that_there_is_no_room() -> None:
    async with all_at_work() as served:
        for what, status in ((HEALTH, 200), (request(method="GET", path="/readyz"), 200), (request(chat()), 503)):
            reply, reader = await ask(served, what)
            assert reply.status == status
            assert await reader.read() == b""
        assert reply.error["code"] == "too_many_connections"
        assert (await ask(served, unix=True))[0].status == 200  # of a reserve that nobody over TCP has


async def test_guests_that_say_nothing_or_too_little_are_few_and_leave_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GUESTS", 3)
    monkeypatch.setattr(connection, "GUEST_S", 1.0)
    async with all_at_work() as served:
        begun = (b"", HEALTH[:-1], request(length=100)[:-1])
        guests = [await served.connect() for _ in begun]
        for (_, writer), sent in zip(guests, begun, strict=True):
            writer.write(sent)
        refused, _ = await served.connect()
        assert (await read_reply(refused)).error["code"] == "too_many_connections"
        for reader, _ in guests:
            assert (await read_reply(reader)).error["code"] == "too_many_connections"
            assert await reader.read() == b""
        assert (await ask(served))[0].status == 200


NETNS, HERE, THERE = f"acuconn{os.getpid()}", "10.213.77.1", "10.213.77.2"
ASKING = """
import socket, sys, time
clients = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(30)]
for client in clients[:10]:
    client.sendall(bytes.fromhex(sys.argv[3]))
    client.recv(100)
print("asked", flush=True)
time.sleep(600)
"""


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[str]:
    """A network namespace with one link to here; the name of the link's end here."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a network namespace")
    link = f"cn{os.getpid()}"
    try:
        ip(f"netns add {NETNS}")
        ip(f"link add {link} type veth peer name there netns {NETNS}")
        ip(f"addr add {HERE}/30 dev {link}")
        ip(f"link set {link} up")
        ip(f"-n {NETNS} addr add {THERE}/30 dev there")
        ip(f"-n {NETNS} link set there up")
        yield link
    finally:
        for command in (f"link del {link}", f"netns del {NETNS}"):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(command)


async def test_clients_that_vanish_while_they_wait_or_read_give_back_descriptors_and_runs(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PROBE_EVERY_S", 1)
    slow = request(chat(messages=[{"role": "user", "content": "slow"}], stream=True), host=HERE)
    async with serving(limits(slow_reader_s=1.0, allowed_hosts=(HERE,))) as served:
        listening = socket.create_server((HERE, 0))
        await served.runner.listen(listening)
        before = descriptors()
        command = ("ip", "netns", "exec", NETNS, sys.executable, "-c", ASKING)
        clients = await asyncio.create_subprocess_exec(
            *command, HERE, str(listening.getsockname()[1]), slow.hex(), stdout=subprocess.PIPE
        )
        try:
            assert clients.stdout is not None
            assert await clients.stdout.readline() == b"asked\n"
            async with asyncio.timeout(10):
                while served.runner.connections[0] < 30:
                    await asyncio.sleep(0.01)
            assert served.service.status().running == 10
            await asyncio.to_thread(ip, f"-n {NETNS} link set there down")
            async with asyncio.timeout(60):  # the runs would take 200 s, the idle ones 75 s
                while served.runner.connections[0]:
                    await asyncio.sleep(0.05)
            await served.idle()
        finally:
            clients.kill()
            await clients.wait()
        assert descriptors() <= before + 1  # the pipe of the clients' output
