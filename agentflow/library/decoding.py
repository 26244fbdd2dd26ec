"""Bytes to text. UTF-8, or what a byte order mark names; anything else is refused, never guessed.

A guess would store mojibake that no search finds, and nobody would be told.
"""

from __future__ import annotations

import codecs
from mmap import mmap

from agentflow.library.errors import FileUnreadable, UnsupportedFile


def decode(data: bytes | mmap) -> str:
    """The text of a whole file, without its byte order mark; line ends are as they were.

    Raises FileUnreadable, with the place, for what is not in its encoding; UnsupportedFile where NUL characters show that
    it is no text.
    """
    start = data[:4]
    if start in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        raise FileUnreadable("it is in UTF-32, which is not read: save it as UTF-8")
    wide = start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if not wide and (place := data.find(b"\0")) >= 0:
        raise UnsupportedFile(f"it has a NUL byte at offset {place:,}, which no text has: upload the text itself")
    try:
        text = str(data, "utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileUnreadable(_not_in_its_encoding(error, wide)) from error
    if wide and (place := text.find("\0")) >= 0:
        raise UnsupportedFile(f"its character {place:,} is NUL, which no text has: upload the text itself")
    return text


def _not_in_its_encoding(error: UnicodeDecodeError, wide: bool) -> str:
    if wide:
        return f"it begins as UTF-16 and is not ({error.reason} at offset {error.start:,}): save it as UTF-8"
    return (
        f"it is not in UTF-8 (byte 0x{error.object[error.start]:02X} at offset {error.start:,}): save it as UTF-8; "
        "files of older programs are often in Windows-1252, Latin-1 or GBK"
    )
