"""Connections: their limits, their timeouts and their end."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acu.http import server
from acu.http.audit import Hooks
from acu.http.auth import Keys
from acu.http.idle import SPARED_S
from tests.acu.certificates import make_certificate
from tests.acu.http.hostile import chat, request
from tests.acu.http.raw import read_reply, talk
from tests.acu.http.serving import limits, serving


async def test_a_connection_serves_many_requests() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        for _ in range(3):
            writer.write(request(chat()))
            assert (await read_reply(reader)).status == 200
        writer.close()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        paths = ["/healthz", "/v1/models", "/nowhere", "/readyz"]
        writer.write(b"".join(request(method="GET", path=path) for path in paths))
        statuses = [(await read_reply(reader)).status for _ in paths]
        writer.close()
    assert statuses == [200, 200, 404, 200]
    assert [record["path"] for record in served.records] == paths


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(request(method="HEAD", path="/healthz") + request(method="GET", path="/healthz"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert (await read_reply(reader)).body == b'{"status":"ok"}'
        writer.close()


async def test_options_names_the_methods_and_gives_no_leave_to_pages() -> None:
    async with serving() as served:
        reply = await talk(served, iter([request(method="OPTIONS", content_type=None)]))
    assert (reply.status, reply.headers["allow"]) == (204, "POST, OPTIONS")
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_expect_100_continue_is_answered_before_the_body() -> None:
    body = chat()
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(request(length=len(body), extra="Expect: 100-continue\r\n"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await read_reply(reader)).status == 200
        writer.write(request(length=20_000_000, extra="Expect: 100-continue\r\n"))
        assert (await read_reply(reader)).status == 413
        writer.close()


async def test_one_connection_too_many_is_told_so_and_closed() -> None:
    async with serving(limits(max_connections=3)) as served:
        held = [await served.connect() for _ in range(3)]
        for reader, writer in held:
            writer.write(request(method="GET", path="/healthz"))
            assert (await read_reply(reader)).status == 200
        reader, writer = await served.connect()
        reply = await read_reply(reader)
        assert (reply.status, reply.error["code"]) == (503, "too_many_connections")
        assert await reader.read() == b""
        writer.close()
        held[0][1].close()
        async with asyncio.timeout(5):
            while served.runner.connections[0] == 3:
                await asyncio.sleep(0.005)
        assert (await talk(served, iter([request(method="GET", path="/healthz")]))).status == 200
        for _, writer in held:
            writer.close()


async def test_connections_that_are_never_closed_make_room_for_new_ones() -> None:
    async with serving(limits(max_connections=3)) as served:
        busy = await served.connect()
        busy[1].write(request(chat(messages=[{"role": "user", "content": "slow"}], stream=True)))
        assert (await busy[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        idle = [await served.connect() for _ in range(2)]
        for reader, writer in idle:
            writer.write(request(method="GET", path="/healthz"))
            assert (await read_reply(reader)).status == 200
        await asyncio.sleep(SPARED_S)
        for _ in range(2):
            reader, writer = await served.connect()
            writer.write(request(method="GET", path="/healthz"))
            assert (await read_reply(reader)).status == 200
        assert [await asyncio.wait_for(reader.read(), 5) for reader, _ in idle] == [b"", b""]
        assert await asyncio.wait_for(busy[0].readuntil(b"data: "), 5)  # goes on
        assert served.runner.connections == (3, 2, 0)


async def test_nothing_is_kept_of_connections_whose_clients_left_before_their_answers() -> None:
    async with serving() as served:
        face = served.runner.server
        assert isinstance(face, server.FaceServer)
        for _ in range(3):
            reader, writer = await served.connect()
            writer.write(slow_chat(stream=True))
            assert await reader.readuntil(b"data: ")
            writer.transport.abort()
        await served.idle()
        await served.recorded(3)
        async with asyncio.timeout(5):
            while served.runner.connections[0]:
                await asyncio.sleep(0.005)
        assert len(face.idle) == 0
        _, writer = await served.connect()
        async with asyncio.timeout(5):
            while len(face.idle) != 1:
                await asyncio.sleep(0.005)


async def test_a_thousand_idle_connections_do_not_keep_others_out() -> None:
    async with serving() as served:
        idle = await asyncio.gather(*(served.connect() for _ in range(400)))
        assert (await talk(served, iter([request(chat())]))).status == 200
        assert served.runner.connections[0] >= 400
        for _, writer in idle:
            writer.transport.abort()
        async with asyncio.timeout(5):
            while served.runner.connections[0]:
                await asyncio.sleep(0.01)


async def test_an_idle_connection_is_closed_in_silence() -> None:
    async with serving(limits(idle_timeout_s=0.2)) as served:
        reader, writer = await served.connect()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        reader, writer = await served.connect()
        writer.write(request(method="GET", path="/healthz"))
        assert (await read_reply(reader)).status == 200
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_headers_that_come_in_pieces_but_in_time_are_served() -> None:
    async with serving(limits(header_timeout_s=2)) as served:
        raw = request(chat())
        pieces = [piece for byte in (raw[i : i + 20] for i in range(0, len(raw), 20)) for piece in (byte, 0.001)]
        assert (await talk(served, iter(pieces))).status == 200


async def test_a_request_may_be_cut_anywhere() -> None:
    raw = request(chat(), extra="X-Filler: " + "f" * 100 + "\r\n")
    cuts = range(1, len(raw), 7)
    async with serving(limits(header_timeout_s=1, body_timeout_s=1)) as served:
        for cut in cuts:
            assert (await talk(served, iter([raw[:cut], 0.001, raw[cut:]]))).status == 200
        never = await asyncio.gather(*(talk(served, iter([raw[:cut]])) for cut in cuts))
    body_begins = raw.index(b"\r\n\r\n") + 4
    for cut, reply in zip(cuts, never, strict=True):
        late = "header_timeout" if cut < body_begins else "body_timeout"
        assert (cut, reply.status, reply.error["code"]) == (cut, 408, late)


def slow_chat(*, stream: bool = False) -> bytes:
    return request(chat(messages=[{"role": "user", "content": "slow"}], stream=stream))


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("unix", [True, False])
async def test_a_client_that_closes_its_sending_half_counts_as_gone_and_is_told_so(at_once: bool, unix: bool) -> None:
    async with serving() as served:
        reader, writer = await served.connect(unix=unix)
        writer.write(slow_chat())
        async with asyncio.timeout(5):
            while not at_once and not served.service.status().running:
                await asyncio.sleep(0.005)
        writer.write_eof()
        reply = await read_reply(reader)
        assert await reader.read() == b""
        await served.idle()
        (record,) = await served.recorded(1)
    assert (reply.status, reply.error["code"], reply.closed) == (400, "half_closed", True)
    assert (record["status"], record["reason"], record["route"]) == (499, "client_gone", "/v1/chat/completions")


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_requests_behind_another_are_told_so_too(pause: float) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(request(method="GET", path="/healthz") + slow_chat())
        await asyncio.sleep(pause)
        writer.write_eof()
        replies = [await read_reply(reader) for _ in range(2)]
        assert await reader.read() == b""
        first, second = await served.recorded(2)
    assert [(reply.status, reply.error.get("code")) for reply in replies] == [(200, None), (400, "half_closed")]
    assert (first["status"], second["status"], second["reason"]) == (200, 499, "client_gone")


async def test_a_stream_ends_with_the_clients_sending_half() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(slow_chat(stream=True))
        await reader.readuntil(b'"role"')
        writer.write_eof()
        rest = await reader.read()
        await served.idle()
        (record,) = await served.recorded(1)
    assert b"[DONE]" not in rest
    assert b"HTTP/1.1" not in rest
    assert (record["status"], record["reason"]) == (499, "client_gone")


async def test_what_needs_no_engine_is_answered_to_a_half_closed_client() -> None:
    async with serving() as served:
        for raw, status in ((request(method="GET", path="/healthz"), 200), (request(b"{}"), 400)):
            assert (await talk(served, iter([raw]), half_close=True)).status == status


async def test_draining_ends_connections_after_their_answer_and_cuts_no_stream() -> None:
    async with serving(shutdown_timeout=10) as served:
        stream_reader, stream_writer = await served.connect()
        body = chat(messages=[{"role": "user", "content": "slow"}], stream=True, max_tokens=30)
        stream_writer.write(request(body))
        await stream_reader.readuntil(b'"role"')
        kept_reader, kept_writer = await served.connect()
        kept_writer.write(request(method="GET", path="/healthz"))
        assert not (await read_reply(kept_reader)).closed
        served.runner.begin_drain()
        drained = asyncio.create_task(served.service.drain(10))
        kept_writer.write(request(chat()))
        refused = await read_reply(kept_reader)
        assert (refused.status, refused.error["code"], refused.closed) == (503, "draining", True)
        assert int(refused.headers["retry-after-ms"]) > 0
        assert await kept_reader.read() == b""
        rest = await stream_reader.readuntil(b"0\r\n\r\n")
        assert b"".join(re.findall(rb'"content":"(s+)"', rest)) == b"s" * 30
        assert b"data: [DONE]" in rest
        await drained
        stream_writer.close()
        kept_writer.close()


async def test_it_is_settled_when_every_answer_has_been_read() -> None:
    async with serving() as served:
        await served.runner.settled()
        reader, writer = await served.connect(limit=1024)
        writer.write(request(chat(messages=[{"role": "user", "content": "slow"}], stream=True, max_tokens=30)))
        await reader.readuntil(b'"role"')
        settled = asyncio.create_task(served.runner.settled())
        await asyncio.sleep(0.1)
        assert not settled.done()
        while b"[DONE]" not in await reader.read(1024):
            pass
        async with asyncio.timeout(5):
            await settled
        writer.close()


async def test_cleanup_ends_what_is_still_in_flight_when_its_time_is_over() -> None:
    async with serving(shutdown_timeout=0.1) as served:
        reader, writer = await served.connect()
        writer.write(request(chat(messages=[{"role": "user", "content": "slow"}], stream=True)))
        await reader.readuntil(b'"role"')
        await served.runner.cleanup()
        assert b"[DONE]" not in await reader.read()
        await served.idle()
        writer.close()


async def test_the_sockets_owner_sees_the_status_and_tcp_does_not() -> None:
    async with serving(hooks=Hooks(daemon_status=lambda: {"pid": 42})) as served:
        reader, writer = await served.connect(unix=True)
        writer.write(request(method="GET", path="/acu/v1/status"))
        report = msgspec.json.decode((await read_reply(reader)).body)
        writer.close()
        assert (await talk(served, iter([request(method="GET", path="/acu/v1/status")]))).status == 403
    assert report["daemon"] == {"pid": 42}
    assert [model["name"] for model in report["service"]["models"]] == ["scripted", "scripted-embed"]


async def test_metrics_show_less_to_strangers() -> None:
    hooks = Hooks(render_metrics=lambda full: b"everything" if full else b"basics")
    async with serving(hooks=hooks) as served:
        stranger = await talk(served, iter([request(method="GET", path="/metrics")]))
        reader, writer = await served.connect(unix=True)
        writer.write(request(method="GET", path="/metrics"))
        owner = await read_reply(reader)
        writer.close()
    assert (stranger.body, owner.body) == (b"basics", b"everything")
    assert stranger.headers["content-type"].startswith("text/plain; version=")


async def test_over_tls_everything_is_the_same(tmp_path: Path) -> None:
    certificate_file, key_file = make_certificate(tmp_path)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate_file, key_file)
    client_side = ssl.create_default_context(cafile=str(certificate_file))
    body = chat(messages=[{"role": "user", "content": "long"}], stream=True, max_tokens=3000)
    async with serving(tls=server_side) as served:
        reader, writer = await served.connect(ssl=client_side, server_hostname="localhost")
        writer.write(request(chat()))
        assert (await read_reply(reader)).status == 200
        writer.write(request(body))
        reply = await read_reply(reader)
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert reply.body.count(b'"delta":{"content":') >= 300
        writer.write(request(chat(messages=[{"role": "user", "content": "slow"}], stream=True)))
        await reader.readuntil(b'"role"')
        writer.transport.abort()
        await served.idle()
        reader, writer = await served.connect()  # plain HTTP on the TLS port
        writer.write(request(chat()))
        assert await reader.read() == b""
        writer.close()


async def test_with_keys_the_audit_tells_who_did_what_and_no_content(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("- {name: team, key: sk-team-0123456789, tenant: blue}")
    path.chmod(0o600)
    async with serving(keys=Keys(path)) as served:
        refused = await talk(served, iter([request(chat())]))
        served_reply = await talk(served, iter([request(chat(), extra="Authorization: Bearer sk-team-0123456789\r\n")]))
        first, second = await served.recorded(2)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert (first["status"], first["code"], first["key"]) == (401, "missing_api_key", "-")
    assert served_reply.status == 200
    wanted: dict[str, Any] = {
        "key": "team", "tenant": "blue", "method": "POST", "route": "/v1/chat/completions", "model": "scripted",
        "status": 200, "streamed": False, "peer": "127.0.0.1", "uid": None, "reason": None,
    }  # fmt: skip
    assert wanted.items() <= second.items()
    assert second["prompt_tokens"] > 0
    assert second["completion_tokens"] > 0
    everything = msgspec.json.encode(served.records)
    assert b"hello" not in everything
    assert b"sk-team" not in everything
    assert served.responses == [("/v1/chat/completions", 401), ("/v1/chat/completions", 200)]


async def test_the_audit_names_whom_a_missing_scope_turned_away(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("- {name: team, key: sk-team-0123456789, tenant: blue}")
    path.chmod(0o600)
    asked = b"GET /acu/v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-team-0123456789\r\n\r\n"
    async with serving(keys=Keys(path)) as served:
        refused = await talk(served, iter([asked]))
        (record,) = await served.recorded(1)
    assert refused.status == 403
    assert (record["code"], record["key"], record["tenant"]) == ("missing_scope", "team", "blue")


async def read_nothing_of(raw: bytes, **changed: Any) -> tuple[list[tuple[str, int]], bytes]:
    """Send `raw` over the unix socket, which holds 200 KB, and read nothing until the server has ended the connection.

    What was answered, and the bytes that were still to be read.
    """
    async with serving(limits(slow_reader_s=0.3, **changed)) as served:
        reader, writer = await served.connect(unix=True, limit=1024)
        writer.write(raw)
        async with asyncio.timeout(10):
            while not served.runner.connections[0]:
                await asyncio.sleep(0.005)
            while served.runner.connections[0]:
                await asyncio.sleep(0.005)
        rest = await reader.read()
        writer.transport.abort()
        return served.responses, rest


def embed_many(inputs: int, extra: str = "") -> bytes:
    """A request whose answer has about 110 bytes an input."""
    body = msgspec.json.encode({"model": "scripted-embed", "input": ["x"] * inputs})
    return request(body, path="/v1/embeddings", extra=extra)


OPENAPI = request(method="GET", path="/openapi.json", content_type=None)
LAST = embed_many(300, "Connection: close\r\n")


@pytest.mark.parametrize(
    "raw",
    [
        embed_many(2048) * 3,
        OPENAPI * 40,
        OPENAPI * 4 + LAST,  # which leaves less than what holds up an answer
    ],
    ids=["large answers", "many small answers", "the last answer of a connection"],
)
async def test_an_answer_that_nobody_reads_ends_its_connection(raw: bytes) -> None:
    responses, _ = await read_nothing_of(raw)
    assert responses[-1] == ("-", 408)
    assert {status for _, status in responses[:-1]} == {200}


async def test_an_answer_that_is_read_slowly_comes_whole() -> None:
    loop = asyncio.get_running_loop()
    async with serving(limits(slow_reader_s=1.5)) as served:
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            await loop.sock_connect(client, str(served.unix))
            await loop.sock_sendall(client, embed_many(2048) * 3 + LAST)
            answer = b""
            while piece := await loop.sock_recv(client, 16 * 1024):  # 700 KB in 2 s, 480 KB in `slow_reader_s`
                answer += piece
                await asyncio.sleep(0.05)
    assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b'"usage"') == 4
    assert answer.endswith(b"}")
    assert ("-", 408) not in served.responses


async def test_what_comes_before_a_mistake_in_one_read_is_answered() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(request(method="GET", path="/healthz") + request(chat()) + b"BAD\x01\r\n\r\n")
        replies = [await read_reply(reader) for _ in range(3)]
        assert await reader.read() == b""
        writer.close()
    assert [reply.status for reply in replies] == [200, 200, 400]
    assert b"Hi there" in replies[1].body


@pytest.mark.parametrize("whole", [request(method="GET", path="/healthz"), request(chat())], ids=["GET", "POST"])
async def test_headers_that_begin_behind_a_request_have_their_time_too(whole: bytes) -> None:
    async with serving(limits(header_timeout_s=0.3)) as served:
        reader, writer = await served.connect()
        writer.write(whole + b"GET /healthz HTTP/1.1\r\nHost: loc")
        first, second = await read_reply(reader), await read_reply(reader)
        assert await reader.read() == b""
        writer.close()
    assert (first.status, second.status, second.error["code"]) == (200, 408, "header_timeout")


async def test_cleanup_cuts_off_at_once_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FLUSH_S", 0.1)
    async with serving(shutdown_timeout=600) as served:
        for raw in (embed_many(2048) * 3, slow_chat(stream=True).replace(b"slow", b"long")):
            _, writer = await served.connect(unix=True, limit=1024)
            writer.write(raw)
        async with asyncio.timeout(5):
            while not served.responses:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.3)
        assert served.runner.connections[0] == 2
        async with asyncio.timeout(60):
            await served.runner.cleanup()
