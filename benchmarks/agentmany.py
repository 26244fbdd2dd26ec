"""Many runs at once, then as many of which half are cancelled: nothing is lost or held, and the engine hears of it at once.

Each run has a script of its own, with calls of random length (seeded) in worker processes, and is streamed twice over HTTP: as a
response, and as the run's own events, which are compared with what was stored once it is over.

    many_lost_events      events that are missing, twice or out of order in a stream, beside what was stored; and words of the
                          script that no event has
    many_slots_held       looks (agentwatch.py) at which a seat, or a sequence of the engine's, belonged to no run that spoke
    many_left             what is left some moments after the last run: runs, seats, sequences and blocks of the engine's, calls
                          at work, tasks of the loop
    cancel_abort_*_ms     from the moment at which a cancellation is about to be sent to that at which the abort has left for the
                          engine (tapped.py), of the runs that spoke
    cancel_late_steps     the most steps in a row in which the engine still had what was over before they began (agentwatch.py)
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
import psutil

from benchmarks.agentbench import AgentBench, AgentHost
from benchmarks.agentscript import CLOSING, Tap, call
from benchmarks.agenttools import passage
from benchmarks.agentwatch import LOOK_S, Look, Sums, Watched
from benchmarks.report import NotMeasured, percentile
from benchmarks.serving import ENGINE_ARGS, MODEL

SEED: Final = 4
LONGEST_S: Final = 1.5
SETTLED_S: Final = 10.0
CONNECTIONS: Final = 4  # that cancellations find open
BLOCK: Final = int(ENGINE_ARGS["block_size"])
PAGE: Final = 1000


def scripts(runs: int, place: Path, chance: random.Random, longest_s: float) -> tuple[tuple[str, ...], ...]:
    """What each run says: three answers with calls of at most so many seconds, and a closing sentence.

    The first answers are equally long, and their calls take long: at some moment all runs are with their tools.
    """

    def rest(low: float, high: float) -> str:
        return call("rest", seconds=round(longest_s * chance.uniform(low, high), 3), place=str(place))

    def script(number: int) -> tuple[str, ...]:
        first = f"{passage(30, number)}\n{rest(0.7, 1.0)}"
        second = (
            f"{passage(chance.randint(10, 60), number + 1)}\n{rest(0.0, 0.4)}\n{passage(10, number)}\n{rest(0.0, 0.4)}"
        )
        third = f"{passage(chance.randint(10, 60), number + 2)}\n{rest(0.0, 0.7)}\n{passage(10, number)}"
        return first, second, third, f"{CLOSING} ({number})"

    return tuple(script(number) for number in range(runs))


class Span(NamedTuple):
    """How long runs take: the seconds of all of them, and the fewest events that a response had."""

    seconds: float
    events: int


@dataclass(slots=True)
class Streamed:
    """A run as its client saw it: the events of the response and of the run, in the order in which they came.

    `enough` is set when the response has had `wanted` events, or is over.
    """

    wanted: int = 1
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    id: str = ""
    response: list[dict[str, Any]] = field(default_factory=list)
    run: list[dict[str, Any]] = field(default_factory=list)
    cancelled_at: float | None = None


class Many:
    """Waves of so many runs at one host, whose tools take at most so many seconds."""

    def __init__(self, bench: AgentBench, host: AgentHost, runs: int, longest_s: float) -> None:
        self._bench = bench
        self._host = host
        self._runs = runs
        self._longest_s = longest_s
        self._chance = random.Random(SEED)
        self._place = host.folder / "resting"
        self._place.mkdir(exist_ok=True)
        self._lost = self._held = self._left = self._quiet = self._late = 0
        self._sums = Sums()
        self._spoke_ms: list[float] = []
        self._cancelled = 0

    async def measure(self) -> None:
        """One wave to the end, then one a round of which half are cancelled. Raises NotMeasured."""
        bench = self._bench
        span = await self._wave(None)
        bench.say(f"many: {self._runs} runs in {span.seconds:.1f} s")
        for number in range(bench.rounds):
            await self._wave(span)
            bench.say(f"many: round {number + 1}/{bench.rounds} of {self._runs} runs, half of them cancelled")
        if not self._quiet:
            raise NotMeasured("at no moment all of the runs were with their tools")
        if not self._spoke_ms:
            raise NotMeasured("none of the runs that were cancelled spoke")
        bench.add(
            many_lost_events=self._lost,
            many_slots_held=self._held,
            many_left=self._left,
            cancel_abort_p99_ms=percentile(self._spoke_ms, 0.99),
            cancel_abort_max_ms=max(self._spoke_ms),
            cancel_late_steps=self._late,
        )
        bench.notes.update(self._notes())

    def _notes(self) -> dict[str, str]:
        seen = self._sums
        average_ms, most_ms, busiest_ms = (
            1e3 * each for each in (seen.late_s / max(1, seen.looks), seen.latest_s, seen.busiest_s)
        )
        return {
            "cancelled": f"{self._cancelled} runs, {len(self._spoke_ms)} of them while they spoke; the median abort left after "
            f"{percentile(self._spoke_ms, 0.5):.1f} ms",
            "slots": f"at {self._quiet} looks all runs were with their tools",
            "ACU's loop": f"turns took {average_ms:.1f} ms on average besides {1e3 * LOOK_S:g}, and {most_ms:.0f} ms at most; "
            f"it computed {busiest_ms:.0f} ms at most in one",
        }

    async def _wave(self, span: Span | None) -> Span:
        """All runs at once, and how long they took; with `span` every second one is cancelled at some moment of it."""
        watched, before = self._host.folder / "watched", time.monotonic()
        watched.touch()
        try:
            idle = await self._looked(lambda look: look.at > before)
            said = scripts(self._runs, self._place, self._chance, self._longest_s)
            self._host.force(CLOSING, scripts=said)
            began = time.monotonic()
            seen = await self._streamed(span)
            after = time.monotonic()
            over = await self._looked(lambda look: look.at > after and not _surplus(look, idle.last), SETTLED_S)
            async with self._session() as session:
                self._lost += await self._lost_of(session, seen, said, whole=span is None)
                self._left += self._note(
                    _surplus(over.last, idle.last) | await self._in_engine(session) | self._at_work()
                )
            self._sum_up(seen, self._host.new_taps())
            self._held += over.sums.held - idle.sums.held
            self._quiet += over.sums.quiet - idle.sums.quiet
            self._late = max(self._late, over.sums.late_steps)
            self._sums = over.sums
            return Span(after - began, min(len(each.response) for each in seen))
        finally:
            watched.unlink()

    def _session(self) -> aiohttp.ClientSession:
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=300)
        return aiohttp.ClientSession(f"http://127.0.0.1:{self._host.port}", connector=connector, timeout=timeout)

    # What clients do

    async def _streamed(self, span: Span | None) -> list[Streamed]:
        async with self._session() as session, self._session() as control, asyncio.TaskGroup() as tasks:
            await asyncio.gather(*(_warmed(control) for _ in range(CONNECTIONS)))
            seen = [Streamed() for _ in range(self._runs)]
            for number, each in enumerate(seen):
                begun = asyncio.Event()
                tasks.create_task(self._respond(session, number, each, begun))
                tasks.create_task(self._follow(session, each, begun))
                if span is not None and number % 2:
                    # Half of them by the clock, half by what was said: most of a run's time is its tools'.
                    by_clock = number % 4 == 1
                    each.wanted = 1 if by_clock else self._chance.randint(2, max(2, span.events - 2))
                    after_s = self._chance.uniform(0.0, 0.8 * span.seconds) if by_clock else 0.0
                    tasks.create_task(self._cancel(control, each, after_s))
        return seen

    async def _respond(self, session: aiohttp.ClientSession, number: int, seen: Streamed, begun: asyncio.Event) -> None:
        body = {"model": "agent/rest", "input": f"What do the services say? ({number})", "stream": True}
        async with session.post("/v1/responses", json=body) as answer:
            async for event in _events(answer):
                seen.response.append(event)
                if not begun.is_set():
                    seen.id = event["response"]["id"].replace("resp_", "run_")
                    begun.set()
                if len(seen.response) >= seen.wanted:
                    seen.enough.set()
        seen.enough.set()

    async def _follow(self, session: aiohttp.ClientSession, seen: Streamed, begun: asyncio.Event) -> None:
        await begun.wait()
        async with session.get(f"/acu/v1/runs/{seen.id}/events?stream=true") as answer:
            seen.run = [event async for event in _events(answer)]

    async def _cancel(self, session: aiohttp.ClientSession, seen: Streamed, after_s: float) -> None:
        await seen.enough.wait()
        await asyncio.sleep(after_s)
        sent = time.monotonic()
        async with session.post(f"/acu/v1/runs/{seen.id}/cancel") as answer:
            if answer.status == 200:  # else it was over
                seen.cancelled_at = sent

    # What became of it

    async def _lost_of(
        self, session: aiohttp.ClientSession, seen: Sequence[Streamed], said: Sequence[Sequence[str]], *, whole: bool
    ) -> int:
        lost, told = 0, Counter[tuple[str, ...]]()
        for each in seen:
            log, again = await self._stored(session, each.id), await self._replayed(session, each.id)
            lost += _differences(each.run, log) + _differences(each.response, again)
            lost += [event["sequence_number"] for event in log] != list(range(1, len(log) + 1))
            lost += [event["sequence_number"] for event in again] != list(range(len(again)))
            words, end = _said(log), log[-1]
            told[words] += 1
            expected = "completed" if each.cancelled_at is None else "cancelled"
            lost += (end["type"], end.get("end")) != ("ended", expected)
            lost += not any(_begins(script, words, whole=expected == "completed") for script in said)
        if whole:  # each script was said once
            lost += sum((Counter(map(tuple, said)) - told).values())
        return lost

    async def _stored(self, session: aiohttp.ClientSession, run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            async with session.get(f"/acu/v1/runs/{run_id}/events?limit={PAGE}&after={len(found)}") as answer:
                page = await answer.json()
            found += page["data"]
            if not page["has_more"]:
                return found

    async def _replayed(self, session: aiohttp.ClientSession, run_id: str) -> list[dict[str, Any]]:
        async with session.get(f"/v1/responses/{run_id.replace('run_', 'resp_')}?stream=true") as answer:
            return [event async for event in _events(answer)]

    def _sum_up(self, seen: Sequence[Streamed], taps: Sequence[Tap]) -> None:
        cut = {tap.id.rpartition("-")[0]: tap.cut for tap in taps if tap.cut is not None}
        for each in seen:
            self._cancelled += each.cancelled_at is not None
            if each.cancelled_at is not None and (left := cut.get(each.id)) is not None:
                self._spoke_ms.append(1e3 * (left - each.cancelled_at))

    # What is left

    async def _in_engine(self, session: aiohttp.ClientSession) -> dict[str, int]:
        """What the engine has besides one sequence, of which it is asked here: it tells nothing while it does nothing."""
        self._host.force(passage(300, 1))
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}], "seed": 0}
        async with session.post("/v1/chat/completions", json=body) as answer:
            usage = (await answer.json())["usage"]
        after = time.monotonic()
        seen = (await self._looked(lambda look: look.at > after)).sums
        if not seen.alone:
            raise NotMeasured(f"the engine said nothing of itself while it was asked for {usage}")
        blocks = seen.alone_kv_tokens // BLOCK - (usage["total_tokens"] // BLOCK + 2)
        return {"sequences in the engine": max(0, seen.alone_sequences - 1), "blocks in the engine": max(0, blocks)}

    def _at_work(self) -> dict[str, int]:
        """Calls whose processes live still."""
        marks = list(self._place.iterdir())
        at_work = sum(psutil.pid_exists(int(mark.name)) for mark in marks)
        for mark in marks:
            mark.unlink()
        return {"calls at work": at_work}

    def _note(self, left: dict[str, int]) -> int:
        if found := {what: count for what, count in left.items() if count}:
            self._bench.notes["left"] = ", ".join(f"{count} {what}" for what, count in found.items())
        return sum(left.values())

    async def _looked(self, fits: Any, within_s: float = 60.0) -> Watched:
        """What was seen up to the first look that fits, or the last `within_s`. Raises NotMeasured if there is none at all."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                watched = self._watched()
            except FileNotFoundError:
                watched = None
            if watched is not None and (fits(watched.last) or time.monotonic() > deadline):
                return watched
            if time.monotonic() > deadline:
                raise NotMeasured("ACU is not watched")
            await asyncio.sleep(0.05)

    def _watched(self) -> Watched:
        return msgspec.json.decode((self._host.folder / "watch.json").read_bytes(), type=Watched)


