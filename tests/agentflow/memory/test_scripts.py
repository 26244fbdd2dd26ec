"""Whether a model knows Chinese is measured; where it does not, what is told has a word in common with the turn."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentflow.library.embedderid import EmbedderId
from agentflow.memory.memories import Memories, Wanted
from agentflow.memory.places import Place, Places
from agentflow.memory.rows import Entry
from agentflow.memory.scripts import KNOWN, PROBES, is_chinese, knows, may_be_told
from dataplane import DataPlane
from dataplane.store import opened
from tests.agentflow.memory.chinese import PAIRS
from tests.agentflow.memory.rooms import PATIENCE_S, config
from tests.agentflow.memory.test_diary import Words, diary_on

WIDTH = 1 + len(PROBES) + len(PAIRS)


class Chinese(Words):
    """A model to which all texts are alike, but those of a pair more so if it `reads` Chinese."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.calls: list[int] = []
        self.once: Callable[[], Awaitable[None]] | None = None  # what happens while it is measured

    async def __call__(self, tenant: str, texts: Sequence[str], background: bool) -> Any:
        self.calls.append(len(texts))
        await asyncio.sleep(0)
        if len(texts) == 2 * len(PROBES) and self.once is not None:
            await self.once()
        vectors = np.zeros((len(texts), WIDTH), np.float32)
        vectors[:, 0] = 1.0
        for row, text in enumerate(texts):
            pair = next((number for number, said in enumerate((*PROBES, *PAIRS), 1) if text in said), 0)
            if pair and self.reads:
                vectors[row, pair] = 2.0
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_a_model_is_known_by_how_often_a_question_is_nearest_to_its_note() -> None:
    vectors = np.repeat(np.eye(len(PROBES), dtype=np.float32), 2, axis=0)
    assert knows(vectors)
    assert not knows(np.ones_like(vectors))
    vectors[1::2] = np.roll(vectors[1::2], 1, axis=0)
    assert not knows(vectors)
    assert not knows(np.zeros_like(vectors))


def test_three_quarters_of_the_questions_have_to_be_nearest_to_their_notes_however_long_the_vectors_are() -> None:
    vectors = np.repeat(np.eye(len(PROBES), dtype=np.float32), 2, axis=0)
    some = vectors.copy()
    some[[1, 3]] = some[[3, 1]]
    assert knows(some)
    some[[5, 7]] = some[[7, 5]]
    assert not knows(some)
    assert KNOWN == 0.75
    vectors += 0.5
    vectors[1] *= 100.0
    assert knows(vectors)


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("我的猫叫米卡。", True),
        ("張偉負責計費系統。", True),
        ("我的 T恤 在哪", True),
        ("私の猫はミカです。", False),
        ("カレンダー", False),
        ("회의는 목요일입니다.", False),
        ("Who is 张伟?", False),
        ("", False),
    ],
)
def test_japanese_and_korean_are_not_taken_for_chinese(text: str, chinese: bool) -> None:
    assert is_chinese(text) is chinese


@pytest.mark.parametrize(
    ("said", "memory", "told"),
    [
        ("我的猫多大了？", "我的猫叫米卡，今年七岁了。", True),
        ("我的猫多大了？", "服务器的备份放在二号机房。", False),
        ("什么时候？", "他问我什么时候来。", True),
        ("这是什么？", "他说什么都行。", False),
        ("Who is 张伟?", "张伟负责计费系统。", True),
        ("How old is my cat?", "我的猫叫米卡。", False),
        ("我的猫多大了？", "My cat is seven.", False),
        ("猫は何歳ですか？", "ミカは七つです。", True),  # Japanese, which nobody measures
        ("How old is Minka?", "The moon is round.", True),  # no Chinese: its vector speaks for it
    ],
)
def test_a_chinese_memory_has_a_word_of_what_was_said(said: str, memory: str, told: bool) -> None:
    assert may_be_told(said, memory) is told


def test_of_two_dozen_pairs_most_are_told_and_hardly_another() -> None:
    told = [[may_be_told(question, note) for note, _ in PAIRS] for _, question in PAIRS]
    own = sum(row[number] for number, row in enumerate(told))
    assert (own, sum(map(sum, told)) - own) == (21, 3)


ENTRIES = [
    Entry(id=f"m_{number}", kind="note", text=note, agent="a", run_id="r", at=1)
    for number, (note, _) in enumerate(PAIRS)
]
ENGLISH = Entry(id="m_en", kind="note", text="The moon is round.", agent="a", run_id="r", at=1)


