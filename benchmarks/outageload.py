"""The steady load: inserts, replacements, deletes, records, logs and searches of two tenants, whose acknowledgements are kept.

Each lane writes cells that no other lane touches, one call after the other, about so many a second. It takes what is acknowledged
into the model and compares what the call returned (how many rows were new or gone, versions, last numbers). Whatever is wrong
is noted in `problems`; a write that is refused is one too, and ends the load, for then nobody knows what is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import msgspec

from benchmarks.outagemodel import KIND, MARKS, NOTES, Book, Log, Model, Place
from benchmarks.outagesearch import Asker, Question, Tally, check, own_word
from benchmarks.soaking import DIMENSIONS, Maker
from dataplane.errors import DataPlaneError, VersionConflict
from dataplane.rows import CollectionSpec, Row, SearchQuery, SearchResult
from dataplane.store import DataPlane

SPECS = {
    NOTES: CollectionSpec(dimensions=DIMENSIONS, metric="cosine"),
    MARKS: CollectionSpec(dimensions=DIMENSIONS, metric="l2", text=False),
}
SIZES = {NOTES: 3000, MARKS: 600}
WRITERS = {NOTES: 2, MARKS: 1}  # lanes of a tenant
LOGS = ("steps", "tokens")
RECORDS = 40
FILLED = 0.7  # of the rows
WRITES_S, STATES_S, SEARCHES_S = 8.0, 12.0, 12.0  # calls of a lane
MOST_ROWS = 24  # of a call
MOST_EVENTS = 400  # of a log, before it is trimmed
DAY_S = 86_400.0


class Writer:
    """A lane over a share of a place's rows."""

    def __init__(self, load: Load, place: Place, mine: Sequence[int], seed: int) -> None:
        self._load = load
        self._place = place
        self._mine = list(mine)
        self._book = load.model.books[place]
        self._random = random.Random(seed)
        self._maker = Maker(seed)

    async def fill(self) -> None:
        """The first rows."""
        numbers = [number for number in self._mine if self._random.random() < FILLED]
        for at in range(0, len(numbers), 100):
            await self._store(numbers[at : at + 100])

    async def step(self) -> None:
        """Insert, replace or delete some rows, or some of each; now and then ask for one of them at once."""
        numbers = sorted(self._random.sample(self._mine, self._random.randint(1, MOST_ROWS)))
        there = [number for number in numbers if self._book.there[number]]
        kind = self._random.choice(("insert", "replace", "delete", "any"))
        if kind == "delete" and there:
            await self._delete(there)
        elif kind == "replace" and there:
            await self._store(there)
        elif kind == "insert" and len(there) < len(numbers):
            await self._store([number for number in numbers if number not in there])
        else:
            await self._store(numbers)
        if kind in {"insert", "any"} and self._random.random() < 0.4:
            await self._find(numbers)

    async def _store(self, numbers: list[int]) -> None:
        rows, wait = self._made(numbers), self._random.choice(("visible", "durable"))
        wanted = len(numbers) - int(self._book.there[numbers].sum())
        with self._changing(numbers, rows):
            new = await self._load.plane.upsert(*self._place, rows, wait)  # type: ignore[arg-type]
        if new != wanted:
            self._load.note(f"{self._place}: {new} rows of a call were new, not {wanted}")

    async def _delete(self, numbers: list[int]) -> None:
        with self._changing(numbers, None):
            gone = await self._load.plane.delete(*self._place, [f"r{number}" for number in numbers])
        if gone != len(numbers):
            self._load.note(f"{self._place}: {gone} rows of a call were deleted, not {len(numbers)}")

    @contextlib.contextmanager
    def _changing(self, numbers: list[int], rows: list[Row] | None) -> Iterator[None]:
        """Tell the book."""
        self._book.begin(numbers)
        yield
        self._book.done(numbers, rows)
        self._load.model.calls += 1

    def _made(self, numbers: list[int]) -> list[Row]:
        """New versions of rows. Each has a word of its own, for texts."""
        rows = []
        for row in self._maker.rows(numbers):
            serial = self._load.serial()
            rows.append(
                msgspec.structs.replace(
                    row,
                    text=f"{row.text} own{serial}",
                    attributes={**row.attributes, "serial": serial, "even": serial % 2 == 0, "of": self._place.tenant},
                    ttl_s=DAY_S if serial % 9 == 0 else None,
                )
            )
        return rows

    async def _find(self, numbers: list[int]) -> None:
        """What was acknowledged is the best answer to its own vector, and its word finds it: nobody else changes it."""
        number = self._random.choice([number for number in numbers if self._book.there[number]] or [-1])
        row = self._book.rows[number] if number >= 0 else None
        if row is None:
            return
        query = SearchQuery(vector=row.vector, k=3)
        if self._place.collection == NOTES and self._random.random() < 0.5:
            query = SearchQuery(text=own_word(row.text or ""))
        hits = (await self._load.plane.search(*self._place, query)).hits
        self._load.tally.checked += 1
        if not hits or (hits[0].id, hits[0].text) != (row.id, row.text):
            self._load.note(f"{self._place}: r{number} was acknowledged, and is not found: {hits[:1]}")


