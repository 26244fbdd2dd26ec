"""What the load generator counts must not depend on how the network cuts the stream."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.loadgen import Result, Stream

ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}\n\n'
    b'data: {"choices":[{"delta":{"content":"Par"}}],"usage":null}\n\n'
    b'data: {"choices":[{"delta":{"content":"is"}}],"usage":null}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
    b"data: [DONE]\n\n"
)


class Wire(asyncio.Transport):
    """Takes the request and throws it away."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...


async def read(*parts: bytes) -> Result:
    """The result of one answer that comes in `parts`. Raises what the stream fails with."""
    result = Result()
    stream = Stream(result)
    stream.connection_made(Wire())
    done = stream.ask(b"POST")
    for part in parts:
        stream.data_received(part)
    await asyncio.wait_for(done, 1)
    return result


async def test_the_counts_are_the_same_wherever_the_stream_is_cut() -> None:
    for cut in range(1, len(ANSWER)):
        result = await read(ANSWER[:cut], ANSWER[cut:])
        assert (result.chunks, result.content_chunks, result.tokens) == (4, 2, 7), f"cut at byte {cut}"
        assert len(result.ttft) == 1
        assert len(result.itl) <= 1


async def test_byte_by_byte_there_is_a_gap_between_the_contents() -> None:
    result = await read(*(bytes([byte]) for byte in ANSWER))
    assert (result.chunks, result.content_chunks, result.tokens) == (4, 2, 7)
    assert len(result.itl) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
        b'HTTP/1.1 200 OK\r\n\r\ndata: {"error":{"message":"gone"}}\n\n',
    ],
)
async def test_a_refusal_or_an_error_in_the_stream_is_an_error(answer: bytes) -> None:
    with pytest.raises(RuntimeError):
        await read(answer)


async def test_a_connection_that_closes_in_mid_stream_is_an_error() -> None:
    stream = Stream(Result())
    stream.connection_made(Wire())
    done = stream.ask(b"POST")
    stream.data_received(ANSWER[:200])
    stream.connection_lost(None)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(done, 1)
