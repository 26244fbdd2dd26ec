"""Encodings that are read, and those that are refused."""

from __future__ import annotations

import pytest

from agentflow.library.decoding import decode
from agentflow.library.errors import FileUnreadable, UnsupportedFile

TEXT = "naïve 中文 😀\r\nline"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_utf8_and_what_a_byte_order_mark_names_is_read(encoding: str) -> None:
    assert decode(TEXT.encode(encoding)) == TEXT


def test_utf16_of_both_byte_orders_is_read() -> None:
    assert decode(b"\xfe\xff" + TEXT.encode("utf-16-be")) == TEXT
    assert decode(b"\xff\xfe" + TEXT.encode("utf-16-le")) == TEXT


def test_latin1_is_refused_with_the_byte_and_its_place() -> None:
    with pytest.raises(
        FileUnreadable, match=r"not in UTF-8 \(byte 0xEF at offset 2\): save it as UTF-8.*Latin-1"
    ) as caught:
        decode("naïve".encode("latin-1"))
    assert caught.value.code == "file_unreadable"


@pytest.mark.parametrize("data", ["x".encode("utf-32"), b"\0\0\xfe\xff\0\0\0x"])
def test_utf32_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(FileUnreadable, match="UTF-32"):
        decode(data)


def test_broken_utf16_is_refused_with_its_place() -> None:
    with pytest.raises(FileUnreadable, match=r"begins as UTF-16 and is not \(.* at offset 2\)"):
        decode(b"\xff\xfe\x00\xdc\x00\xdc")


def test_nul_bytes_far_behind_are_found() -> None:
    with pytest.raises(UnsupportedFile, match="NUL byte at offset 10,000"):
        decode(b"x" * 10_000 + b"\0")
    with pytest.raises(UnsupportedFile, match="character 3 is NUL"):
        decode("abc\0".encode("utf-16"))
