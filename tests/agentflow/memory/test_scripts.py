"""Whether a model knows Chinese is measured; where it does not, what is told has a word in common with the turn."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentflow.memory.memories import Wanted
from agentflow.memory.rows import Entry
from agentflow.memory.scripts import PROBES, knows, may_be_told
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

    async def __call__(self, tenant: str, texts: Sequence[str], background: bool) -> Any:
        self.calls.append(len(texts))
        vectors = np.zeros((len(texts), WIDTH), np.float32)
        vectors[:, 0] = 1.0
        for row, text in enumerate(texts):
            pair = next((number for number, said in enumerate((*PROBES, *PAIRS), 1) if text in said), 0)
            vectors[row, pair] = 2.0 if self.reads else 0.0
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_a_model_is_known_by_how_often_a_question_is_nearest_to_its_note() -> None:
    vectors = np.repeat(np.eye(len(PROBES), dtype=np.float32), 2, axis=0)
    assert knows(vectors)
    assert not knows(np.ones_like(vectors))
    vectors[1::2] = np.roll(vectors[1::2], 1, axis=0)
    assert not knows(vectors)
    assert not knows(np.zeros_like(vectors))


@pytest.mark.parametrize(
    ("said", "memory", "told"),
    [
        ("我的猫多大了？", "我的猫叫米卡，今年七岁了。", True),
        ("我的猫多大了？", "服务器的备份放在二号机房。", False),
        ("什么时候？", "他问我什么时候来。", True),
        ("这是什么？", "他说什么都行。", False),
        ("Who is 张伟?", "张伟负责计费系统。", True),
        ("How old is my cat?", "我的猫叫米卡。", False),
        ("How old is Minka?", "The moon is round.", True),  # no Chinese: its vector speaks for it
    ],
)
def test_a_chinese_memory_has_a_word_of_what_was_said(said: str, memory: str, told: bool) -> None:
    assert may_be_told(said, memory) is told


def test_of_two_dozen_pairs_most_are_told_and_hardly_another() -> None:
    told = [[may_be_told(question, note) for note, _ in PAIRS] for _, question in PAIRS]
    own = sum(row[number] for number, row in enumerate(told))
    assert (own, sum(map(sum, told)) - own) == (21, 3)


@pytest.mark.parametrize("reads", [False, True])
async def test_what_only_looks_alike_is_left_out_unless_the_model_reads_chinese(tmp_path: Path, reads: bool) -> None:
    model = Chinese(reads=reads)
    async with opened(config(tmp_path)) as plane:
        _, memories = diary_on(plane, model)
        entries = [
            Entry(id=f"m_{number}", kind="note", text=note, agent="a", run_id="r", at=1)
            for number, (note, _) in enumerate(PAIRS)
        ]
        for some in (entries[:12], entries[12:]):
            await memories.write("acme", "a", some)
        assert model.calls == [12, 2 * len(PROBES), 12]  # it is measured once
        for number, (_, question) in enumerate(PAIRS):
            found = await memories.search("acme", "a", Wanted(question, 5, PATIENCE_S, floor=0.5))
            ids = [memory.id for memory in found.memories]
            shares = [m for m, (note, _) in enumerate(PAIRS) if may_be_told(question, note)]
            assert set(ids) == ({f"m_{number}"} if reads else {f"m_{m}" for m in shares})
