"""MCP servers over streamable HTTP: a real one in a process, and one by hand that forgets, floods and says nothing."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentflow.tools.errors import ToolDied, ToolError, ToolFailed, ToolUnavailable
from agentflow.tools.mcp import McpServers
from agentflow.tools.mcpsource import McpSource
from agentflow.tools.secrets import SecretFile
from agentflow.tools.tool import Attachment, CallContext, ToolOutput

EXAMPLE = Path(__file__).with_name("mcp_example.py")
SECRET = "k3y-0f-th3-k1ngd0m"
PICTURE = Attachment(b"\x89PNG\r\n\x00\xff", "image/png")


@asynccontextmanager
async def running(source: McpSource) -> AsyncGenerator[McpServers, None]:
    async with asyncio.TaskGroup() as group:
        servers = await McpServers.open({"far": source}, {}, group)
        try:
            yield servers
        finally:
            await servers.close()


async def call(servers: McpServers, folder: Path, name: str, /, **arguments: object) -> ToolOutput:
    tool = next(tool for tool in servers.tools() if tool.spec.name == name)
    context = CallContext(
        tenant="ann",
        run_id="r",
        call_id="c",
        key="r/c",
        deadline_at=time.monotonic() + 30,
        result_path=folder / "result",
    )
    return await tool.call(arguments, context)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def begun(port: int) -> subprocess.Popen[bytes]:
    """A real server, when it listens. End it."""
    process = subprocess.Popen([sys.executable, str(EXAMPLE), "http", str(port)], stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return process
        time.sleep(0.02)
    raise AssertionError("the server ended at once")


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def test_a_real_server_over_http_answers_and_is_found_again_after_it_was_killed(tmp_path: Path) -> None:
    port = free_port()
    first = await asyncio.to_thread(begun, port)
    try:
        async with running(McpSource(url=f"http://127.0.0.1:{port}/mcp", reach=(f"127.0.0.1:{port}",))) as servers:
            assert servers.problems == {}
            assert await call(servers, tmp_path, "add", a=2, b=3) == ToolOutput("5")
            assert await call(servers, tmp_path, "picture") == ToolOutput("", attached=(PICTURE,))
            assert await call(servers, tmp_path, "pid") == ToolOutput(str(first.pid))

            changed = asyncio.Event()
            servers.on_change(changed.set)
            assert await call(servers, tmp_path, "learn") == ToolOutput("learned")
            await changed.wait()
            assert await call(servers, tmp_path, "learned") == ToolOutput("knows")

            note = tmp_path / "note"
            sleeping = asyncio.create_task(call(servers, tmp_path, "sleep", seconds=60, note=str(note)))
            other = asyncio.create_task(call(servers, tmp_path, "sleep", seconds=60, note=str(tmp_path / "other")))
            await noted(note, "began")
            await noted(tmp_path / "other", "began")
            sleeping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sleeping
            await noted(note, "cancelled")

            end(first)
            with pytest.raises(ToolDied):
                await other
            with pytest.raises(ToolUnavailable, match="cannot be reached now"):
                await call(servers, tmp_path, "add", a=2, b=3)
            second = await asyncio.to_thread(begun, port)
            try:
                assert await call(servers, tmp_path, "pid") == ToolOutput(str(second.pid))
            finally:
                end(second)
    finally:
        end(first)


async def noted(note: Path, text: str) -> None:
    while text not in read(note):
        await asyncio.sleep(0.01)


def read(note: Path) -> str:
    return note.read_text() if note.exists() else ""


class Older:
    """A server of the older protocol, with sessions."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.made = 0
        self.heard: list[str] = []
        self.headers: list[str] = []
        self.port = 0
        self.redirect = ""

    async def get(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=405)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        self.sessions.discard(request.headers["Mcp-Session-Id"])
        return web.Response()

    async def post(self, request: web.Request) -> web.StreamResponse:
        if self.redirect:
            raise web.HTTPTemporaryRedirect(self.redirect)
        message = await request.json()
        method = message["method"]
        self.heard.append(method)
        self.headers.append(request.headers.get("Authorization", ""))
        if method == "server/discover":
            return self._error(message, -32601, "unknown method")
        if method == "initialize":
            self.made += 1
            self.sessions.add(str(self.made))
            about = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "o", "version": "1"},
            }
            return self._result(message, about, {"Mcp-Session-Id": str(self.made)})
        if request.headers.get("Mcp-Session-Id") not in self.sessions:
            return web.Response(status=404)
        if "id" not in message:
            return web.Response(status=202)
        if method == "tools/list":
            names = ("answer", "large", "event", "silence", "refuse", "cut", "echo")
            return self._result(
                message, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
            )
        found: web.StreamResponse = await getattr(self, message["params"]["name"])(request, message)
        return found

    def _result(self, message: Any, result: Any, headers: dict[str, str] | None = None) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    def _error(self, message: Any, code: int, text: str) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": text}})

    async def answer(self, request: web.Request, message: Any) -> web.StreamResponse:
        return self._result(message, {"content": [{"type": "text", "text": "here"}], "structuredContent": {"a": 1}})

    async def echo(self, request: web.Request, message: Any) -> web.StreamResponse:
        return self._error(message, -32000, f"you sent {request.headers['Authorization']}")

    async def refuse(self, request: web.Request, message: Any) -> web.StreamResponse:
        return self._result(message, {"content": [{"type": "text", "text": "no such city"}], "isError": True})

    async def large(self, request: web.Request, message: Any) -> web.StreamResponse:
        return self._result(message, {"content": [{"type": "text", "text": "x" * 3_000_000}]})

    async def event(self, request: web.Request, message: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(100):
                await response.write(b"data: " + b"x" * 1_000_000)
        return response

    async def silence(self, request: web.Request, message: Any) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def cut(self, request: web.Request, message: Any) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


@pytest.fixture
async def older() -> AsyncGenerator[Older, None]:
    server = Older()
    app = web.Application()
    app.router.add_get("/mcp", server.get)
    app.router.add_post("/mcp", server.post)
    app.router.add_delete("/mcp", server.delete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


def source(server: Older, **more: Any) -> McpSource:
    return McpSource(url=f"http://127.0.0.1:{server.port}/mcp", reach=(f"127.0.0.1:{server.port}",), **more)


async def test_a_session_that_was_forgotten_is_made_anew_and_the_call_made_once(older: Older, tmp_path: Path) -> None:
    async with running(source(older)) as servers:
        assert await call(servers, tmp_path, "answer") == ToolOutput("here")
        older.sessions.clear()
        assert await call(servers, tmp_path, "answer") == ToolOutput("here")
        assert older.made == 2
        assert older.heard.count("tools/call") == 3  # of which one was told that there is no such session
    assert older.sessions == set()


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("large", ToolFailed, "longer than 1,048,576 bytes"),
        ("event", ToolDied, "gone before event was done"),
        ("cut", ToolDied, "ended the connection"),
    ],
)
async def test_an_answer_that_is_none_fails_its_own_call_and_no_other(
    older: Older, tmp_path: Path, name: str, kind: type[ToolError], words: str
) -> None:
    async with running(source(older, message_bytes=1 << 20)) as servers:
        silent = asyncio.create_task(call(servers, tmp_path, "silence"))
        while "tools/call" not in older.heard:
            await asyncio.sleep(0.01)
        with pytest.raises(kind, match=words):
            await call(servers, tmp_path, name)
        assert await call(servers, tmp_path, "answer") == ToolOutput("here")
        assert not silent.done()
        silent.cancel()
        with pytest.raises(asyncio.CancelledError):
            await silent
        assert older.made == 1
        while "notifications/cancelled" not in older.heard:
            await asyncio.sleep(0.01)


