"""TLS connections on their way in: how many at a time, for how long, and what is told of those that come to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from acu.http import handshakes, server
from acu.http.idle import SPARED_S
from tests.acu.certificates import make_certificate
from tests.acu.http.hostile import request
from tests.acu.http.raw import read_reply
from tests.acu.http.serving import Served, limits, serving

HEALTH = request(method="GET", path="/healthz")


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's side of TLS and the client's."""
    certificate_file, key_file = make_certificate(folder)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate_file, key_file)
    return server_side, ssl.create_default_context(cafile=str(certificate_file))


async def told(served: Served, *expected: tuple[str, int]) -> None:
    """Return when exactly these answers have been counted."""
    async with asyncio.timeout(10):
        while served.responses != list(expected):
            await asyncio.sleep(0.005)


async def test_those_that_say_nothing_are_given_up_in_turn_and_others_come_in_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES", 2)
    server_side, client_side = contexts(tmp_path)
    async with serving(limits(header_timeout_s=0.3), tls=server_side) as served:
        silent = [await served.connect() for _ in range(5)]
        reader, writer = await served.connect(ssl=client_side, server_hostname="localhost")
        await told(served, *[("-", 408)] * 4)
        writer.write(HEALTH)
        assert (await read_reply(reader)).status == 200
        for quiet, _ in silent:
            assert await quiet.read() == b""
        assert served.runner.connections[0] == 1
        writer.transport.abort()


async def test_while_others_wait_the_silent_give_way_in_turn_and_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES", 2)
    monkeypatch.setattr(handshakes, "PATIENCE_S", 0.05)
    server_side, client_side = contexts(tmp_path)
    before = descriptors("socket:")
    async with serving(limits(header_timeout_s=600.0), tls=server_side) as served:
        silent = [await served.connect() for _ in range(7)]
        reader, writer = await served.connect(ssl=client_side, server_hostname="localhost", ssl_handshake_timeout=60)
        await told(served, *[("-", 408)] * 6)
        for quiet, _ in silent[:6]:
            assert await quiet.read() == b""
        await asyncio.sleep(0.3)  # nobody waits: the last has its time
        assert len(served.responses) == 6
        writer.write(HEALTH)
        assert (await read_reply(reader)).status == 200
        for _, quiet_writer in silent:
            quiet_writer.transport.abort()
        writer.transport.abort()
    assert descriptors("socket:") == before


def descriptors(kind: str = "") -> int:
    """How many this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            found += str(link.readlink()).startswith(kind)
    return found


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as the hard limit lets in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_thousands_that_never_finish_hold_few_descriptors_and_keep_nobody_out(tmp_path: Path) -> None:
    many = 2_000
    server_side, client_side = contexts(tmp_path)
    async with serving(limits(header_timeout_s=0.05), tls=server_side) as served:
        before, most = descriptors(), 0
        silent = [socket.socket() for _ in range(many)]
        for client in silent:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", served.port))
        reader, writer = await served.connect(ssl=client_side, server_hostname="localhost", ssl_handshake_timeout=60)
        writer.write(HEALTH)
        while served.responses.count(("-", 408)) < many // 2:
            most = max(most, descriptors() - many)
            await asyncio.sleep(0.01)
        assert (await read_reply(reader)).status == 200
        for client in silent:
            client.close()
        writer.transport.abort()
        assert most <= before + handshakes.HANDSHAKES + 8


async def test_what_speaks_no_tls_is_told_of_and_makes_no_connection(tmp_path: Path) -> None:
    server_side, _ = contexts(tmp_path)
    async with serving(tls=server_side) as served:
        reader, writer = await served.connect()
        writer.write(HEALTH)
        assert await reader.read() == b""
        await told(served, ("-", 400))
        assert served.runner.connections[0] == 0
        writer.close()


async def test_one_connection_too_many_is_told_so_keeps_its_place_and_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES", 1)
    monkeypatch.setattr(handshakes, "GOODBYE_S", 0.1)
    monkeypatch.setattr(server, "GUESTS", 0)
    server_side, client_side = contexts(tmp_path)
    async with serving(limits(max_connections=1), tls=server_side) as served:
        reader, writer = await served.connect(ssl=client_side, server_hostname="localhost")
        writer.write(HEALTH)
        assert (await read_reply(reader)).status == 200
        for _ in range(3):
            refused, _ = await served.connect(ssl=client_side, server_hostname="localhost")
            assert (await read_reply(refused)).error["code"] == "too_many_connections"
        writer.transport.abort()


async def test_the_end_gives_up_handshakes(tmp_path: Path) -> None:
    server_side, _ = contexts(tmp_path)
    async with serving(tls=server_side) as served:
        reader, writer = await served.connect()
        await asyncio.sleep(0.05)
        await served.runner.cleanup()
        assert await reader.read() == b""
        with pytest.raises(OSError, match="onnect"):
            await served.connect()
        writer.close()


async def test_those_that_do_not_answer_a_goodbye_make_room_at_once(tmp_path: Path) -> None:
    server_side, client_side = contexts(tmp_path)

    def ask_and_sleep(port: int) -> ssl.SSLSocket:
        client = client_side.wrap_socket(socket.create_connection(("127.0.0.1", port), 5), server_hostname="localhost")
        client.sendall(HEALTH)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        return client

    async with serving(limits(max_connections=2), tls=server_side) as served:
        asleep = [await asyncio.to_thread(ask_and_sleep, served.port) for _ in range(2)]
        await asyncio.sleep(SPARED_S)
        reader, writer = await served.connect(ssl=client_side, server_hostname="localhost")
        writer.write(HEALTH)
        assert (await read_reply(reader)).status == 200
        async with asyncio.timeout(5):
            while served.runner.connections != (2, 1, 0):
                await asyncio.sleep(0.005)
        for client in asleep:
            client.close()
