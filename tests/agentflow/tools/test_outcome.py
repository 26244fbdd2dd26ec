"""What the model reads of a result, and what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentflow.tools.handles import HandleLimits, HandleStore
from agentflow.tools.tool import Attachment, CallContext, Content, ToolOutput
from agentflow.tools.toolbox import Toolbox
from tests.agentflow.tools.doing import Doing, call, files, giving, writing
from tests.agentflow.tools.shelves import found


async def test_a_short_result_is_read_whole(tmp_path: Path) -> None:
    outcome = await call(Toolbox([Doing(giving(ToolOutput("sunny", is_error=True)))], HandleStore(tmp_path)))
    assert (outcome.text, outcome.is_error, outcome.handle, outcome.attempts) == ("sunny", True, None, 1)
    assert 0 <= outcome.seconds < 10
    assert outcome.started_at <= outcome.finished_at


@pytest.mark.parametrize("as_file", [False, True])
async def test_a_long_result_is_read_in_part_and_kept_under_a_handle(tmp_path: Path, as_file: bool) -> None:
    text = "é" * 500_000
    does = writing(text.encode(), size=3) if as_file else giving(ToolOutput(text))
    handles = HandleStore(tmp_path)
    outcome = await call(Toolbox([Doing(does, result_bytes=101)], handles))
    assert outcome.handle is not None
    head, line = outcome.text.split("\n")
    assert head == "é" * 50
    assert (
        line
        == f'[cut here: the whole has 1,000,000 bytes. Its handle is "{outcome.handle}": any tool takes that as an argument.]'
    )
    content = found(handles, "ann", outcome.handle)
    assert (content.size, content.read().decode()) == (1_000_000, text)
    assert files(tmp_path) == [content.path]


async def test_a_short_file_is_read_whole_and_goes(tmp_path: Path) -> None:
    outcome = await call(Toolbox([Doing(writing(b'{"a": 1}', "application/json"))], HandleStore(tmp_path)))
    assert (outcome.text, outcome.handle, files(tmp_path)) == ('{"a": 1}', None, [])


@pytest.mark.parametrize(
    ("data", "media_type", "told"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png", "image/png, 8 bytes"),
        (b"caf\xe9", "text/plain", "application/octet-stream, 4 bytes"),
        (b"\xff" * 100_000, "text/plain", "application/octet-stream, 100,000 bytes"),
        (b"a\0b", "text/plain", "application/octet-stream, 3 bytes"),
    ],
)
async def test_of_what_is_no_text_type_size_and_handle_are_read(
    tmp_path: Path, data: bytes, media_type: str, told: str
) -> None:
    handles = HandleStore(tmp_path)
    outcome = await call(Toolbox([Doing(writing(data, media_type))], handles))
    assert outcome.handle is not None
    assert outcome.text.startswith(f"[{told}, no text. Its handle is")
    assert found(handles, "ann", outcome.handle).read() == data


async def test_what_is_attached_is_told_behind_the_text_and_kept(tmp_path: Path) -> None:
    image, sound = Attachment(b"\x89PNG\0", "image/png"), Attachment(b"\xff" * 1000, "audio/wav")
    handles = HandleStore(tmp_path)
    outcome = await call(Toolbox([Doing(giving(ToolOutput("here", attached=(image, sound))))], handles))
    text, *told = outcome.text.split("\n")
    names = [line.split('"')[1] for line in told]
    assert (text, outcome.is_error, outcome.handle) == ("here", False, names[0])
    for line, name, file in zip(told, names, (image, sound), strict=True):
        about = f"{file.media_type}, {len(file.data):,} bytes, no text."
        assert line == f'[{about} Its handle is "{name}": any tool takes that as an argument.]'
        content = found(handles, "ann", name)
        assert (content.read(), content.media_type) == (file.data, file.media_type)


async def test_an_attached_text_is_read_as_far_as_there_is_room(tmp_path: Path) -> None:
    for text, size, most, told in (
        ("", 3, 10, "xxx"),
        ("here", 3, 10, "here\nxxx"),
        ("here", 9, 10, "here\nxxxxxx\n[cut here: the whole has 9 bytes. "),
        ("here", 3, 4, "here\n[text/csv, 3 bytes. "),
    ):
        output = ToolOutput(text, attached=(Attachment(b"x" * size, "text/csv"),))
        outcome = await call(Toolbox([Doing(giving(output), result_bytes=most)], HandleStore(tmp_path)))
        assert outcome.text.startswith(told)
        assert (outcome.handle is None) == (outcome.text == told)


async def test_an_attached_file_that_is_too_large_does_not_take_the_text_with_it(tmp_path: Path) -> None:
    files_given = (Attachment(b"\0" * 101, "image/png"), Attachment(b"\0" * 100, "image/png"))
    box = Toolbox(
        [Doing(giving(ToolOutput("here", attached=files_given)))],
        HandleStore(tmp_path, HandleLimits(result_max_bytes=100)),
    )
    outcome = await call(box)
    text, large, small = outcome.text.split("\n")
    assert (text, outcome.is_error, len(files(tmp_path))) == ("here", False, 1)
    assert large.startswith("[image/png, 101 bytes. The result has 101 bytes; at most 100 are kept.")
    assert str(outcome.handle) in small


async def test_a_result_over_the_bound_fails_the_call_and_leaves_nothing(tmp_path: Path) -> None:
    for does in (giving(ToolOutput("x" * 20_001)), giving(ToolOutput("é" * 10_001)), writing(b"x" * 20_001)):
        box = Toolbox([Doing(does, idempotent=True)], HandleStore(tmp_path, HandleLimits(result_max_bytes=20_000)))
        outcome = await call(box)
        assert (outcome.is_error, outcome.handle, outcome.attempts, files(tmp_path)) == (True, None, 1, [])
        assert "at most 20,000" in outcome.text


async def test_content_that_the_call_was_given_may_be_its_result(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    handle = await handles.keep("ann", "run-0", b"x" * 9000, "text/plain")

    async def same(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        return ToolOutput(arguments["a"])

    outcome = await call(Toolbox([Doing(same)], handles), json.dumps({"a": handle}))
    assert (outcome.is_error, outcome.handle, len(files(tmp_path))) == (False, handle, 1)


async def test_a_file_that_is_not_the_calls_own_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")

    async def links(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        context.result_path.symlink_to(secret)
        return ToolOutput(Content(context.result_path, 6))

    async def makes_folder(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        context.result_path.mkdir()
        (context.result_path / "x").write_bytes(b"x")
        return ToolOutput(Content(context.result_path, 6))

    async def writes_nothing(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        return ToolOutput(Content(context.result_path, 6))

    for does in (giving(ToolOutput(Content(secret, 6))), links, makes_folder, writes_nothing):
        outcome = await call(Toolbox([Doing(does)], HandleStore(tmp_path / "handles")))
        assert outcome.is_error
        assert "secret" not in outcome.text
        assert files(tmp_path) == [secret]