class Secretary:
    """A lane over a tenant's records and logs."""

    def __init__(self, load: Load, tenant: str, seed: int) -> None:
        self._load = load
        self._state = load.plane.state
        self._tenant = tenant
        self._diary = load.model.diaries[tenant]
        self._random = random.Random(seed)

    async def step(self) -> None:
        """Put, swap or delete a record, or let a log grow or shrink."""
        name = f"n{self._random.randrange(RECORDS)}"
        kind = self._random.choice(("put", "put", "swap", "delete", "append", "append"))
        if kind == "append":
            await self._append(self._random.choice(list(self._diary.logs.values())))
        elif kind == "delete":
            there = await self._state.delete(self._tenant, KIND, name)
            if there is not (self._diary.records.pop(name, None) is not None):
                self._load.note(f"record {name} of {self._tenant} was {'there' if there else 'not there'} to delete")
            self._load.model.calls += 1
        else:
            await self._put(name, swap=kind == "swap")

    async def _put(self, name: str, *, swap: bool) -> None:
        """Some values are so large that they lie in parts."""
        serial = self._load.serial()
        value = f"{self._tenant} {name} {serial} ".encode() * (3 if serial % 11 else 9000)
        version = self._diary.records[name][0] if name in self._diary.records else 0
        if swap:
            with contextlib.suppress(VersionConflict):
                await self._state.compare_and_swap(self._tenant, KIND, name, version + 7, b"never")
                self._load.note(f"record {name} of {self._tenant}: a swap of the wrong version succeeded")
            stored = await self._state.compare_and_swap(self._tenant, KIND, name, version, value)
        else:
            wait = self._random.choice(("visible", "durable"))
            stored = await self._state.put(self._tenant, KIND, name, value, wait=wait)  # type: ignore[arg-type]
        if stored <= version:
            self._load.note(f"record {name} of {self._tenant} has version {stored} after {version}")
        self._diary.records[name] = stored, value
        self._load.model.calls += 1

    async def _append(self, log: Log) -> None:
        last = log.last + self._random.choice((1, 3, 40))
        events = [log.event(number) for number in range(log.last + 1, last + 1)]
        stored = await self._state.append(self._tenant, log.name, events, expected_last=log.last)
        if stored != last:
            self._load.note(f"log {log.name} of {self._tenant} ends at {stored}, not at {last}")
        log.last = last
        self._load.model.calls += 1
        if log.last - log.first > MOST_EVENTS:
            log.first = log.last - MOST_EVENTS // 2 + 1
            first = await self._state.trim(self._tenant, log.name, log.first - 1)
            if first != log.first:
                self._load.note(f"log {log.name} of {self._tenant} begins at {first}, not at {log.first}")
            self._load.model.calls += 1


class Load:
    """All lanes. `fill` first."""

    def __init__(self, plane: DataPlane, model: Model, seed: int) -> None:
        self.plane = plane
        self.model = model
        self.tally = Tally()
        self._serial = 0
        self._failed = asyncio.Event()
        self._writers = []
        self._askers: list[tuple[Asker, Book]] = []
        for number, (place, book) in enumerate(model.books.items()):
            lanes = WRITERS[place.collection]
            for lane in range(lanes):
                mine = range(lane, len(book.rows), lanes)
                self._writers.append(Writer(self, place, mine, seed + 100 * number + lane))
            self._askers.append((Asker(place, seed + 100 * number + 50), book))
        self._secretaries = [
            Secretary(self, tenant, seed + 1000 + number) for number, tenant in enumerate(model.diaries)
        ]

    def serial(self) -> int:
        """A number that nothing else has."""
        self._serial += 1
        return self._serial

    def note(self, problem: str) -> None:
        """Something is wrong."""
        self.tally.problems.append(problem)

    async def fill(self) -> None:
        """Collections, the first rows, and some records and logs."""
        for place in self.model.books:
            await self.plane.create_collection(*place, SPECS[place.collection])
        for writer in self._writers:
            await writer.fill()
        for secretary in self._secretaries:
            for _ in range(RECORDS):
                await secretary.step()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load within the context. At its end each lane finishes the call that it is in."""
        stop = asyncio.Event()
        steps: list[tuple[Callable[[], Awaitable[None]], float]] = [(one.step, WRITES_S) for one in self._writers]
        steps += [(one.step, STATES_S) for one in self._secretaries]
        steps += [(lambda asker=asker, book=book: self._ask(asker, book), SEARCHES_S) for asker, book in self._askers]
        tasks = [asyncio.create_task(self._lane(step, a_second, stop)) for step, a_second in steps]
        try:
            yield
            stop.set()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def rest(self, seconds: float) -> None:
        """Wait while the load goes on, or until a write is refused."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._failed.wait(), seconds)

    @property
    def failed(self) -> bool:
        """Whether a call was refused. What the model has is then not known to be stored."""
        return self._failed.is_set()

    async def _lane(self, step: Callable[[], Awaitable[None]], a_second: float, stop: asyncio.Event) -> None:
        while not stop.is_set() and not self._failed.is_set():
            began = time.monotonic()
            try:
                await step()
            except DataPlaneError as error:
                self.model.refused += 1
                self.note(f"a call was refused: {type(error).__name__}: {error}")
                self._failed.set()
            pause = 1 / a_second - (time.monotonic() - began)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(pause, 0.001))

    async def _ask(self, asker: Asker, book: Book) -> None:
        since, question = book.time, asker.any(book)
        check(book, since, question, await self._search(question), self.tally)

    async def _search(self, question: Question) -> SearchResult:
        return await self.plane.search(*question.place, question.query)
