"""The state store: versions that never repeat, logs without gaps, expiry, and nothing lost that was acknowledged."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataplane.errors import Closed, Damaged, InvalidInput, Unavailable, UnsupportedFormat, VersionConflict
from dataplane.state import eventlog, versioned
from dataplane.state.store import MAX_VALUE_BYTES, StateStore
from dataplane.truth import keys
from dataplane.truth.records import EventRecord
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Writer
from tests.dataplane.killing import killed

MEMORY = 16 << 20
LARGE = versioned.INLINE_BYTES * 2 + 17
ODD_NAMES = ["\x00", "a", "a\x00", "a/b", "aé", "b", "é", "会话", "\U0010ffff", "\U0010ffff\U0010ffff", "x" * 512]


class Hands:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[Rocks]:
    rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
    yield rocks
    rocks.close()


@contextlib.asynccontextmanager
async def opened(rocks: Rocks, clock: Hands) -> AsyncIterator[StateStore]:
    writer = Writer(rocks, 1000)
    writer.start()
    yield StateStore(rocks, writer, clock=clock)
    await writer.close()


@pytest.fixture
async def store(rocks: Rocks, clock: Hands) -> AsyncIterator[StateStore]:
    async with opened(rocks, clock) as store:
        yield store


def event(number: int) -> EventRecord:
    return EventRecord("token", number, b"payload %d" % number)


def events(*numbers: int) -> list[EventRecord]:
    return [event(number) for number in numbers]


def families(rocks: Rocks) -> dict[str, int]:
    """How many keys each family of the state has."""
    return {family: sum(1 for _ in rocks.scan(family, b"")) for family in ("state", "events")}


async def test_a_value_comes_back_with_its_version_and_times(store: StateStore, clock: Hands) -> None:
    assert await store.get("t", "run", "r1") is None

    version = await store.put("t", "run", "r1", b"one")
    found = await store.get("t", "run", "r1")

    assert found is not None
    assert (found.value, found.version, found.updated_ms, found.expires_ms) == (b"one", version, 1_000_000, None)
    clock.now_ms += 5
    assert await store.put("t", "run", "r1", b"", ttl_s=2, wait="visible") > version
    again = await store.get("t", "run", "r1")
    assert again is not None
    assert (again.value, again.updated_ms, again.expires_ms) == (b"", 1_000_005, 1_002_005)


async def test_tenants_and_kinds_do_not_see_each_other(store: StateStore) -> None:
    places = [(tenant, kind, name) for tenant in ("a", "ab") for kind in ("a", "ab") for name in ("a", "ab", "b")]
    for place in places:
        await store.put(*place, "/".join(place).encode(), wait="visible")
        await store.append(place[0], "/".join(place[1:]), [EventRecord("e", 1, "/".join(place).encode())])

    for tenant, kind, name in places:
        found = await store.get(tenant, kind, name)
        assert found is not None
        assert found.value == f"{tenant}/{kind}/{name}".encode()
        log = await store.read(tenant, f"{kind}/{name}")
        assert [(seq, one.payload) for seq, one in log] == [(1, f"{tenant}/{kind}/{name}".encode())]
        assert [name for name, _ in await store.scan(tenant, kind)] == ["a", "ab", "b"]
    await store.drop_tenant("a")
    assert await store.scan("a", "a") == await store.scan("a", "ab") == []
    assert await store.read("a", "a/a") == []
    assert len(await store.scan("ab", "a")) == 3
    assert await store.last_seq("ab", "a/a") == 1


async def test_a_version_never_repeats_not_even_for_a_name_that_was_deleted(rocks: Rocks, clock: Hands) -> None:
    versions: list[int] = []
    for _ in range(2):  # a second time after everything was closed
        async with opened(rocks, clock) as store:
            for _ in range(3):
                versions.append(await store.put("t", "k", "name", b"1", ttl_s=1))
                versions.append(await store.compare_and_swap("t", "k", "name", versions[-1], b"2"))
                await store.delete("t", "k", "name")
                versions.append(await store.compare_and_swap("t", "k", "name", 0, b"3", ttl_s=1))
                clock.now_ms += 5000
                await store.sweep(clock.now_ms)

    assert versions == sorted(set(versions))


async def test_a_swap_with_another_version_changes_nothing_and_tells_the_stored_one(store: StateStore) -> None:
    with pytest.raises(VersionConflict, match="'lock' is not stored, and 7 was expected") as missing:
        await store.compare_and_swap("t", "k", "lock", 7, b"x")
    assert missing.value.version == 0

    version = await store.compare_and_swap("t", "k", "lock", 0, b"mine")

    for expected in (0, version - 1, version + 1):
        with pytest.raises(VersionConflict) as taken:
            await store.compare_and_swap("t", "k", "lock", expected, b"theirs")
        assert taken.value.version == version
        with pytest.raises(VersionConflict):
            await store.delete("t", "k", "lock", expected=expected)
    found = await store.get("t", "k", "lock")
    assert found is not None
    assert found.value == b"mine"
    assert await store.delete("t", "k", "lock", expected=version)
    assert not await store.delete("t", "k", "lock")
    assert await store.delete("t", "k", "lock", expected=0) is False


async def test_of_many_who_swap_at_once_exactly_one_wins(store: StateStore) -> None:
    version = 0
    for _ in range(10):
        tries = [store.compare_and_swap("t", "k", "lease", version, b"%d" % who) for who in range(20)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        won = [who for who, answer in enumerate(answers) if isinstance(answer, int)]
        assert len(won) == 1
        assert sum(isinstance(answer, VersionConflict) for answer in answers) == 19
        found = await store.get("t", "k", "lease")
        assert found is not None
        assert found.value == b"%d" % won[0]
        version = found.version


async def test_counting_by_swaps_loses_no_count(store: StateStore) -> None:
    async def count() -> None:
        for _ in range(10):
            while True:
                found = await store.get("t", "k", "n")
                number = int(found.value) if found else 0
                with contextlib.suppress(VersionConflict):
                    await store.compare_and_swap("t", "k", "n", found.version if found else 0, b"%d" % (number + 1))
                    break

    await asyncio.gather(*(count() for _ in range(5)))

    found = await store.get("t", "k", "n")
    assert found is not None
    assert found.value == b"50"


async def test_a_read_sees_every_write_that_was_submitted_before_it(store: StateStore) -> None:
    waiting = [asyncio.create_task(store.put("t", "k", "n", b"%d" % number)) for number in range(50)]
    await asyncio.sleep(0)

    found = await store.get("t", "k", "n")

    assert found is not None
    assert found.value == b"49"
    await asyncio.gather(*waiting)


async def test_pages_of_a_scan_give_every_name_once_in_the_order_of_utf_8(store: StateStore) -> None:
    for name in reversed(ODD_NAMES):
        await store.put("t", "k", name, name.encode(), wait="visible")
    await store.put("t", "k2", "other", b"", wait="visible")

    for limit in (1, 2, 100):
        names: list[str] = []
        after = None
        while page := await store.scan("t", "k", after=after, limit=limit):
            assert len(page) <= limit
            assert all(found.value == name.encode() for name, found in page)
            names += [name for name, _ in page]
            after = names[-1]
        assert names == sorted(ODD_NAMES, key=str.encode)


@pytest.mark.parametrize(
    ("prefix", "after", "expected"),
    [
        ("a", None, ["a", "a\x00", "a/b", "aé"]),
        ("a", "a", ["a\x00", "a/b", "aé"]),
        ("a", "a\x00", ["a/b", "aé"]),
        ("a", "A", ["a", "a\x00", "a/b", "aé"]),
        ("a", "b", []),
        ("a", "aé", []),
        ("aé", "a", ["aé"]),
        ("\U0010ffff", None, ["\U0010ffff", "\U0010ffff\U0010ffff"]),
        ("nothing", None, []),
        ("", "x" * 512, ["é", "会话", "\U0010ffff", "\U0010ffff\U0010ffff"]),
    ],
)
async def test_a_scan_keeps_to_its_prefix_and_begins_after_its_start(
    store: StateStore, prefix: str, after: str | None, expected: list[str]
) -> None:
    for name in ODD_NAMES:
        await store.put("t", "k", name, b"", wait="visible")

    assert [name for name, _ in await store.scan("t", "k", prefix=prefix, after=after)] == expected


@pytest.mark.parametrize(
    "size", [versioned.INLINE_BYTES, versioned.INLINE_BYTES + 1, LARGE, 4 * versioned.INLINE_BYTES]
)
async def test_a_large_value_is_whole_and_leaves_nothing_behind(store: StateStore, rocks: Rocks, size: int) -> None:
    before = families(rocks)
    value = os.urandom(size)
    version = await store.put("t", "k", "large", value)
    other = os.urandom(size)
    swapped = await store.compare_and_swap("t", "k", "large", version, other)

    found = await store.get("t", "k", "large")
    assert found is not None
    assert (found.value, found.version) == (other, swapped)
    assert await store.scan("t", "k") == [("large", found)]

    await store.put("t", "k", "large", b"small now")
    assert [(name, found.value) for name, found in await store.scan("t", "k")] == [("large", b"small now")]
    await store.delete("t", "k", "large")
    assert families(rocks) == {"state": before["state"] + 1, "events": 0}  # the tenant's last version


async def test_a_large_value_whose_swap_fails_leaves_no_parts(store: StateStore, rocks: Rocks) -> None:
    await store.put("t", "k", "n", b"v")
    before = families(rocks)

    with pytest.raises(VersionConflict):
        await store.compare_and_swap("t", "k", "n", 0, os.urandom(LARGE))
    assert await store.get("t", "k", "n") is not None  # waits for what was put before

    assert families(rocks) == before


async def test_a_large_value_is_read_whole_while_it_is_replaced(store: StateStore) -> None:
    async def replace() -> None:
        for number in range(30):
            await store.put("t", "k", "n", bytes([number]) * LARGE, wait="visible")

    await store.put("t", "k", "n", bytes([255]) * LARGE, wait="visible")
    writing = asyncio.create_task(replace())
    while not writing.done():
        found = await store.get("t", "k", "n")
        assert found is not None
        assert found.value == found.value[:1] * LARGE
        ((name, scanned),) = await store.scan("t", "k")
        assert name == "n"
        assert scanned.value == scanned.value[:1] * LARGE
    await writing


async def test_parts_whose_record_never_came_are_swept(rocks: Rocks, clock: Hands) -> None:
    at = versioned.address("t", "k", "n")
    parts = versioned.Parts.plan(at.tenant, LARGE, clock())
    async with opened(rocks, clock) as store:
        for number in range(parts.count):
            await store._writer.submit(versioned.PutPart(parts, number, b"x"))
        assert families(rocks) == {"state": 4, "events": 0}
        assert await store.sweep(clock.now_ms + 60_000) == 0
        assert families(rocks) == {"state": 4, "events": 0}

        assert await store.sweep(clock.now_ms + 3_600_000) == 0

        assert families(rocks) == {"state": 0, "events": 0}
        with pytest.raises(Unavailable, match="write it again"):
            await store._writer.submit(versioned.Put(at, parts, clock))
        assert await store.get("t", "k", "n") is None


async def test_a_large_value_that_lost_a_part_is_damaged_and_not_shorter(store: StateStore, rocks: Rocks) -> None:
    await store.put("t", "k", "n", os.urandom(LARGE))
    part = rocks.last_key("state", keys.tenant_prefix("t") + b"\xff\x04")
    assert part is not None
    batch = rocks.batch()
    batch.delete("state", part)
    rocks.write(batch)

    with pytest.raises(Damaged, match="lacks some of its parts"):
        await store.get("t", "k", "n")


async def test_what_has_expired_is_gone_at_once_for_every_call(store: StateStore, clock: Hands) -> None:
    await store.put("t", "k", "brief", b"v", ttl_s=1.5)
    await store.put("t", "k", "kept", b"v")
    clock.now_ms += 1499
    assert await store.get("t", "k", "brief") is not None
    clock.now_ms += 1

    assert await store.get("t", "k", "brief") is None
    assert [name for name, _ in await store.scan("t", "k")] == ["kept"]
    assert not await store.delete("t", "k", "brief")
    await store.compare_and_swap("t", "k", "brief", 0, b"new")
    assert await store.get("t", "k", "brief") is not None


async def test_a_sweep_removes_what_has_expired_and_nothing_else(store: StateStore, rocks: Rocks, clock: Hands) -> None:
    for tenant in ("a", "b", "c"):
        for number in range(30):
            await store.put(tenant, "k", f"{number}", b"v", ttl_s=1 + number, wait="visible")
        await store.put(tenant, "k", "kept", b"v", wait="visible")
        await store.put(tenant, "k", "large", os.urandom(LARGE), ttl_s=1, wait="visible")
        await store.put(tenant, "k", "renewed", b"v", ttl_s=1, wait="visible")
        await store.put(tenant, "k", "renewed", b"v", ttl_s=60, wait="visible")
        await store.put(tenant, "k", "for ever", b"v", ttl_s=1, wait="visible")
        await store.put(tenant, "k", "for ever", b"v", wait="visible")

    assert await store.sweep(clock.now_ms + 10_000) == 3 * 11  # ten numbers and the large value
    assert await store.sweep(clock.now_ms + 10_000) == 0
    clock.now_ms += 10_000

    for tenant in ("a", "b", "c"):
        names = {name for name, _ in await store.scan(tenant, "k")}
        assert names == {*(str(number) for number in range(10, 30)), "kept", "renewed", "for ever"}
    assert families(rocks)["state"] == 3 * (1 + 20 * 2 + 2 + 2)  # versions; with an index entry each; one; none


async def test_a_sweep_does_no_more_than_it_may_and_goes_on_where_it_was(store: StateStore, clock: Hands) -> None:
    for tenant in range(12):
        for number in range(7):
            await store.put(f"{tenant}", "k", f"{number}", b"v", ttl_s=1, wait="visible")
    now = clock.now_ms + 1000

    removed: list[int] = []
    while sum(removed) < 84:
        removed.append(await store.sweep(now, 10))
        assert removed[-1] <= 10
        assert len(removed) < 40

    assert [await store.sweep(now, 100), await store.sweep(now, 100)] == [0, 0]


async def test_events_are_numbered_from_one_without_gaps(store: StateStore) -> None:
    assert await store.last_seq("t", "log") == 0
    assert await store.append("t", "log", events(1, 2, 3)) == 3
    assert await store.append("t", "log", []) == 3
    assert await store.append("t", "log", events(4), wait="visible") == 4

    assert await store.read("t", "log") == [(number, event(number)) for number in range(1, 5)]
    assert await store.read("t", "log", after=2, limit=1) == [(3, event(3))]
    assert await store.read("t", "log", after=4) == []
    assert await store.last_seq("t", "log") == 4
    assert await store.read("t", "other") == []


async def test_appends_at_once_share_no_number_and_each_stays_together(store: StateStore) -> None:
    lasts = await asyncio.gather(*(store.append("t", "log", [EventRecord("e", who, b"")] * 3) for who in range(60)))

    log = await store.read("t", "log")
    assert [seq for seq, _ in log] == list(range(1, 181))
    for who, last in enumerate(lasts):
        assert [one.time_ms for seq, one in log if last - 3 < seq <= last] == [who] * 3


async def test_an_append_that_expected_another_end_adds_nothing(store: StateStore) -> None:
    await store.append("t", "log", events(1, 2), expected_last=0)
    for expected in (0, 1, 3):
        with pytest.raises(VersionConflict) as caught:
            await store.append("t", "log", events(9), expected_last=expected)
        assert caught.value.version == 2

    assert await store.append("t", "log", events(3), expected_last=2) == 3
    assert [seq for seq, _ in await store.read("t", "log")] == [1, 2, 3]


async def test_who_appends_ahead_waits_for_nothing_and_is_read_by_whoever_comes_after(store: StateStore) -> None:
    kept = [await store.append_ahead("t", "log", events(number), expected_last=number - 1) for number in (1, 2, 3)]
    assert [seq for seq, _ in await store.read("t", "log")] == [1, 2, 3]
    assert await asyncio.gather(*kept) == [1, 2, 3]


async def test_nothing_is_appended_behind_what_failed(store: StateStore) -> None:
    first = await store.append_ahead("t", "log", events(1), expected_last=7)
    second = await store.append_ahead("t", "log", events(2), expected_last=8)
    for refused in (first, second):
        with pytest.raises(VersionConflict):
            await refused
    with pytest.raises(InvalidInput):
        await store.append_ahead("t", "log", [EventRecord("e", 1, bytes(eventlog.MAX_APPEND_BYTES))], expected_last=0)
    assert await store.read("t", "log") == []


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_trimmed_log_goes_on_with_its_numbers(rocks: Rocks, clock: Hands, reopened: bool) -> None:
    async with opened(rocks, clock) as store:
        for number in range(4):
            await store.append("t", "log", events(*range(number * 100 + 1, number * 100 + 101)))
        assert await store.trim("t", "log", 0) == 1
        assert await store.trim("t", "log", 300) == 301
        assert await store.trim("t", "log", 7) == 301
        assert [seq for seq, _ in await store.read("t", "log")] == list(range(301, 401))
        assert await store.trim("t", "log", 10_000) == 401
        assert families(rocks)["events"] == 0
        if not reopened:
            assert await store.append("t", "log", events(401)) == 401
    if reopened:
        async with opened(rocks, clock) as store:
            assert await store.last_seq("t", "log") == 400
            assert await store.append("t", "log", events(401), expected_last=400) == 401
    async with opened(rocks, clock) as store:
        assert await store.read("t", "log") == [(401, event(401))]
        assert await store.trim("t", "never", 5) == 1


async def test_a_dropped_log_is_gone_and_a_new_one_begins_at_one(store: StateStore, rocks: Rocks) -> None:
    await store.append("t", "log", events(1, 2))
    await store.append("t", "log2", events(1))

    assert await store.drop_stream("t", "log")
    assert not await store.drop_stream("t", "log")

    assert await store.read("t", "log") == []
    dropped = asyncio.create_task(store.drop_stream("t", "log2"))
    assert await store.append("t", "log", events(7)) == 1
    await dropped
    assert await store.append("t", "log2", events(8)) == 1
    assert families(rocks) == {"state": 2, "events": 2}


@pytest.mark.parametrize(
    "place", [("", "k", "n"), ("t", "", "n"), ("t", "k", ""), ("t", "k", "n" * 513), ("t", "\ud800", "n")]
)
async def test_names_that_cannot_be_are_refused(store: StateStore, place: tuple[str, str, str]) -> None:
    for call in (
        store.put(*place, b""),
        store.get(*place),
        store.delete(*place),
        store.compare_and_swap(*place, 0, b""),
    ):
        with pytest.raises(InvalidInput):
            await call


async def test_numbers_and_sizes_that_cannot_be_are_refused(store: StateStore) -> None:
    calls = [
        (store.put("t", "k", "n", bytes(MAX_VALUE_BYTES + 1)), "value"),
        (store.compare_and_swap("t", "k", "n", -1, b""), "expected"),
        (store.delete("t", "k", "n", expected=-1), "expected"),
        (store.scan("t", "k", limit=0), "limit"),
        (store.scan("t", "k", limit=1001), "limit"),
        (store.scan("t", "k", prefix="\ud800"), "prefix"),
        (store.scan("t", "k", after="\ud800"), "after"),
        (store.read("t", "s", after=-1), "after"),
        (store.read("t", "s", after=1 << 63), "after"),
        (store.read("t", "s", limit=0), "limit"),
        (store.trim("t", "s", -1), "through"),
        (store.append("t", "s", [], expected_last=-1), "expected_last"),
        (store.append("t", "s", events(*range(257))), "events"),
        (store.append("t", "s", [EventRecord("e", 1, bytes(eventlog.MAX_APPEND_BYTES))]), "events"),
        (store.append("t", "s", [EventRecord("\ud800", 1, b"")]), "events"),
        (store.append("t", "s", [EventRecord("e", 1 << 70, b"")]), "events"),
        (store.append("t", "", []), "stream"),
        *((store.put("t", "k", "n", b"", ttl_s=ttl), "ttl_s") for ttl in (0, -1, 1e12, float("nan"), float("inf"))),
    ]
    for call, param in calls:
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.param == param
    assert await store.put("t", "k", "n", b"after all that") == 1


async def test_the_largest_value_is_taken(store: StateStore) -> None:
    value = os.urandom(1 << 20) * 16
    await store.put("t", "k", "n", value, wait="visible")

    found = await store.get("t", "k", "n")

    assert found is not None
    assert found.value == value


async def test_damage_and_newer_formats_are_named_and_cost_their_own_record_only(
    store: StateStore, rocks: Rocks
) -> None:
    await store.put("t", "k", "good", b"v")
    await store.append("t", "s", events(1))
    batch = rocks.batch()
    tenant = keys.tenant_prefix("t")
    batch.put("state", tenant + keys.counted_name("k", "kind") + b"garbage", b"\x01\xc1")
    batch.put("state", tenant + keys.counted_name("k", "kind") + b"newer", b"\x02" + msgspec.msgpack.encode([1]))
    batch.put("events", tenant + keys.counted_name("s", "stream") + keys.number(1), b"\x01\xff")
    rocks.write(batch)

    with pytest.raises(Damaged, match="StateRecord"):
        await store.get("t", "k", "garbage")
    with pytest.raises(UnsupportedFormat, match="start the release"):
        await store.put("t", "k", "newer", b"would undo what a newer release wrote")
    with pytest.raises(Damaged, match="EventRecord"):
        await store.read("t", "s")
    assert await store.put("t", "k", "good", b"goes on") == 2


async def test_a_closed_store_says_so(rocks: Rocks, clock: Hands) -> None:
    async with opened(rocks, clock) as store:
        pass

    with pytest.raises(Closed):
        await store.put("t", "k", "n", b"")
    with pytest.raises(Closed):
        await store.put("t", "k", "n", bytes(LARGE))
    with pytest.raises(Closed):
        await store.append("t", "s", events(1))


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "brief", "cas", "delete", "pass", "sweep"]), st.integers(0, 3), st.booleans()),
    max_size=40,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_any_sequence_of_calls_gives_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, bool]]
) -> None:
    async def scenario() -> None:
        clock = Hands()
        rocks = Rocks.open(tmp_path_factory.mktemp("model"), memory_bytes=MEMORY)
        model: dict[str, tuple[bytes, int, int | None]] = {}
        async with opened(rocks, clock) as store:
            for number, (step, which, right) in enumerate(steps):
                name, value = f"n{which}", b"%d" % number
                stored = model[name][1] if name in model else 0
                if step == "pass":
                    clock.now_ms += 700
                elif step == "sweep":
                    await store.sweep(clock.now_ms, 3)
                elif step == "delete":
                    assert await store.delete("t", "k", name, wait="visible") == (name in model)
                    model.pop(name, None)
                elif step == "cas" and not right:
                    with pytest.raises(VersionConflict):
                        await store.compare_and_swap("t", "k", name, stored + 1, value)
                elif step == "cas":
                    model[name] = (value, await store.compare_and_swap("t", "k", name, stored, value), None)
                else:
                    ttl = 1.0 if step == "brief" else None
                    version = await store.put("t", "k", name, value, ttl_s=ttl, wait="visible")
                    model[name] = (value, version, clock.now_ms + 1000 if ttl else None)
                model = {name: kept for name, kept in model.items() if kept[2] is None or kept[2] > clock.now_ms}
                found = {name: (one.value, one.version, one.expires_ms) for name, one in await store.scan("t", "k")}
                assert found == model
            entries = sum(1 for _ in rocks.scan("state", keys.tenant_prefix("t") + b"\xff\x03"))
            assert entries >= sum(kept[2] is not None for kept in model.values())
            await store.sweep(clock.now_ms + 100_000)
            assert rocks.last_key("state", keys.tenant_prefix("t") + b"\xff\x03") is None
        rocks.close()

    asyncio.run(scenario())


_DIES = """
import asyncio, os, sys
from pathlib import Path
from dataplane.errors import VersionConflict
from dataplane.truth.records import EventRecord
from dataplane.truth.rocks import Rocks
from dataplane.state.store import StateStore
from dataplane.truth.writer import Writer

