"""Frames between the daemon and a worker."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from agentflow.tools import wire
from agentflow.tools.blob import Blob
from agentflow.tools.tool import CallContext, Content, ToolSpec
from agentflow.tools.wire import Answered, Call, Described, Failed, Ready, Start, WireError

CONTEXT = CallContext(tenant="ann", run_id="r", call_id="c", key="r/c", deadline_at=1.5, result_path=Path("/p/\udcff"))


def test_each_message_comes_back_as_it_was() -> None:
    for sent in (
        Start("m", ("/a",), 2, 3),
        wire.call("n", {"a": [1, 2.5, None, "é", {"b": True}]}, CONTEXT),
    ):
        frame = wire.encode(sent)
        assert wire.length(frame[:4]) == len(frame) - 4
        assert wire.request(frame[4:]) == sent
    for said in (
        Ready((Described(ToolSpec(name="n", aliases=("a",)), True),)),
        Answered("text"),
        Answered(None, "text/csv", 7),
        Failed("no", again=True, invalid=True, spent=True),
    ):
        assert wire.reply(wire.encode(said)[4:]) == said


def test_content_becomes_a_blob_wherever_it_stands() -> None:
    content = Content(Path("/kept/\udcff"), 5, "text/csv")
    frame = wire.encode(wire.call("n", {"a": content, "b": [{"c": content}], "d": 1}, CONTEXT))
    call = wire.request(frame[4:])
    assert isinstance(call, Call)
    here = wire.blobs({"a": content, "b": [{"c": content}], "d": 1})
    for arguments in (call.arguments, here):
        for blob in (arguments["a"], arguments["b"][0]["c"]):
            assert isinstance(blob, Blob)
            assert (blob.path, blob.media_type) == (content.path, "text/csv")
        assert arguments["d"] == 1


@pytest.mark.parametrize("value", [2**70, "x" * (wire.FRAME_MAX + 1), "\ud800", object()])
def test_what_cannot_be_sent_is_refused(value: Any) -> None:
    with pytest.raises(WireError):
        wire.encode(wire.call("n", {"a": value}, CONTEXT))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa4Call", wire.encode(Failed("x"))[4:-1], b"\xdd" * 9]
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        wire.reply(data)


def test_a_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    assert wire.length(struct.pack(">I", wire.FRAME_MAX)) == wire.FRAME_MAX
    with pytest.raises(WireError, match="4,194,305 bytes"):
        wire.length(struct.pack(">I", wire.FRAME_MAX + 1))


def test_a_foreign_extension_is_refused() -> None:
    import msgspec

    data = msgspec.msgpack.encode(
        {"type": "Call", "name": "n", "arguments": {"a": msgspec.msgpack.Ext(9, b"")}, "result_path": b""}
    )
    with pytest.raises(WireError, match="extension of type 9"):
        wire.request(data)
