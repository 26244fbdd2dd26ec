"""/v1/files with the real client, and with clients that are hostile."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from acu.http.files import CHECKED_FIRST_BYTES, PIECE_BYTES
from acu.http.multipart import TENANT_AT_A_TIME
from agentflow.library.config import LibraryConfig
from tests.acu.http.hostile import request
from tests.acu.http.library_serving import LateLibrary, client, serving_library, two_tenants, uploads_left
from tests.acu.http.raw import Reply, read_reply, talk
from tests.acu.http.serving import Served, limits, serving

on_one_loop = pytest.mark.asyncio(loop_scope="module")
BOUNDARY = "multipart/form-data; boundary=b"
TEXT = b"The \xe2\x82\xac sign.\r\n--b\n\0binary"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(folder: Path) -> AsyncIterator[Served]:
    async with serving_library(
        folder, limits(body_timeout_s=1.0), LibraryConfig(max_file_mb=1), keys=two_tenants(folder)
    ) as running:
        yield running


def part(value: str, content: bytes) -> bytes:
    return f"--b\r\nContent-Disposition: form-data; {value}\r\n\r\n".encode() + content + b"\r\n"


def upload(*parts: bytes, content_type: str | None = BOUNDARY, extra: str = "", **more: Any) -> bytes:
    body = b"".join(parts) + b"--b--\r\n"
    key = f"Authorization: Bearer sk-alice-0123456789\r\n{extra}"
    return request(body, path="/v1/files", content_type=content_type, extra=key, **more)


PURPOSE = part('name="purpose"', b"user_data")
FILE = part('name="file"; filename="a.txt"', b"hello")


@on_one_loop
async def test_a_file_is_uploaded_told_of_downloaded_and_deleted(served: Served) -> None:
    async with client(served) as ai:
        file = await ai.files.create(file=("grüße €.md", TEXT), purpose="user_data")
        assert (file.object, file.bytes, file.filename, file.purpose) == ("file", len(TEXT), "grüße €.md", "user_data")
        assert file.status == "processed"
        assert file.id.startswith("file-")
        assert await ai.files.retrieve(file.id) == file
        content = await ai.files.content(file.id)
        assert content.content == TEXT
        headers = content.response.headers
        assert headers["content-type"] == "text/markdown; charset=utf-8"
        assert headers["content-length"] == str(len(TEXT))
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-disposition"] == (
            "attachment; filename=\"gr__e _.md\"; filename*=UTF-8''gr%C3%BC%C3%9Fe%20%E2%82%AC.md"
        )
        deleted = await ai.files.delete(file.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
        for call in (ai.files.retrieve, ai.files.content, ai.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(file.id)


@on_one_loop
async def test_a_file_expires_when_it_was_asked_to(served: Served) -> None:
    async with client(served) as ai:
        file = await ai.files.create(
            file=("a.txt", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert file.expires_at == file.created_at + 3600
        await ai.files.delete(file.id)


@on_one_loop
async def test_files_are_listed_in_pages_and_by_purpose(served: Served) -> None:
    async with client(served) as ai:
        purposes: list[Any] = ["batch", "evals"] * 3
        made = [await ai.files.create(file=(f"{i}.txt", b"x"), purpose=p) for i, p in enumerate(purposes)]
        ids = [file.id for file in made]
        assert [file.id async for file in ai.files.list(limit=2, order="asc")] == ids
        assert [file.id async for file in ai.files.list()] == ids[::-1]
        assert [file.id async for file in ai.files.list(purpose="evals", limit=1)] == ids[::-2]
        page = await ai.files.list(limit=2, order="asc", after=ids[0])
        assert ([file.id for file in page.data], page.has_more) == (ids[1:3], True)
        assert (page.first_id, page.last_id) == (ids[1], ids[2])  # type: ignore[attr-defined]
        last = await ai.files.list(limit=2, order="asc", after=ids[3])
        assert (len(last.data), last.has_more) == (2, False)
        for file_id in ids:
            await ai.files.delete(file_id)
        empty = await ai.files.list()
        assert (empty.data, empty.first_id, empty.last_id, empty.has_more) == ([], None, None, False)  # type: ignore[attr-defined]


@on_one_loop
async def test_what_one_tenant_uploaded_no_other_can_see(served: Served) -> None:
    async with client(served) as ai, client(served, "bob") as other:
        file = await ai.files.create(file=("a.txt", b"secret"), purpose="user_data")
        assert (await other.files.list()).data == []
        with pytest.raises(openai.NotFoundError) as theirs:
            await other.files.retrieve(file.id)
        with pytest.raises(openai.NotFoundError) as nobodys:
            await other.files.retrieve("file-" + "0" * 28)
        assert str(theirs.value).replace(file.id, "") == str(nobodys.value).replace("file-" + "0" * 28, "")
        for call in (other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(file.id)
        assert (await ai.files.content(file.id)).content == b"secret"
        await ai.files.delete(file.id)


@on_one_loop
async def test_a_head_request_tells_the_size_alone(served: Served) -> None:
    async with client(served) as ai:
        file = await ai.files.create(file=("a.html", TEXT), purpose="user_data")
        key = "Authorization: Bearer sk-alice-0123456789\r\n"
        reader, writer = await served.connect()
        for method, body in (("HEAD", b""), ("GET", TEXT)):
            writer.write(request(method=method, path=f"/v1/files/{file.id}/content", content_type=None, extra=key))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert f"content-length: {len(TEXT)}\r\n".encode() in head
            assert b"content-disposition: attachment" in head
            assert await reader.readexactly(len(body)) == body
        await ai.files.delete(file.id)


def file_part(more: str, content: bytes = b"") -> bytes:
    return part(f'name="file"; {more}', content)


SECONDS, ANCHOR = "expires_after[seconds]", "expires_after[anchor]"
TYPE = "Content-Type"
MISSING, INVALID, BROKEN, UNNAMED = "missing_required_parameter", "invalid_value", "invalid_form", "invalid_filename"
WRONG: dict[str, tuple[bytes, int, str, str | None]] = {
    "no purpose": (upload(FILE), 400, MISSING, "purpose"),
    "no file": (upload(PURPOSE), 400, MISSING, "file"),
    "a purpose of no kind": (upload(part('name="purpose"', b"fun"), FILE), 400, INVALID, "purpose"),
    "one that comes last": (upload(FILE, part('name="purpose"', b"fun")), 400, INVALID, "purpose"),
    "an unknown field": (upload(PURPOSE, part('name="purposes"', b"x")), 400, "unknown_parameter", "purposes"),
    "10,000 fields": (upload(PURPOSE * 10_000), 400, INVALID, "purpose"),
    "10,000 names": (upload(*(part(f'name="f{i}"', b"") for i in range(10_000))), 400, "unknown_parameter", "f0"),
    "a text for the file": (upload(PURPOSE, part('name="file"', b"hello")), 400, INVALID, "file"),
    "a long name": (upload(file_part(f'filename="{"x" * 300}"')), 400, UNNAMED, "file"),
    "a longer name": (upload(file_part(f'filename="{"x" * 9000}"')), 400, BROKEN, None),
    "NUL in the name": (upload(file_part('filename="a\0b"')), 400, BROKEN, None),
    "NUL in the name, encoded": (upload(file_part("filename*=UTF-8''a%00b")), 400, UNNAMED, "file"),
    "no name": (upload(file_part('filename=".."')), 400, UNNAMED, "file"),
    "NUL in a field": (upload(part('name="purpose"', b"a\0b"), FILE), 400, INVALID, "purpose"),
    "seconds too few": (upload(part(f'name="{SECONDS}"', b"60")), 400, INVALID, SECONDS),
    "seconds of no number": (upload(part(f'name="{SECONDS}"', b"x")), 400, "invalid_type", SECONDS),
    "seconds alone": (upload(PURPOSE, FILE, part(f'name="{SECONDS}"', b"3600")), 400, MISSING, ANCHOR),
    "a file too large": (upload(file_part('filename="a"', b"x" * 1_048_577)), 413, "file_too_large", "file"),
    "a length of a terabyte": (upload(FILE, length=1 << 40), 413, "file_too_large", "file"),
    "no boundary": (upload(FILE, content_type="multipart/form-data"), 400, BROKEN, TYPE),
    "an empty boundary": (upload(FILE, content_type="multipart/form-data; boundary="), 400, BROKEN, TYPE),
    "a long boundary": (upload(FILE, content_type=f"multipart/form-data; boundary={'b' * 71}"), 400, BROKEN, TYPE),
    "another boundary": (upload(FILE, content_type="multipart/form-data; boundary=c"), 400, BROKEN, None),
    "a mixed message": (upload(FILE, content_type="multipart/mixed; boundary=b"), 415, "unsupported_media_type", TYPE),
    "JSON": (upload(FILE, content_type="application/json"), 415, "unsupported_media_type", TYPE),
    "no type": (upload(FILE, content_type=None), 415, "unsupported_media_type", TYPE),
    "a compressed form": (upload(FILE, extra="Content-Encoding: gzip\r\n"), 415, "unsupported_encoding", None),
    "an expectation": (upload(FILE, extra="Expect: miracles\r\n"), 417, "expectation_failed", None),
    "a page's form": (upload(FILE, extra="Origin: https://evil.example\r\n"), 403, "origin_not_allowed", None),
    "a hidden page's form": (upload(FILE, extra="Origin: null\r\n"), 403, "origin_not_allowed", None),
    "a key of nobody": (upload(FILE).replace(b"sk-alice", b"sk-mallo"), 401, "invalid_api_key", None),
}


@on_one_loop
@pytest.mark.parametrize(("raw", "status", "code", "param"), WRONG.values(), ids=WRONG)
async def test_an_upload_that_is_wrong_gets_its_status_and_leaves_nothing(
    served: Served, folder: Path, raw: bytes, status: int, code: str, param: str | None
) -> None:
    reply = await talk(served, iter([raw]))
    assert (reply.status, reply.error.get("code"), reply.error.get("param")) == (status, code, param), reply.body
    assert uploads_left(folder) == []
    assert (await talk(served, iter([listing()]))).body.count(b'"id"') == 0


def listing() -> bytes:
    key = "Authorization: Bearer sk-alice-0123456789\r\n"
    return request(method="GET", path="/v1/files", content_type=None, extra=key)


async def emptied(folder: Path) -> None:
    async with asyncio.timeout(5):
        while uploads_left(folder):
            await asyncio.sleep(0.01)


async def begun(folder: Path, count: int = 1) -> None:
    async with asyncio.timeout(5):
        while len(uploads_left(folder)) < count:
            await asyncio.sleep(0.01)


@on_one_loop
async def test_folders_in_a_files_name_are_left_out(served: Served, folder: Path) -> None:
    reply = await talk(served, iter([upload(PURPOSE, part('name="file"; filename="../../../tmp/x.txt"', b"x"))]))
    assert reply.status == 200
    file = json.loads(reply.body)
    assert file["filename"] == "x.txt"
    assert not await asyncio.to_thread(lambda: list(folder.rglob("*x.txt*")))
    async with client(served) as ai:
        await ai.files.delete(file["id"])


@on_one_loop
async def test_a_client_that_leaves_in_the_middle_leaves_nothing(served: Served, folder: Path) -> None:
    raw = upload(PURPOSE, part('name="file"; filename="a"', b"x" * 600_000))
    _, writer = await served.connect()
    writer.write(raw[:500_000])
    await begun(folder)
    writer.transport.abort()
    await emptied(folder)
    async with asyncio.timeout(5):
        while served.face._uploads.open:
            await asyncio.sleep(0.01)
    assert (await talk(served, iter([listing()]))).body.count(b'"id"') == 0


@on_one_loop
async def test_a_form_that_ends_too_soon_is_refused(served: Served, folder: Path) -> None:
    raw = upload(PURPOSE, FILE)
    reply = await talk(served, iter([raw[:-20]]), half_close=True)
    assert (reply.status, reply.error["code"]) == (400, "invalid_body")
    short = request(
        PURPOSE + FILE,
        path="/v1/files",
        content_type=BOUNDARY,
        extra="Authorization: Bearer sk-alice-0123456789\r\n",
    )
    reply = await talk(served, iter([short]))
    assert (reply.status, reply.error["code"]) == (400, "invalid_form")
    assert uploads_left(folder) == []


@on_one_loop
async def test_a_form_in_chunks_is_taken_however_it_is_cut(served: Served) -> None:
    body = PURPOSE + FILE + b"--b--\r\n"
    extra = "Authorization: Bearer sk-alice-0123456789\r\nTransfer-Encoding: chunked\r\n"
    head = request(path="/v1/files", content_type=BOUNDARY, extra=extra)
    chunks = [b"1\r\n%b\r\n" % body[i : i + 1] for i in range(len(body))]
    reply = await talk(served, iter([head, *chunks, b"0\r\n\r\n"]))
    assert reply.status == 200, reply.body
    async with client(served) as ai:
        assert (await ai.files.content(json.loads(reply.body)["id"])).content == b"hello"
        await ai.files.delete(json.loads(reply.body)["id"])


@on_one_loop
async def test_a_client_that_trickles_is_told_408_and_cut_off(served: Served, folder: Path) -> None:
    extra = "Authorization: Bearer sk-alice-0123456789\r\nTransfer-Encoding: chunked\r\n"
    head = request(path="/v1/files", content_type=BOUNDARY, extra=extra)
    start = part('name="file"; filename="a"', b"x" * 100)[:-2]
    pieces: list[bytes | float] = [head, b"%x\r\n%b\r\n" % (len(start), start), *(0.05, b"1\r\nx\r\n") * 60]
    reply = await talk(served, iter(pieces))
    assert (reply.status, reply.error["code"], reply.closed) == (408, "body_timeout", True)
    await emptied(folder)


@on_one_loop
async def test_a_client_that_waits_to_be_asked_is_asked(served: Served) -> None:
    raw = upload(PURPOSE, FILE, extra="Expect: 100-continue\r\n")
    head, body = raw.split(b"\r\n\r\n", 1)
    reader, writer = await served.connect()
    writer.write(head + b"\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    reply = await read_reply(reader)
    assert reply.status == 200
    async with client(served) as ai:
        await ai.files.delete(json.loads(reply.body)["id"])


@on_one_loop
async def test_more_uploads_of_a_tenant_than_may_be_at_a_time_are_told_to_come_again(
    served: Served, folder: Path
) -> None:
    raw = upload(PURPOSE, FILE)
    writers = []
    for _ in range(TENANT_AT_A_TIME):
        _, writer = await served.connect()
        writer.write(raw[:-30])
        writers.append(writer)
    await begun(folder, TENANT_AT_A_TIME)
    reply = await talk(served, iter([raw]))
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "uploads_full", "2")
    bobs = await talk(served, iter([raw.replace(b"sk-alice", b"sk-bob")]))
    assert bobs.status == 200, "another tenant has room"
    for writer in writers:
        writer.transport.abort()
    await emptied(folder)
    again = await talk(served, iter([raw]))
    assert again.status == 200
    async with client(served) as ai, client(served, "bob") as other:
        await ai.files.delete(json.loads(again.body)["id"])
        await other.files.delete(json.loads(bobs.body)["id"])


@on_one_loop
async def test_a_file_that_is_cut_while_it_is_sent_ends_the_connection(served: Served, folder: Path) -> None:
    async with client(served) as ai:
        file = await ai.files.create(file=("a.bin", b"x" * 1_048_576), purpose="user_data")
    raw = listing().replace(b"/v1/files ", f"/v1/files/{file.id}/content ".encode())
    reader, writer = await served.connect(unix=True)
    writer.write(raw)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"content-length: 1048576\r\n" in head
    assert b"application/octet-stream" in head
    (path,) = await asyncio.to_thread(lambda: list(folder.rglob(file.id)))
    os.truncate(path, 0)
    assert len(await reader.read(-1)) < 1_048_576
    async with asyncio.timeout(5):
        while served.records[-1]["reason"] != "failed":
            await asyncio.sleep(0.01)
    async with client(served) as ai:
        await ai.files.delete(file.id)


@on_one_loop
async def test_a_file_is_read_to_its_end_while_it_is_deleted(served: Served) -> None:
    async with client(served) as ai:
        file = await ai.files.create(file=("a.bin", b"x" * 1_048_576), purpose="user_data")
        raw = listing().replace(b"/v1/files ", f"/v1/files/{file.id}/content ".encode())
        reader, writer = await served.connect(unix=True)
        writer.write(raw)
        await reader.readuntil(b"\r\n\r\n")
        await ai.files.delete(file.id)
        assert await reader.readexactly(1_048_576) == b"x" * 1_048_576


@on_one_loop
@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=0", "limit", "invalid_value"),
        ("limit=10001", "limit", "invalid_value"),
        ("limit=x", "limit", "invalid_type"),
        ("limit=", "limit", "invalid_type"),
        ("order=up", "order", "invalid_value"),
        ("after=", "after", "invalid_value"),
        ("after=" + "x" * 200, "after", "invalid_value"),
        ("after=a%00b", "after", "invalid_value"),
        ("limit=1&limit=2", "limit", "invalid_value"),
        ("limits=1", "limits", "unknown_parameter"),
        ("before=x", "before", "unknown_parameter"),
    ],
)
async def test_a_query_that_is_wrong_names_its_parameter(served: Served, query: str, param: str, code: str) -> None:
    reply = await talk(served, iter([listing().replace(b"/v1/files ", f"/v1/files?{query} ".encode())]))
    assert (reply.status, reply.error.get("param"), reply.error.get("code")) == (400, param, code), reply.body


@on_one_loop
@pytest.mark.parametrize("name", ["%00", "..%2f..", "%ff%fe", "x" * 5000, "file-%20", "%F0%9F%98%80", "file-\u00e9"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_an_id_that_is_none_is_not_found(served: Served, name: str, method: str) -> None:
    for rest in ("", "/content") if method == "GET" else ("",):
        raw = listing().replace(b"GET /v1/files ", f"{method} /v1/files/{name}{rest} ".encode("latin-1"))
        reply = await talk(served, iter([raw]))
        assert reply.status == (400 if name == "file-\u00e9" else 404), reply


@on_one_loop
async def test_afterwards_no_request_has_failed(served: Served) -> None:
    assert not [record for record in served.records if record["status"] in (500, 507)]


async def test_without_a_data_plane_the_reason_is_told() -> None:
    async with serving() as served:
        calls = [
            request(PURPOSE + FILE + b"--b--", path="/v1/files", content_type=BOUNDARY),
            request(method="GET", path="/v1/files", content_type=None),
            request(b'{"query":"x"}', path="/v1/vector_stores/vs_1/search"),
        ]
        for call in calls:
            reply = await talk(served, iter([call]))
            assert (reply.status, reply.error["code"]) == (503, "data_plane_unavailable")
            assert "without a data plane" in str(reply.error["message"])
            assert "retry-after" not in reply.headers


async def test_while_the_data_plane_opens_clients_are_told_when_to_come_again(tmp_path: Path) -> None:
    async with serving(library=LateLibrary()) as served:
        reply: Reply = await talk(served, iter([request(method="GET", path="/v1/files", content_type=None)]))
        assert (reply.status, reply.error["code"]) == (503, "data_plane_unavailable")
        assert reply.headers["retry-after"] == "1"


def _overwrite(path: Path) -> None:
    path.write_bytes(b"shrt")


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _flip(path: Path) -> None:
    path.write_bytes(b"nineteen bites here")


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "overwritten": (_overwrite, "it has 4 bytes instead of 19"),
    "flipped": (_flip, "it has another SHA-256"),
    "a link": (_link, "it has become a symbolic link"),
    "a directory": (_directory, "it is no regular file"),
    "a pipe": (_pipe, "it is no regular file"),
    "gone": (Path.unlink, "it is missing"),
}


@on_one_loop
@pytest.mark.parametrize(("harm", "says"), DAMAGE.values(), ids=DAMAGE)
async def test_a_damaged_file_is_not_served_and_the_error_names_it(
    served: Served, folder: Path, harm: Callable[[Path], None], says: str
) -> None:
    async with client(served) as ai:
        file = await ai.files.create(file=("a.txt", b"nineteen bytes here"), purpose="user_data")
        (path,) = (folder / "library" / "files").rglob(file.id)
        harm(path)
        with pytest.raises(openai.InternalServerError) as refused:
            await ai.files.content(file.id)
        assert refused.value.code == "data_damaged"
        assert f"The file '{file.id}' is damaged: {says}. Restore it" in str(refused.value)
        assert str(folder) not in str(refused.value)
        assert (await ai.files.delete(file.id)).deleted
        if path.is_dir():
            path.rmdir()


@on_one_loop
async def test_of_deletes_at_once_exactly_one_is_told_that_it_did_it(served: Served) -> None:
    async with client(served) as ai:
        file = await ai.files.create(file=("a.txt", b"x"), purpose="user_data")
        done = await asyncio.gather(*(ai.files.delete(file.id) for _ in range(6)), return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == ["FileDeleted", *["NotFoundError"] * 5]


@pytest.mark.parametrize("flipped", [False, True])
async def test_of_a_large_file_that_was_flipped_the_last_bytes_are_not_sent(tmp_path: Path, flipped: bool) -> None:
    size = CHECKED_FIRST_BYTES + PIECE_BYTES
    config = LibraryConfig(max_file_mb=16)
    async with serving_library(tmp_path, limits(body_timeout_s=30.0), config, keys=two_tenants(tmp_path)) as served:
        async with client(served) as ai:
            file = await ai.files.create(file=("a.bin", b"x" * size), purpose="user_data")
        (path,) = (tmp_path / "library" / "files").rglob(file.id)
        if flipped:
            with path.open("r+b") as stored:
                stored.seek(size // 2)
                stored.write(b"y")
        reader, writer = await served.connect()
        writer.write(listing().replace(b"/v1/files ", f"/v1/files/{file.id}/content ".encode()))
        head = await reader.readuntil(b"\r\n\r\n")
        assert f"content-length: {size}\r\n".encode() in head
        if flipped:
            assert len(await reader.read(-1)) == size - PIECE_BYTES
        else:
            assert await reader.readexactly(size) == b"x" * size
