"""Weight: how long a body would take to decode, told from its bytes before anything is made of them.

A decoder of JSON makes an object of every value and holds the loop for as long; in a thread it would hold it too, since
it never lets go of the interpreter. What it costs follows from what the body is made of: ten megabytes of text take
ten milliseconds, ten megabytes of empty lists a second. So what stands outside of texts is counted first: commas,
quotation marks, brackets and colons, each with the price of the value that it stands for.

A long body is counted in a thread, by calls that take a millisecond each. For a body that is no JSON the count holds up to
the first fault, which is as far as a decoder gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from acu.http.errors import HttpError

LIGHT_BYTES = 65_536  # whatever is in so few bytes is decoded in milliseconds
PIECE_BYTES = 131_072
MOST_NS = 40_000_000

_VALUE_NS = 60  # a comma: a number at the least
_TEXT_NS = 60
_CONTAINER_NS = 250
_MEMBER_NS = 400  # a colon: a key that is hashed
_NO_MARK = bytes(set(range(256)) - set(b'",:[{'))


async def check_weight(body: bytes) -> None:
    """Raise HttpError 413 for a body that would take too long to decode."""
    if len(body) > LIGHT_BYTES and await asyncio.to_thread(is_heavy, body):
        raise HttpError(
            413,
            "The body has too many values. Send fewer messages, tools, properties or inputs in a request.",
            code="too_many_values",
        )


def is_heavy(body: bytes) -> bool:
    """Whether decoding `body` would take more than `MOST_NS`. Stops as soon as that is known."""
    spent = 0
    within_text = False
    for piece in _pieces(body):
        # A quotation mark that is escaped ends no text, and one after an escaped backslash is not escaped.
        marks = piece.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, delete=_NO_MARK)
        parts = marks.split(b'"')
        outside = b"".join(parts[within_text::2])
        quotes = len(parts) - 1
        within_text ^= quotes % 2 == 1
        containers = outside.count(b"[") + outside.count(b"{")
        spent += quotes * _TEXT_NS // 2 + outside.count(b",") * _VALUE_NS
        spent += containers * _CONTAINER_NS + outside.count(b":") * _MEMBER_NS
        if spent > MOST_NS:
            return True
    return False


def _pieces(body: bytes) -> Iterator[bytes]:
    """The body in pieces, none of which ends within an escape."""
    start = 0
    while start < len(body):
        piece = body[start : start + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the last backslash escapes what follows
            piece = body[start : start + PIECE_BYTES + 1]
        yield piece
        start += len(piece)
