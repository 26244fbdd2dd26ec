"""Vectors of another embedding model are noticed, told of, not searched, and made anew behind everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentflow.memory.diary import Diary, Page
from agentflow.memory.memories import Findings, Memories, Wanted
from agentflow.memory.named import NamedNote
from agentflow.memory.places import MemoryStale, collection_name, is_of
from agentflow.memory.rows import Entry, named_id
from dataplane import DataPlane
from dataplane.store import opened
from tests.agentflow.memory.rooms import PATIENCE_S, config
from tests.agentflow.memory.test_diary import Words, diary_on, written

COUNT = 70  # several parts
OTHER = 107  # the first letter that another model counts
WHY = "searched by words alone: the memory's vectors are of the embedding model letters, and are being made anew for others"


def entry(number: int, until: int | None = None) -> Entry:
    text = f"The cat number {number} sleeps."
    return Entry(id=f"m_{number:03}", kind="note", text=text, agent="a", run_id="r", at=number, until=until)


def other(width: int = 26) -> Words:
    """Another model, of the same width or of another."""
    return Words(model="others", first=OTHER, width=width)


class Between(Words):
    """A model. `asked`: how often for the memory's name. `once`: what happens while it makes many vectors."""

    def __init__(self, words: Words) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.once: Callable[[], Awaitable[None]] | None = None
        self.become(words)

    def become(self, words: Words) -> None:
        """Be another model from now on."""
        self.model, self.first, self.width = words.model, words.first, words.width

    async def __call__(self, tenant: str, texts: Sequence[str], background: bool) -> Any:
        self.asked += [text for text in texts if text == "a"]
        if len(texts) > 1 and self.once is not None:
            once, self.once = self.once, None
            await once()
        return await super().__call__(tenant, texts, background)


async def filled(folder: Path) -> None:
    """A memory whose vectors are those of the model `letters`."""
    async with opened(config(folder)) as plane:
        diary, memories = diary_on(plane, Words())
        await memories.write("acme", "a", [entry(number) for number in range(COUNT)])
        await memories.write("acme", "a", [entry(500, until=1 << 50)])
        await diary.keep("acme", "a", "pet", NamedNote(text="A cat of mine.", agent="a", run_id="r", at=1))


async def searched(memories: Memories, text: str = "cat") -> Findings:
    return await memories.search("acme", "a", Wanted(text, 100, PATIENCE_S))


def collections(plane: DataPlane) -> list[str]:
    return [name for name in plane.collections("acme") if is_of(name, "a")]


async def one_part(diary: Diary) -> None:
    """Let the worker renew one part."""
    assert await diary._renew_part()


@pytest.mark.parametrize("width", [26, 30])
async def test_a_stale_memory_is_searched_by_words_until_it_is_renewed_and_then_whole(
    tmp_path: Path, width: int
) -> None:
    await filled(tmp_path)
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, other(width))
        found = await searched(memories)
        assert (len(found.memories), found.complete, found.why) == (COUNT + 2, False, WHY)
        assert (await searched(memories, "xylophone")).memories == ()  # any vector would find something
        with pytest.raises(MemoryStale, match="are of the embedding model letters, and are being made anew for others"):
            await memories.write("acme", "a", [entry(600)])
        await diary.put("acme", "run_9", Page(name="a", entries=(entry(600),)))
        assert not await diary.keep("acme", "a", "pet", NamedNote(text="A cat of yours.", agent="a", run_id="r", at=2))
        await written(diary)
        found = await searched(memories)
        assert (len(found.memories), found.complete, found.why) == (COUNT + 3, True, "")
        assert len((await searched(memories, "xylophone")).memories) == COUNT + 3
        assert [memory.text for memory in found.memories if memory.name] == ["A cat of yours."]
        (collection,) = collections(plane)
        assert plane.collections("acme")[collection].dimensions == width
        (row,) = await plane.get("acme", collection, ["m_007"], vectors=True)
        assert row is not None
        assert row.vector is not None
        vectors = await other(width)("acme", [row.text or ""], True)
        assert float(row.vector @ vectors[0]) > 0.999 * float(sum(vectors[0] ** 2)) ** 0.5  # stored with length 1
        (row,) = await plane.get("acme", collection, ["m_500"])
        assert row is not None
        assert row.expires_ms is not None
        assert abs(row.expires_ms - (1 << 50)) < 1000 * PATIENCE_S
    async with opened(config(tmp_path)) as plane:  # and so it stays
        _, memories = diary_on(plane, other(width))
        assert (await searched(memories)).complete


