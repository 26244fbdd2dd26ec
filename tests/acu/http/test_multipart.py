"""Forms: read the same however they are cut, bounded in everything, and nothing is left of those that fail."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from hypothesis import given, settings
from hypothesis import strategies as st

from acu.http.disk import on_disk
from acu.http.errors import HttpError
from acu.http.multipart import (
    HEAD_BYTES,
    LEAST_SENT,
    TEXT_BYTES,
    Form,
    Inflow,
    Parts,
    TemporaryFile,
    Upload,
)

BOUNDARY = "boundary"
CONTENT = b"\r\n--boundar\r\nline\r\n\r\n--\r\n\0\xff"


def part(value: str, content: bytes, more: bytes = b"") -> bytes:
    head = f"Content-Disposition: form-data; {value}\r\n".encode("utf-8", "surrogateescape")
    return b"--boundary\r\n" + head + more + b"\r\n" + content + b"\r\n"


FORM = part('name="purpose"', b"user_data") + part('name="file"; filename="a.bin"', CONTENT) + b"--boundary--\r\n"


async def receive(
    folder: Path,
    *pieces: bytes,
    limit: int = 1 << 20,
    patience_s: float = 5.0,
    broken: bool = False,
    pause_s: float = 0,
) -> Upload:
    """Read a form that comes in pieces. What it wrote is left."""
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    content = StreamReader(protocol, 2**30, loop=loop)

    async def feed() -> None:
        for piece in pieces:
            content.feed_data(piece)
            await asyncio.sleep(pause_s)
        if broken:
            content.set_exception(web.RequestPayloadError("it ends too soon"))
        else:
            content.feed_eof()

    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    inflow = Inflow(content, limit + 65_536, patience_s)
    parts = Parts(headers, inflow, max_field_size=HEAD_BYTES, max_headers=16)  # type: ignore[arg-type]
    file = TemporaryFile(folder / os.urandom(8).hex())
    await on_disk(file.create)
    feeding = asyncio.create_task(feed())
    try:
        return await Form(parts, file, limit, lambda name, text: None).read()
    finally:
        await on_disk(file.close)
        if not feeding.cancel():
            feeding.result()


async def refused(folder: Path, *pieces: bytes, **options: float) -> HttpError:
    with pytest.raises(HttpError) as caught:
        await receive(folder, *pieces, **options)  # type: ignore[arg-type]
    return caught.value


async def test_a_form_is_read_alike_wherever_it_is_cut(tmp_path: Path) -> None:
    for cut in range(len(FORM) + 1):
        upload = await receive(tmp_path, FORM[:cut], FORM[cut:])
        assert (upload.filename, upload.fields) == ("a.bin", {"purpose": "user_data"})
        assert upload.path.read_bytes() == CONTENT, cut
        assert upload.size == len(CONTENT)


async def test_a_form_is_read_byte_by_byte(tmp_path: Path) -> None:
    upload = await receive(tmp_path, *(FORM[i : i + 1] for i in range(len(FORM))))
    assert upload.path.read_bytes() == CONTENT


async def test_a_file_of_many_pieces_is_kept_whole(tmp_path: Path) -> None:
    content = os.urandom(3_000_001)
    form = part('name="file"; filename="a.bin"', content) + part('name="purpose"', b"batch") + b"--boundary--\r\n"
    pieces = [form[i : i + 65_000] for i in range(0, len(form), 65_000)]
    upload = await receive(tmp_path, *pieces, limit=len(content))
    assert upload.path.read_bytes() == content
    assert upload.path.stat().st_mode & 0o777 == 0o600
    assert upload.fields == {"purpose": "batch"}


async def test_every_truncated_form_is_refused(tmp_path: Path) -> None:
    for end in range(len(FORM) - len(b"--\r\n")):
        error = await refused(tmp_path, FORM[:end])
        assert error.status == 400, end
        assert error.code in ("invalid_form", "invalid_value"), end  # the second where the head of a part is cut


async def test_a_body_that_breaks_off_is_refused(tmp_path: Path) -> None:
    error = await refused(tmp_path, FORM[:120], broken=True)
    assert (error.status, error.code) == (400, "invalid_body")


@pytest.mark.parametrize(
    ("form", "status", "code", "param"),
    [
        (b"", 400, "invalid_form", None),
        (b"--boundary--\r\n", 400, "missing_required_parameter", "file"),
        (b"--another\r\n\r\n--another--\r\n", 400, "invalid_form", None),
        (b"x" * 100_000, 400, "invalid_form", None),
        (b"x\r\n" * 60_000, 400, "invalid_form", None),
        (part('name="a"', b"1") + part('name="a"', b"2") + b"--boundary--", 400, "invalid_value", "a"),
        (part('name="file"; filename="a"', b"1") * 2 + b"--boundary--", 400, "invalid_value", "file"),
        (part('name="file"', b"1") + b"--boundary--", 400, "invalid_value", "file"),
        (part('name="a"; filename="b"', b"1") + b"--boundary--", 400, "invalid_value", "a"),
        (part('name="a"', b"\xff") + b"--boundary--", 400, "invalid_value", "a"),
        (part('name="a"', b"x" * (TEXT_BYTES + 1)) + b"--boundary--", 400, "invalid_value", "a"),
        (part('name="a"', b"x" * 300_000) + b"--boundary--", 400, "invalid_value", "a"),
        (part('name="_charset_"', b"x" * 40) + part('name="_charset_"', b"x"), 400, "invalid_value", "_charset_"),
        (part("nobody", b"1") + b"--boundary--", 400, "invalid_form", None),
        (part('name="a', b"1") + b"--boundary--", 400, "invalid_form", None),
        (b"--boundary\r\n\r\n1\r\n--boundary--", 400, "invalid_form", None),
        (b"--boundary\r\nno header\r\n\r\n1\r\n--boundary--", 400, "invalid_form", None),
        (part(f'name="{"n" * 5000}"', b"1") + b"--boundary--", 400, "invalid_form", None),
        (part('name="file"; filename="a"', b"1", b"X: y\r\n" * 100), 400, "invalid_form", None),
        (
            part('name="file"; filename="a"', b"MQ==", b"Content-Transfer-Encoding: base64\r\n"),
            400,
            "invalid_form",
            None,
        ),
        (part('name="file"; filename="a"', b"1", b"Content-Encoding: gzip\r\n"), 400, "invalid_form", None),
        (part('name="file"; filename="a"', b"1", b"Content-Type: multipart/mixed\r\n"), 400, "invalid_form", None),
        (
            part('name="file"; filename="a"', b"1", b"Content-Type: multipart/mixed; boundary=b\r\n"),
            400,
            "invalid_form",
            None,
        ),
        (part('name="file"; filename="a"', b"1") + b"--boundaryless\r\n", 400, "invalid_form", None),
    ],
    ids=range(24),
)
async def test_a_form_that_is_wrong_gets_its_status_and_code(
    tmp_path: Path, form: bytes, status: int, code: str, param: str | None
) -> None:
    pieces = [form[i : i + 60_000] for i in range(0, len(form), 60_000)]
    error = await refused(tmp_path, *pieces)
    assert (error.status, error.code, error.param) == (status, code, param)


async def test_a_file_over_the_limit_is_refused_while_it_comes(tmp_path: Path) -> None:
    form = part('name="file"; filename="a"', b"x" * 1001) + b"--boundary--"
    assert (await refused(tmp_path, form, limit=1000)).status == 413
    assert (await receive(tmp_path, form, limit=1001)).size == 1001


async def test_a_client_that_trickles_is_given_up(tmp_path: Path) -> None:
    trickle = [part('name="file"; filename="a"', b"x" * 100), *[b"x"] * 60]
    error = await refused(tmp_path, *trickle, patience_s=0.2, pause_s=0.02)
    assert (error.status, error.code, error.close) == (408, "body_timeout", True)


async def test_a_client_that_sends_enough_may_take_longer_than_the_patience(tmp_path: Path) -> None:
    pieces = [part('name="file"; filename="a"', b"")[:-2], *[b"x" * LEAST_SENT] * 12, b"\r\n--boundary--\r\n"]
    upload = await receive(tmp_path, *pieces, patience_s=0.25, pause_s=0.04)
    assert upload.size == 12 * LEAST_SENT


PIECES = st.sampled_from(
    [b"--boundary", b"--", b"\r\n", b"\n", b": ", b"Content-Disposition: form-data; name=", b'"file"', b"; filename=a"]
) | st.binary(max_size=20)


@given(st.lists(PIECES, max_size=30))
@settings(deadline=None, max_examples=150)
def test_noise_is_a_form_or_is_refused(pieces: list[bytes]) -> None:
    async def read(folder: Path) -> None:
        try:
            upload = await receive(folder, *pieces)
        except HttpError as error:
            assert error.status in (400, 413)
        else:
            assert os.listdir(folder) == [upload.path.name]  # noqa: PTH208 - Path would wait for the disk on the loop

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(read(Path(folder)))