async def check_found(memories: Memories, *, reads: bool) -> None:
    """Of each question its own note is found where the model reads Chinese, else the notes with a word of it."""
    for number, (_, question) in enumerate(PAIRS):
        found = await memories.search("acme", "a", Wanted(question, 5, PATIENCE_S, floor=0.5))
        shares = {f"m_{m}" for m, (note, _) in enumerate(PAIRS) if may_be_told(question, note)}
        assert {memory.id for memory in found.memories} == ({f"m_{number}"} if reads else shares)


@pytest.mark.parametrize("reads", [False, True])
async def test_what_only_looks_alike_is_left_out_unless_the_model_reads_chinese(tmp_path: Path, reads: bool) -> None:
    model = Chinese(reads=reads)
    async with opened(config(tmp_path)) as plane:
        _, memories = diary_on(plane, model)
        for some in (ENTRIES[:12], ENTRIES[12:]):
            await memories.write("acme", "a", some)
        assert model.calls == [12, 2 * len(PROBES), 12]  # it is measured once
        await check_found(memories, reads=reads)


@pytest.mark.parametrize("reads", [False, True])
async def test_what_was_measured_holds_when_the_data_are_opened_again(tmp_path: Path, reads: bool) -> None:
    async with opened(config(tmp_path)) as plane:
        await diary_on(plane, Chinese(reads=reads))[1].write("acme", "a", ENTRIES)
    async with opened(config(tmp_path)) as plane:
        model = Chinese(reads=reads)
        _, memories = diary_on(plane, model)
        await check_found(memories, reads=reads)
        await memories.write("acme", "a", ENTRIES[:3])
        assert model.calls == [*[1] * len(PAIRS), 3]  # and is not measured again


async def test_until_a_chinese_text_is_remembered_nothing_is_measured_and_the_cosine_alone_counts(
    tmp_path: Path,
) -> None:
    model = Chinese(reads=False)
    async with opened(config(tmp_path)) as plane:
        _, memories = diary_on(plane, model)
        await memories.write("acme", "a", [ENGLISH])
        assert model.calls == [1]
        found = await memories.search("acme", "a", Wanted("月亮是圆的吗？", 5, PATIENCE_S, floor=0.5))
        assert [memory.id for memory in found.memories] == ["m_en"]
        await memories.write("acme", "b", ENTRIES[:1])
        found = await memories.search("acme", "a", Wanted("月亮是圆的吗？", 5, PATIENCE_S, floor=0.5))
        assert found.memories == ()


async def test_writes_at_one_time_measure_once_for_all_memories(tmp_path: Path) -> None:
    model = Chinese(reads=False)
    async with opened(config(tmp_path)) as plane:
        _, memories = diary_on(plane, model)
        await asyncio.gather(
            *(memories.write("acme", name, [entry]) for name, entry in zip("ab", ENTRIES, strict=False))
        )
        assert sorted(model.calls) == [1, 1, 2 * len(PROBES)]
        assert [(await Places(plane.state).of("acme", name)).knows_chinese for name in "ab"] == [False, False]


@pytest.mark.parametrize("entries", [ENTRIES, [ENGLISH]])
async def test_a_renewed_memory_has_what_was_measured_of_its_model(tmp_path: Path, entries: list[Entry]) -> None:
    async with opened(config(tmp_path)) as plane:
        await diary_on(plane, Chinese(reads=True))[1].write("acme", "a", entries)
    model = Chinese(reads=False)
    model.model = "others"
    async with opened(config(tmp_path)) as plane:
        _, memories = diary_on(plane, model)
        while not await memories.renew("acme", "a"):
            pass
        place = await Places(plane.state).of("acme", "a")
        assert (place.embedder, place.knows_chinese) == (
            EmbedderId(model="others"),
            None if entries == [ENGLISH] else False,
        )
        assert model.calls.count(2 * len(PROBES)) == (entries != [ENGLISH])


async def test_what_was_measured_holds_for_the_same_model_of_which_more_is_known(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        await diary_on(plane, Chinese(reads=True))[1].write("acme", "a", ENTRIES[:2])
        model, places = Chinese(reads=True), Places(plane.state)

        async def plane_opened() -> DataPlane:
            return plane

        async def identity() -> EmbedderId:
            return EmbedderId(model=model.model, fingerprint="0123456789abcdef")

        await Memories(plane_opened, model, identity).write("acme", "a", ENTRIES[2:4])
        place = await places.of("acme", "a")
        assert (place.embedder, place.knows_chinese, model.calls) == (await identity(), True, [2])


async def test_a_memory_that_was_moved_while_its_model_is_measured_stays_where_it_is(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        model, places, moved = Chinese(reads=True), Places(plane.state), Place(collection="memory/a@elsewhere")
        model.once = lambda: places.put("acme", "a", moved)
        await diary_on(plane, model)[1].write("acme", "a", ENTRIES[:2])
        assert await places.of("acme", "a") == moved
