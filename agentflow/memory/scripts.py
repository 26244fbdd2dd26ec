"""Scripts: whether an embedding model tells Chinese texts apart, and what stands in for its cosines where it does not. Pure.

An English model finds any two Chinese sentences alike: of all-minilm-l6-v2 every pair is above the floor that suits its English.
Nobody says which scripts a model knows, so it is measured on pairs of a question and the note that answers it: how often the
question is nearest to its own note (semantic.py of agentflow/routing does so on the examples of tools). Where it seldom is, a
question and a memory that is to be shown for it share a word (terms.py there: two characters together, without those that only
ask). Of Japanese and Korean nothing is measured: there the cosine alone counts.

Measured with all-minilm-l6-v2 on 24 notes and questions of tests/agentflow/memory/chinese.py: nearest is the own note for 7. By
the floor alone all 24 pass and 552 of the 552 other pairs; with a word in common 21 and 3.
"""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentflow.routing.terms import script_of, terms

if TYPE_CHECKING:
    import numpy as np

PROBES: Final = (
    ("他的狗叫什么名字？", "他养了一只名叫豆豆的小狗。"),
    ("会议改到哪天了？", "例会推迟到星期四上午。"),
    ("她对什么食物过敏？", "她吃虾会起疹子。"),
    ("仓库的钥匙放在哪？", "库房门钥匙交给了前台保管。"),
    ("这个项目谁来管？", "工程由王经理负责。"),
    ("他们坐什么交通工具回家？", "一家人搭乘高铁返乡。"),
    ("房租每月多少钱？", "住处的月租是三千元。"),
    ("他会说哪些外语？", "他的英文和法文都很流利。"),
)
"""Questions, and the notes that answer them, with few words in common."""
_OTHERS: Final = re.compile("[\u3041-\u3096\u30a1-\u30fa\u1100-\u11ff\uac00-\ud7af]")  # kana and hangul
KNOWN: Final = 0.75  # of the questions nearest to their own notes; by chance it is an eighth


def is_chinese(text: str) -> bool:
    """Whether a text is Chinese: in characters, and with no kana or hangul."""
    return script_of(text) == "cjk" and _OTHERS.search(text) is None


def knows(vectors: np.ndarray) -> bool:
    """Whether a model knows Chinese. `vectors`: of the PROBES' texts in their order, float32 (2 * len(PROBES), width)."""
    questions, notes = vectors[::2], vectors[1::2]
    lengths = (notes * notes).sum(axis=1) ** 0.5
    nearest = ((questions @ notes.T) / lengths.clip(1e-9)).argmax(axis=1)
    return float((nearest == range(len(PROBES))).mean()) >= KNOWN


def may_be_told(said: str, memory: str) -> bool:
    """Whether a memory may be shown for what was said, as far as a model that knows no Chinese can be trusted."""
    return not (is_chinese(said) or is_chinese(memory)) or not terms(said).isdisjoint(terms(memory))