async def test_what_a_tool_says_is_told_without_the_secrets_that_were_sent(older: Older, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"Bearer {SECRET}\n")
    async with running(source(older, headers={"Authorization": SecretFile(str(tmp_path / "key"))})) as servers:
        assert await call(servers, tmp_path, "refuse") == ToolOutput("no such city", is_error=True)
        with pytest.raises(ToolFailed) as caught:
            await call(servers, tmp_path, "echo")
        assert str(caught.value) == "echo: you sent [secret]"
        assert caught.value.__cause__ is None
        assert set(older.headers) == {f"Bearer {SECRET}"}


async def test_a_server_on_this_machine_is_reached_only_where_it_is_allowed(older: Older) -> None:
    async with running(McpSource(url=f"http://127.0.0.1:{older.port}/mcp")) as servers:
        assert f'add reach: ["127.0.0.1:{older.port}"] to tools.mcp.far.' in servers.problems["far"]
        assert servers.tools() == ()
    assert older.heard == []


async def test_a_redirect_to_another_place_is_not_followed(older: Older) -> None:
    older.redirect = f"http://localhost:{older.port}/mcp"
    both = (f"127.0.0.1:{older.port}", f"localhost:{older.port}")
    async with running(McpSource(url=f"http://127.0.0.1:{older.port}/mcp", reach=both)) as servers:
        assert "refused the connection" in servers.problems["far"]
    assert older.heard == []
