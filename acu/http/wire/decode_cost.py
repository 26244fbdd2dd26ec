"""What a body would cost to decode, in time, told from its bytes before anything is made of them.

A decoder of JSON makes an object of every value and holds the loop for as long; in a thread it would hold it too, since
it never lets go of the interpreter. What it costs follows from what the body is made of: ten megabytes of text take
some ten milliseconds, ten megabytes of empty lists a second. So what stands outside of texts is counted first: commas,
quotation marks, brackets and colons, each with the price of the value that it stands for; and long numbers, which take
the square of their length. The length of texts has no price: how long a body may be is the operator's to say
(network.max_body_mb).

A long body is counted in a thread, by calls that take a millisecond each. For a body that is no JSON the count holds up to
the first fault, which is as far as a decoder gets.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

from acu.http.errors import HttpError

CHEAP_BYTES = 65_536  # whatever is in so few bytes is decoded in milliseconds
PIECE_BYTES = 131_072
MOST_NS = 40_000_000

_VALUE_NS = 60  # a comma: a number at the least
_TEXT_NS = 60
_CONTAINER_NS = 250
_MEMBER_NS = 400  # a colon: a key that is hashed
_LONG_DIGITS = 20  # a number of as many digits does not fit into 64 bits
_MOST_DIGITS = 4300  # of more, no decoder makes a number
_NO_MARK = bytes(set(range(256)) - set(b'",:[{0123456789'))
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = re.compile(b"0" * _LONG_DIGITS + b"0*+")


async def check_cost(body: bytes) -> None:
    """Raise HttpError 413 for a body that would take too long to decode."""
    if len(body) > CHEAP_BYTES and await asyncio.to_thread(is_costly, body):
        raise HttpError(
            413,
            "The body has too many values. Send fewer messages, tools, properties or inputs in a request.",
            code="too_many_values",
        )


def is_costly(body: bytes) -> bool:
    """Whether decoding `body` would take more than `MOST_NS`. Stops as soon as that is known."""
    spent = 0
    within_text = False
    number = b""  # the digits that the piece before ended with
    for piece in _pieces(body):
        # A quotation mark that is escaped ends no text, and one after an escaped backslash is not escaped.
        marks = piece.replace(rb"\\", b"").replace(rb"\"", b"").translate(_ALIKE, delete=_NO_MARK)
        parts = marks.split(b'"')
        outside = number + b"".join(parts[within_text::2])
        quotes = len(parts) - 1
        within_text ^= quotes % 2 == 1
        containers = outside.count(b"[") + outside.count(b"{")
        spent += quotes * _TEXT_NS // 2 + outside.count(b",") * _VALUE_NS
        spent += containers * _CONTAINER_NS + outside.count(b":") * _MEMBER_NS
        whole = outside if within_text else outside.rstrip(b"0")
        number = outside[len(whole) :][:_MOST_DIGITS]
        spent += sum(map(_long_number_ns, _LONG_NUMBER.findall(whole)))
        if spent > MOST_NS:
            return True
    return spent + _long_number_ns(number) > MOST_NS


def _long_number_ns(digits: bytes) -> int:
    """What a number takes beyond the price of its comma. Nothing, unless it is long."""
    length = min(len(digits), _MOST_DIGITS)
    return 150 + 4 * length + length**2 // 100 if length >= _LONG_DIGITS else 0


def _pieces(body: bytes) -> Iterator[bytes]:
    """The body in pieces, none of which ends within an escape."""
    start = 0
    while start < len(body):
        piece = body[start : start + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the last backslash escapes what follows
            piece = body[start : start + PIECE_BYTES + 1]
        yield piece
        start += len(piece)
