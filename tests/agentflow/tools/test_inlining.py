"""Content among arguments that go elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.tools.errors import InvalidArguments, UnknownHandle
from agentflow.tools.inlining import inlined
from agentflow.tools.tool import Content


async def test_content_becomes_its_text_or_base64_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("é")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    text, binary = Content(tmp_path / "text", 2), Content(tmp_path / "binary", 2, "image/png")
    arguments = {"a": text, "b": [1, {"c": binary}], "d": "h"}
    assert await inlined(arguments, 4) == {"a": "é", "b": [1, {"c": "/wA="}], "d": "h"}
    assert arguments["a"] is text
    plain = {"a": [1, {"b": None}]}
    assert await inlined(plain, 0) is plain


async def test_too_much_content_and_content_that_is_gone_are_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArguments, match="stand for 10 bytes; this tool takes at most 9"):
        await inlined({"a": [Content(tmp_path / "x", 5), Content(tmp_path / "x", 5)]}, 9)
    with pytest.raises(UnknownHandle, match="no longer there"):
        await inlined({"a": Content(tmp_path / "x", 5)}, 9)