async def measure(bench: AgentBench, host: AgentHost, runs: int, longest_s: float = LONGEST_S) -> None:
    """Everything of this part, with so many runs at once. Raises NotMeasured."""
    await Many(bench, host, runs, longest_s).measure()


async def _warmed(session: aiohttp.ClientSession) -> None:
    """One more connection that is open: what is measured is no handshake."""
    async with session.get("/readyz") as answer:
        await answer.read()


async def _events(answer: aiohttp.ClientResponse) -> Any:
    """The JSON objects of a stream. Raises NotMeasured for an answer that is none."""
    if answer.status != 200:
        raise NotMeasured(f"{answer.url} answered {answer.status}: {(await answer.text())[:500]}")
    async for line in answer.content:
        if line.startswith(b"data: {"):
            yield msgspec.json.decode(line[6:])


def _surplus(look: Look, idle: Look) -> dict[str, int]:
    """What there is beyond what there was before the runs, by its name."""
    counts = {
        "runs": look.going,
        "seats": look.seats,
        "in the queue": look.queued,
        "sequences": look.engine.outstanding,
    }
    tasks = Counter(look.tasks) - Counter(idle.tasks)
    return {
        what: count for what, count in (counts | {f"tasks of {name}": tasks[name] for name in tasks}).items() if count
    }


def _differences(seen: Sequence[dict[str, Any]], stored: Sequence[dict[str, Any]]) -> int:
    """How many events of the one are not at their places in the other."""
    both = sum(a == b for a, b in zip(seen, stored, strict=False))
    return max(len(seen), len(stored)) - both


def _said(log: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The text of each step."""
    texts: list[str] = []
    for event in log:
        if event["type"] == "step_began":
            texts.append("")
        elif event["type"] == "said":
            texts[-1] += event["text"]
    return tuple(texts)


def _begins(script: Sequence[str], words: Sequence[str], *, whole: bool) -> bool:
    """Whether a run said its script, or (not `whole`) its beginning."""
    if whole:
        return tuple(words) == tuple(script)
    *over, last = words or ("",)
    return list(over) == list(script[: len(over)]) and script[len(over)].startswith(last)
