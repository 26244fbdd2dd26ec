"""Pace: the first words and whatever may end a call go through at once, the rest in pieces; nothing is lost or held for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from agentflow.agents.pace import paced
from agentflow.engine.protocol import Delta
from agentflow.errors import EngineDied
from agentflow.events import TextDelta
from tests.agentflow.agents.agencies import benched, text_of

LONG_S = 3600.0
"""An interval that no test outlasts: what comes within it did not wait for it."""


class Model:
    """Says what it is told to, when it is told to; text None is its end."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[Delta | BaseException] = asyncio.Queue()
        self.closed = False
        self.may_close = asyncio.Event()
        self.may_close.set()
        self._count = 0

    async def say(self, *texts: str, finish: str | None = None) -> None:
        """A token each, of which the last has `finish`; returns once they were taken."""
        for place, text in enumerate(texts, 1):
            self._count += 1
            self._told.put_nowait(Delta(text, [self._count], finish if place == len(texts) else None, cached_tokens=7))
        await self.taken()

    async def fail(self, error: BaseException) -> None:
        """Raise it."""
        self._told.put_nowait(error)
        await self.taken()

    async def taken(self) -> None:
        """Wait until the reader has had everything."""
        while not self._told.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        try:
            while True:
                told = await self._told.get()
                if isinstance(told, BaseException):
                    raise told
                yield told
        finally:
            await self.may_close.wait()
            await asyncio.sleep(0)
            self.closed = True


async def waiting(pieces: AsyncGenerator[Delta, None]) -> asyncio.Future[Delta]:
    """Somebody who waits for the next piece."""
    reader = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    return reader


@asynccontextmanager
async def begun(model: Model, interval_s: float = LONG_S) -> AsyncIterator[AsyncGenerator[Delta, None]]:
    """The pieces behind the first words."""
    async with aclosing(paced(model.deltas(), interval_s)) as pieces:
        first = await waiting(pieces)
        await model.say("I")
        assert (await first).text == "I", "the first words go through at once"
        yield pieces


@pytest.mark.parametrize("end", ["}", ' "x"}}\n', "]", "f(x)", "</tool_call>", "<|eom_id|>"])
async def test_what_may_end_a_call_goes_through_at_once_with_what_was_held(end: str) -> None:
    model = Model()
    async with begun(model) as pieces:
        second = await waiting(pieces)
        await model.say("b", "c")
        assert not second.done()
        await model.say(end)
        piece = await second
    assert (piece.text, list(piece.token_ids), piece.cached_tokens) == (f"bc{end}", [2, 3, 4], 7)


async def test_the_end_goes_through_at_once_with_what_was_held() -> None:
    model = Model()
    async with begun(model) as pieces:
        second = await waiting(pieces)
        await model.say("b", "", finish="length")
        piece = await second
        assert (piece.text, list(piece.token_ids), piece.finish_reason) == ("b", [2, 3], "length")
        assert [each async for each in pieces] == []
    assert model.closed


async def test_what_was_held_goes_on_by_itself_once_the_interval_is_over() -> None:
    model = Model()
    async with begun(model, 0.005) as pieces:
        await model.say("b")  # and then nothing
        assert (await asyncio.wait_for(anext(pieces), 30)).text == "b"


async def test_a_piece_that_went_at_once_leaves_no_timer_behind() -> None:
    model = Model()
    async with begun(model, 0.02) as pieces:
        second = await waiting(pieces)
        await model.say("b")
        await model.say("}")
        assert (await second).text == "b}"
        third = await waiting(pieces)
        await asyncio.sleep(0.05)  # past the moment for which the timer was set
        await model.say("c")
        assert (await third).text == "c"


async def test_what_a_slow_reader_left_is_one_piece() -> None:
    model = Model()
    async with begun(model, 0.0) as pieces:
        await model.say("b", "c", "d")
        assert (await anext(pieces)).text == "bcd"


async def test_the_end_does_not_wait_until_the_engine_has_closed() -> None:
    model = Model()
    model.may_close.clear()
    async with begun(model) as pieces:
        last = await waiting(pieces)
        await model.say("b", finish="stop")
        assert ((await last).finish_reason, model.closed) == ("stop", False)
        model.may_close.set()
    assert model.closed


async def test_who_is_cancelled_twice_still_waits_until_the_engine_has_closed() -> None:
    model = Model()
    model.may_close.clear()

    async def read() -> None:
        async with aclosing(paced(model.deltas(), LONG_S)) as pieces:
            async for _ in pieces:
                pass

    reading = asyncio.ensure_future(read())
    for _ in range(2):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reading.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reading.done()
    model.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert model.closed


async def test_a_cancellation_of_the_engines_own_is_no_end() -> None:
    model = Model()
    async with begun(model) as pieces:
        second = await waiting(pieces)
        await model.fail(asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await second


async def test_an_error_comes_after_what_was_said_before_it() -> None:
    model = Model()
    async with begun(model) as pieces:
        await model.say("b")
        await model.fail(EngineDied("it died"))
        assert (await anext(pieces)).text == "b"
        with pytest.raises(EngineDied, match="it died"):
            await anext(pieces)


async def test_an_engine_that_ends_without_a_reason_ends_the_pieces() -> None:
    async def silent() -> AsyncGenerator[Delta, None]:
        yield Delta("I", [1])

    assert [each.text async for each in paced(silent(), LONG_S)] == ["I"]


@pytest.mark.parametrize("failing", [False, True])
async def test_who_leaves_closes_the_engines_side(failing: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    async with begun(model):
        if failing:
            await model.fail(EngineDied("nobody asks"))
    assert model.closed
    assert caplog.records == []


async def test_a_fast_model_s_answer_is_far_fewer_pieces_than_tokens(tmp_path: Path) -> None:
    said = "word " * 60
    async with benched(tmp_path, {"go": said}, [], tokens_per_s=1000.0) as it:
        events = await it.ask("go")
        pieces = [event for event in events if isinstance(event, TextDelta)]
        assert text_of(events) == said
        assert it.ended[0].completion_tokens >= len(said)
        assert 1 < len(pieces) < len(said) / 2
