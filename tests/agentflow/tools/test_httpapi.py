"""HTTP APIs as tools, against a real server on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentflow.tools.errors import (
    InvalidArguments,
    InvalidTool,
    ToolDied,
    ToolError,
    ToolFailed,
    ToolTimeout,
    ToolUnavailable,
)
from agentflow.tools.handles import HandleStore
from agentflow.tools.httpapi import HttpApi
from agentflow.tools.httpsource import HttpSource
from agentflow.tools.secrets import SecretFile
from agentflow.tools.tool import CallContext, Content, ToolOutput
from agentflow.tools.toolbox import CallId, Toolbox
from tests.agentflow.tools.shelves import found

SECRET = "k3y-0f-th3-k1ngd0m"
DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "paths": {
        "/weather/{city}": {
            "get": {
                "operationId": "weather",
                "summary": "The weather.",
                "parameters": [
                    {"name": "city", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "days", "in": "query", "schema": {"type": "integer"}},
                ],
            }
        },
        "/notes": {
            "post": {
                "operationId": "note",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
                        }
                    },
                },
            }
        },
        **{
            f"/{name}": {method: {"operationId": name}}
            for name, method in [
                ("large", "get"), ("endless", "get"), ("picture", "get"), ("nothing", "delete"), ("missing", "get"),
                ("busy", "get"), ("slow", "get"), ("cut", "get"), ("zipped", "get"), ("hop", "get"), ("away", "get"),
                ("loop", "get"), ("echo", "get"), ("moved", "post"), ("echoes", "get"), ("rubbish", "get"),
            ]
        },
    },
}  # fmt: skip


class Server:
    """What the API does. `calls`: how often each path was asked for."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.port = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.split("/")[2]
        self.calls[name] = self.calls.get(name, 0) + 1
        found: web.StreamResponse = await getattr(self, name)(request)
        return found

    async def weather(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"path": request.raw_path, "host": request.host, "encoding": request.headers["Accept-Encoding"]}
        )

    async def notes(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"size": len((await request.json())["text"])}, status=201)

    async def large(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="é" * 100_000)

    async def endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    async def picture(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\x89PNG\0", content_type="image/png")

    async def nothing(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=204)

    async def missing(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="no such city: try Paris. " + "x" * 10_000)

    async def busy(self, request: web.Request) -> web.StreamResponse:
        if self.calls["busy"] > 1:
            return web.Response(text="free")
        return web.Response(status=503, headers={"Retry-After": "1"}, text="later")

    async def slow(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def cut(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"x")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def rubbish(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        request.transport.close()
        return web.Response()

    async def zipped(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

    async def hop(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/v1/weather/hopped")

    async def away(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(f"http://localhost:{self.port}/v1/weather/stolen")

    async def loop(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/v1/loop")

    async def moved(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/v1/weather/hopped")

    async def echo(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=f"you sent {request.headers['Authorization']}", status=400)

    async def echoes(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        for block in ("x" * 100_000, SECRET[:5], SECRET[5:], "y"):
            await response.write(block.encode())
            await asyncio.sleep(0.01)
        return response


@pytest.fixture
async def server() -> AsyncGenerator[Server, None]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/v1/{rest:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@asynccontextmanager
async def opened(server: Server, **more: Any) -> AsyncGenerator[HttpApi, None]:
    source = {
        "document": "api.yaml",
        "url": f"http://127.0.0.1:{server.port}/v1/",
        "reach": (f"127.0.0.1:{server.port}",),
    }
    api = await HttpApi.open(HttpSource(**(source | more)), DOCUMENT)
    try:
        yield api
    finally:
        await api.close()


async def call(api: HttpApi, folder: Path, name: str, **arguments: Any) -> ToolOutput:
    tool = next(tool for tool in api.tools if tool.spec.name == name)
    context = CallContext(
        tenant="ann",
        run_id="r",
        call_id="c",
        key="r/c",
        deadline_at=time.monotonic() + 30,
        result_path=folder / "result",
    )
    return await tool.call(arguments, context)


async def test_an_operation_is_asked_for_and_answers(server: Server, tmp_path: Path) -> None:
    async with opened(server) as api:
        output = await call(api, tmp_path, "weather", city="São Paulo/x", days=2)
        assert output == ToolOutput(
            '{"path": "/v1/weather/S%C3%A3o%20Paulo%2Fx?days=2", "host": "127.0.0.1:'
            + str(server.port)
            + '", "encoding": "identity"}'
        )
        assert await call(api, tmp_path, "note", text="hello") == ToolOutput('{"size": 5}')
        (tmp_path / "long").write_text("x" * 300_000)
        assert await call(api, tmp_path, "note", text=Content(tmp_path / "long", 300_000)) == ToolOutput(
            '{"size": 300000}'
        )
        assert await call(api, tmp_path, "nothing") == ToolOutput("HTTP 204 No Content: no content")
        specs = {tool.spec.name: tool.spec for tool in api.tools}
        assert specs["weather"].idempotent
        assert not specs["note"].idempotent
        assert specs["weather"].description == "The weather."


async def test_what_is_large_or_no_text_is_a_file(server: Server, tmp_path: Path) -> None:
    async with opened(server) as api:
        result = tmp_path / "result"
        assert await call(api, tmp_path, "large") == ToolOutput(Content(result, 200_000, "text/plain"))
        assert result.read_text() == "é" * 100_000
        result.unlink()
        assert await call(api, tmp_path, "picture") == ToolOutput(Content(result, 5, "image/png"))
        assert result.read_bytes() == b"\x89PNG\0"


async def test_what_never_ends_is_cut_off(server: Server, tmp_path: Path) -> None:
    async with opened(server, answer_bytes=1_000_000) as api:
        with pytest.raises(ToolFailed, match="longer than 1,000,000 bytes"):
            await call(api, tmp_path, "endless")
        assert (await call(api, tmp_path, "nothing")).content == "HTTP 204 No Content: no content"


async def test_an_answer_that_says_no_is_told_with_its_head(server: Server, tmp_path: Path) -> None:
    async with opened(server) as api:
        output = await call(api, tmp_path, "missing")
        assert output.is_error
        assert str(output.content).startswith("HTTP 404 Not Found\nno such city: try Paris.")
        assert len(str(output.content)) < 2_100


async def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    async with opened(server) as api:
        handles = HandleStore(tmp_path / "handles")
        await handles.open()
        box = Toolbox(api.tools, handles)
        outcome = await box.run(box.prepare("ann", "busy", "{}"), CallId("ann", "r", "c"), 10.0)
        assert (outcome.text, outcome.is_error, outcome.attempts) == ("free", False, 2)
        outcome = await box.run(box.prepare("ann", "large", "{}"), CallId("ann", "r", "d"), 10.0)
        assert outcome.handle is not None
        assert found(handles, "ann", outcome.handle).size == 200_000


@pytest.mark.parametrize(
    ("name", "kind"),
    [("slow", ToolTimeout), ("cut", ToolDied), ("zipped", ToolFailed), ("rubbish", ToolDied), ("loop", ToolFailed)],
)
async def test_a_server_that_fails_fails_only_the_call(
    server: Server, tmp_path: Path, name: str, kind: type[ToolError]
) -> None:
    async with opened(server, timeout_s=0.3) as api:
        with pytest.raises(kind):
            await call(api, tmp_path, name)
        assert (await call(api, tmp_path, "nothing")).content == "HTTP 204 No Content: no content"


async def test_redirects_are_followed_where_they_stay_and_ask_for_the_same(server: Server, tmp_path: Path) -> None:
    reach = (f"127.0.0.1:{server.port}", f"localhost:{server.port}")
    async with opened(server, reach=reach) as api:
        assert "/v1/weather/hopped" in str((await call(api, tmp_path, "hop")).content)
        assert server.calls["weather"] == 1
        for name in ("away", "moved"):
            with pytest.raises(ToolFailed, match="redirects to another place"):
                await call(api, tmp_path, name)
        assert server.calls["weather"] == 1


async def test_secrets_are_sent_and_never_seen_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"Bearer {SECRET}\n")
    async with opened(server, headers={"Authorization": SecretFile(str(tmp_path / "key"))}) as api:
        assert await call(api, tmp_path, "echo") == ToolOutput("HTTP 400 Bad Request\nyou sent [secret]", is_error=True)
        output = await call(api, tmp_path, "echoes")
        assert isinstance(output.content, Content)
        assert (tmp_path / "result").read_text() == "x" * 100_000 + "[secret]y"
        assert output.content.size == (tmp_path / "result").stat().st_size


async def test_this_machine_is_reached_only_where_it_is_allowed(server: Server, tmp_path: Path) -> None:
    async with opened(server, reach=()) as api:
        with pytest.raises(ToolFailed, match="private network"):
            await call(api, tmp_path, "nothing")
    async with opened(server, reach=("127.0.0.1:1",)) as api:
        with pytest.raises(ToolFailed, match=r'private network.*add reach: \["127\.0\.0\.1:[0-9]+"\] to tools\.http\.'):
            await call(api, tmp_path, "nothing")
    assert server.calls == {}


async def test_a_name_is_connected_to_at_the_address_that_was_checked(server: Server, tmp_path: Path) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["::1", "127.0.0.2", "127.0.0.1"]  # nobody listens at the first two

    url = f"http://api.example.com:{server.port}/v1"
    source = HttpSource(document="x", url=url, reach=(f"api.example.com:{server.port}",))
    api = await HttpApi.open(source, DOCUMENT, resolve)
    output = await call(api, tmp_path, "weather", city="x")
    assert f'"host": "api.example.com:{server.port}"' in str(output.content)
    assert asked == ["api.example.com"]
    await api.close()


async def test_a_server_that_is_not_there_may_be_there_later(server: Server, tmp_path: Path) -> None:
    async with opened(server, url="http://127.0.0.1:1/v1", reach=("127.0.0.1:1",)) as api:
        with pytest.raises(ToolUnavailable, match="cannot be reached now") as caught:
            await call(api, tmp_path, "nothing")
        assert caught.value.again


async def test_arguments_stay_in_their_place(server: Server, tmp_path: Path) -> None:
    async with opened(server) as api:
        for city in ("..", "../notes", ""):
            with pytest.raises(InvalidArguments):
                await call(api, tmp_path, "weather", city=city)
        with pytest.raises(InvalidArguments, match="stand for"):
            await call(api, tmp_path, "note", text=Content(tmp_path / "x", 1 << 30))
    assert server.calls == {}


async def test_a_source_that_is_wrong_is_refused(tmp_path: Path) -> None:
    for source in (
        HttpSource(document="x", url="http://user:pa55@a/"),
        HttpSource(document="x", url="http://a/", reach=("everything",)),
        HttpSource(document="x", url="http://a/", headers={"A": "b\r\nC: d"}),
        HttpSource(document="x", url="http://a/", headers={"A": SecretFile(str(tmp_path / "missing"))}),
        HttpSource(document="x", url="http://a/", operations=("no_such",)),
        HttpSource(document="x", url="http://a/?key=1"),
    ):
        with pytest.raises(InvalidTool):
            await HttpApi.open(source, DOCUMENT)


async def test_approval_is_as_it_is_configured(server: Server) -> None:
    for approval, wanted in (("never", (False, False)), ("writes", (False, True)), ("always", (True, True))):
        async with opened(server, approval=approval, operations=("weather", "note")) as api:
            assert tuple(tool.spec.approval for tool in api.tools) == wanted