async def test_what_is_forgotten_while_a_memory_is_renewed_does_not_come_back(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, other())
        await searched(memories)
        await one_part(diary)
        assert len(collections(plane)) == 2
        assert await memories.forget("acme", "a", "m_001")  # which was copied
        assert await memories.forget("acme", "a", "m_069")  # which was not
        assert await diary.drop("acme", "a", "pet")
        await written(diary)
        ids = {memory.id for memory in (await searched(memories)).memories}
        assert len(ids) == COUNT + 1 - 2
        assert not ids & {"m_001", "m_069", named_id("pet")}
        (collection,) = collections(plane)
        assert await plane.get("acme", collection, ["m_001", "m_069"]) == [None, None]


async def test_what_is_forgotten_while_its_part_is_written_does_not_come_back(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, words := Between(other()))
        await searched(memories)

        async def forget() -> None:  # the row is read, and not yet in the new collection
            assert await memories.forget("acme", "a", "m_001")

        words.once = forget
        await one_part(diary)
        (collection,) = set(collections(plane)) - {collection_name("a")}
        first, second = await plane.get("acme", collection, ["m_001", "m_002"])
        assert first is None
        assert second is not None
        await written(diary)
        assert "m_001" not in {memory.id for memory in (await searched(memories)).memories}


@pytest.mark.parametrize("width", [26, 30])
async def test_how_wide_the_vectors_are_is_asked_once_and_again_of_a_third_model(tmp_path: Path, width: int) -> None:
    await filled(tmp_path)
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, words := Between(other(width)))
        await searched(memories)
        await one_part(diary)
        await one_part(diary)
        assert words.asked == ["a"]
        words.become(Words(model="third", first=100, width=width))
        await written(diary)
        assert words.asked == ["a", "a"]
        found = await searched(memories)
        assert (len(found.memories), found.complete) == (COUNT + 2, True)
        assert len(collections(plane)) == 1


async def test_a_renewal_that_was_broken_off_is_gone_on_with_also_for_a_third_model(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, other())
        await searched(memories)
        await one_part(diary)
    third = Words(model="third", first=100)
    for words in (other(), third):
        async with opened(config(tmp_path)) as plane:
            diary, memories = diary_on(plane, words)
            before = len((await searched(memories)).memories)
            await one_part(diary)
            assert before == COUNT + 2
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, third)
        assert len(collections(plane)) == 3
        await searched(memories)
        await written(diary)
        found = await searched(memories)
        assert (len(found.memories), found.complete) == (COUNT + 2, True)
        assert len(collections(plane)) == 1


async def test_an_embedder_that_is_away_leaves_a_renewal_for_later(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with opened(config(tmp_path)) as plane:
        diary, memories = diary_on(plane, words := other())
        await searched(memories)
        words.away = 3
        await written(diary)
        assert words.away == 0
        assert (await searched(memories)).complete


async def test_a_memory_from_before_its_model_was_noted_is_taken_for_the_served_one_s(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with opened(config(tmp_path)) as plane:
        await plane.state.delete("acme", "memory", "a")
        _, memories = diary_on(plane, other())
        assert (await searched(memories)).complete
        await memories.write("acme", "a", [entry(600)])
        assert collections(plane) == [collection_name("a")]
    async with opened(config(tmp_path)) as plane:  # from then on it is noted
        _, memories = diary_on(plane, Words())
        assert not (await searched(memories)).complete


@pytest.mark.parametrize(("floor", "near"), [(0.99, ["m_1"]), (0.5, ["m_1", "m_2"]), (None, ["m_1", "m_2", "m_3"])])
async def test_what_is_below_the_floor_is_left_out_and_counted(
    tmp_path: Path, floor: float | None, near: list[str]
) -> None:
    texts = {"m_1": "aaaa aaaa aaaa", "m_2": "aaaa bbbb", "m_3": "zzzzzzzz yyyyyyyy xxxxxxxx"}
    async with opened(config(tmp_path)) as plane:
        _, memories = diary_on(plane, Words())
        entries = [Entry(id=id_, kind="note", text=text, agent="a", run_id="r", at=1) for id_, text in texts.items()]
        await memories.write("acme", "a", entries)
        found = await memories.search("acme", "a", Wanted("aaaa aaaa", 5, PATIENCE_S, floor=floor))
        assert sorted(memory.id for memory in found.memories) == near
        assert (found.far, found.complete) == (3 - len(near), True)
        one = await memories.search("acme", "a", Wanted("aaaa aaaa", 1, PATIENCE_S, floor=floor))
        assert len(one.memories) == 1
        _, memories = diary_on(plane, Words(away=99))
        found = await memories.search("acme", "a", Wanted("zzzzzzzz", 5, PATIENCE_S, floor=0.99))  # words know no floor
        assert [memory.id for memory in found.memories] == ["m_3"]


async def test_the_first_writers_of_a_memory_do_not_get_in_each_other_s_way(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        _, memories = diary_on(plane, Words())
        await asyncio.gather(*(memories.write("acme", "a", [entry(number)]) for number in range(20)))
        assert len((await searched(memories)).memories) == 20