async def puts(store, who, begin):
    for number in range(begin, 1_000_000):
        size = 600_000 if number % 10 == 0 else 50
        version = await store.put("t", "run", f"r{who}-{number % 5}", b"%d " % number + b"x" * size)
        print("put", who, number, version, flush=True)

async def appends(store, who):
    while True:
        begin = await store.last_seq("t", f"log{who}")
        last = await store.append("t", f"log{who}", [EventRecord("e", begin + n, b"x" * 100) for n in (1, 2, 3)])
        print("append", who, last, flush=True)
        if last % 5 == 0:
            first = await store.trim("t", f"log{who}", last - 40) if last > 40 else 1
            print("trim", who, first, flush=True)

async def main(folder, begin):
    rocks = Rocks.open(Path(folder), memory_bytes=1)
    writer = Writer(rocks, 100)
    writer.start()
    store = StateStore(rocks, writer)
    async with asyncio.TaskGroup() as group:
        for who in range(3):
            group.create_task(puts(store, who, begin))
            group.create_task(appends(store, who))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_what_durable_acknowledged_survives_kills_at_random_moments(tmp_path: Path, clock: Hands) -> None:
    chance = random.Random()
    done: dict[tuple[str, int], int] = {}  # (what, who) -> the highest number acknowledged
    versions: set[int] = set()
    begin = 0
    for _ in range(8):
        said = await asyncio.to_thread(killed, _DIES, tmp_path / "rocks", begin, lines=chance.randint(1, 120))
        for what, whose, told, *rest in map(str.split, said):
            key = (what, int(whose))
            assert int(told) >= done.get(key, 0)
            done[key] = int(told)
            if what == "put":
                version = int(rest[0])
                assert version not in versions
                versions.add(version)
        begin = max([begin, *(number + 1 for (what, _), number in done.items() if what == "put")])
        rocks = Rocks.open(tmp_path / "rocks", memory_bytes=MEMORY)
        async with opened(rocks, clock) as store:
            for (what, who), number in done.items():
                if what == "put":
                    found = await store.get("t", "run", f"r{who}-{number % 5}")
                    assert found is not None
                    stored = int(found.value.split(b" ")[0])
                    assert stored >= number  # a later one that was never acknowledged may be there
                    assert len(found.value) == len(b"%d " % stored) + (600_000 if stored % 10 == 0 else 50)
                else:
                    log = await store.read("t", f"log{who}")
                    last = await store.last_seq("t", f"log{who}")
                    first = log[0][0]
                    assert [seq for seq, _ in log] == list(range(first, last + 1))
                    assert [one.time_ms for _, one in log] == list(range(first, last + 1))
                    assert (last >= number and last % 3 == 0) if what == "append" else first >= number
        rocks.close()
    assert {what for what, _ in done} >= {"put", "append"}
