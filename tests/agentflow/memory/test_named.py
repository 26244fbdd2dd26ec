"""Notes under names: read back exactly, replaced in one step, found by a search as they are by now."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentflow.errors import InvalidRequest
from agentflow.library.refusals import DataDamaged, QuotaExceeded
from agentflow.memory.diary import KIND as PAGES
from agentflow.memory.memories import Wanted
from agentflow.memory.named import KIND, MOST_NAMES, MOST_TOLD, NamedNote, checked_name, told_names
from agentflow.memory.rows import named_id
from dataplane import DataPlane
from dataplane.store import opened
from tests.agentflow.memory.rooms import PATIENCE_S, config
from tests.agentflow.memory.test_diary import Words, diary_on, written

FIRST = NamedNote(text=" The cat is at home.\n\tIn the kitchen ", agent="a", run_id="run_1", at=1)
SECOND = NamedNote(text="The cat is in Graz.", agent="a", run_id="run_2", at=2)


async def found(plane: DataPlane, words: Words | None = None, tenant: str = "acme") -> list[tuple[str, str]]:
    _, memories = diary_on(plane, words or Words())
    findings = await memories.search(tenant, "a", Wanted("cat", 20, PATIENCE_S))
    return [(memory.name, memory.text) for memory in findings.memories]


async def test_a_note_is_read_back_exactly_and_the_next_of_its_name_replaces_it(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, Words())
        notes = await memories.named()
        assert await diary.keep("acme", "a", "cat", FIRST)
        assert (await notes.get("acme", "a", "cat"))[0] == FIRST
        assert await found(plane) == [("cat", FIRST.text)]
        assert await diary.keep("acme", "a", "cat", SECOND)
        assert (await notes.get("acme", "a", "cat"))[0] == SECOND
        assert await found(plane) == [("cat", SECOND.text)]
        for tenant, memory in (("acme", "b"), ("other", "a")):
            assert await notes.get(tenant, memory, "cat") == (None, 0)
            assert await notes.names(tenant, memory) == []
        assert await found(plane, tenant="other") == []
        assert await plane.state.scan("acme", PAGES) == []
        assert diary.due == 0


async def test_what_was_dropped_is_gone_from_the_records_the_searches_and_the_rows(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, Words())
        assert not await diary.drop("acme", "a", "cat")
        await diary.keep("acme", "a", "cat", FIRST)
        assert await diary.drop("acme", "a", "cat")
        assert not await diary.drop("acme", "a", "cat")
        assert await plane.get("acme", "memory/a", [named_id("cat")]) == [None]
        await diary.keep("acme", "a", "cat", FIRST)
        assert await memories.forget("acme", "a", named_id("cat"))  # by the id that a search tells
        assert await (await memories.named()).names("acme", "a") == []
        assert await found(plane) == []


async def test_a_search_tells_what_the_record_says_though_the_row_is_older(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, Words())
        await diary.keep("acme", "a", "cat", FIRST)
        away, _ = diary_on(plane, words := Words(away=1000))
        assert not await away.keep("acme", "a", "cat", SECOND)  # kept, and found by what the row still says
        assert await found(plane) == [("cat", SECOND.text)]
        (row,) = await plane.get("acme", "memory/a", [named_id("cat")])
        assert row is not None
        assert row.text == FIRST.text
        words.away = 2
        await written(away)
        (row,) = await plane.get("acme", "memory/a", [named_id("cat")])
        assert row is not None
        assert row.text == SECOND.text
        await (await memories.named()).delete("acme", "a", "cat")  # a crash before the row went
        assert await found(plane) == []
        assert await plane.state.scan("acme", PAGES) == []


async def test_writers_of_one_name_leave_the_row_of_the_last_record(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, Words())
        many = [NamedNote(text=f"The cat has {number} toys.", agent="a", run_id="r", at=number) for number in range(20)]
        await asyncio.gather(*(diary.keep("acme", "a", "cat", note) for note in many))
        await written(diary)
        note, _ = await (await memories.named()).get("acme", "a", "cat")
        (row,) = await plane.get("acme", "memory/a", [named_id("cat")])
        assert note is not None
        assert row is not None
        assert row.text == note.text
        assert await plane.state.scan("acme", PAGES) == []


async def test_a_note_that_is_past_its_end_is_there_no_more(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, Words())
        now = int(time.time() * 1000)
        await diary.keep("acme", "a", "cat", NamedNote(text="The cat.", agent="a", run_id="r", at=now, until=now + 300))
        notes = await memories.named()
        while time.time() * 1000 < now + 350:
            await asyncio.sleep(0.02)
        assert await notes.get("acme", "a", "cat") == (None, 0)
        assert await notes.names("acme", "a") == []
        assert await found(plane) == []


async def test_a_memory_has_so_many_names_and_those_that_are_there_can_be_used_again(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, Words())
        notes = await memories.named()
        put = (plane.state.put("acme", KIND, f"a/n{number}", b"{}", wait="visible") for number in range(MOST_NAMES - 1))
        await asyncio.gather(*put)
        await diary.keep("acme", "a", "cat", FIRST)
        with pytest.raises(QuotaExceeded, match="this memory has 1000 names, which is the most: forget one"):
            await diary.keep("acme", "a", "dog", FIRST)
        await diary.keep("acme", "a", "cat", SECOND)
        await diary.keep("acme", "b", "dog", FIRST)  # another memory has room
        assert len(await notes.names("acme", "a")) == MOST_NAMES
        with pytest.raises(DataDamaged, match="the note 'n1' cannot be read: write it again"):
            await notes.get("acme", "a", "n1")


async def keep_and_hang(folder: Path) -> None:
    """Keep a note, and hang before its row is made. In a process that is killed."""
    plane = await DataPlane.open(config(folder))
    diary, memories = diary_on(plane, Words(hangs=True))
    keeping = asyncio.create_task(diary.keep("acme", "a", "cat", SECOND))
    while (await (await memories.named()).get("acme", "a", "cat"))[0] is None:
        await asyncio.sleep(0.01)
    print("kept", flush=True)
    await keeping
    await asyncio.Event().wait()


def kill_before_the_row(folder: Path) -> None:
    code = f"from {__name__} import keep_and_hang as hang; asyncio.run(hang(pathlib.Path({str(folder)!r})))"
    command = [sys.executable, "-c", f"import asyncio, pathlib; {code}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        os.kill(process.pid, signal.SIGKILL)


async def test_a_note_survives_a_kill_and_the_next_process_makes_its_row(tmp_path: Path) -> None:
    await asyncio.to_thread(kill_before_the_row, tmp_path)
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, Words())
        assert (await (await memories.named()).get("acme", "a", "cat"))[0] == SECOND
        tenants = [name for name, _ in await plane.state.scan("/agents", "tenant")]
        assert await diary.take_up(tenants) == 1  # also where no run of the tenant was ever stored
        await written(diary)
        assert await found(plane) == [("cat", SECOND.text)]
        assert await plane.state.scan("acme", PAGES) == []


@pytest.mark.parametrize(
    ("given", "name"),
    [("a", "a"), ("  home \n address ", "home address"), ("Cafe\u0301", "Caf\u00e9"), ("天" * 100, "天" * 100)],
)
def test_a_name_has_one_form(given: str, name: str) -> None:
    assert checked_name(given) == name


@pytest.mark.parametrize("given", ["", " \t\n", "x" * 101, "a\x00b", "\ud800", "a\u202eb"])
def test_what_is_no_name_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="a name has 1 to 100 characters that can be printed"):
        checked_name(given)


def test_who_asks_for_an_unknown_name_is_told_of_the_likest_and_of_some() -> None:
    assert told_names([], "cat") == "Nothing is kept under a name yet."
    assert told_names(["dog", "home adress"], "home address") == 'The names are: "home adress", "dog".'
    told = told_names([f"n{number:03}" for number in range(MOST_NAMES)], "n500")
    assert told.startswith('The names are: "n500", ')
    assert told.endswith(f", and {MOST_NAMES - MOST_TOLD} more.")
    assert told.count('"') == 2 * MOST_TOLD
