"""The router: what a turn needs, decided from its likeness to the tools, with reasons. Pure.

**Routes.** `answer`: no tool is wanted, and the large model answers. `extract`: one tool is clearly wanted, and the small
model fills its arguments under its schema. `reason`: tools may be wanted and it is not clear which, or several are: the large
model reasons with all of them. `aggregate`: results of tools are there, and the large model writes the answer.

**Scores.** Two witnesses speak for each tool, and for the card of what needs none (routing/direct.py): lexical evidence
(routing/lexical.py), and the likeness of the turn's vector to the card's texts, times the trust in the embedder for the turn's
script (routing/semantic.py). A turn that is an example of a tool, with another name in it, is no less like it than any card:
a small encoder sees the name above all. Each is divided by its scale and they are added, as logarithms of odds are; what needs no
tool starts with `direct_prior`. The scores are the softmax of the sums: from 0 to 1, and 1 together.

**Earlier turns.** A short follow-up that says nothing of a tool by itself ("and in Rome?"), where no call is known that it could
be of, is read together with the user's last turn before it that is none, as one turn. So it is where a client's history has
texts alone. Not where that turn's words are those of what needs no tool, and want no tool clearly.

**Decision**, in this order:

1. With results: aggregate. Without tools, or without a word: answer.
2. Parts of the turn (between commas, "and", 然后) that each clearly want another tool: reason.
3. A short follow-up ("and in Rome?", 那后天呢) of a tool's turn, whose words want no other tool: extract, that tool.
4. The card of no tool scores highest: answer.
5. The best tool reaches `sure`, and leads the card of no tool and the next tool by `lead`: extract.
6. Otherwise reason, which is dearer and never wrong.

Without vectors lexical evidence decides alone; and with them too where it is decisive, which spares the encoder about half of
the turns (`to_embed`). Time is bounded: only the head and the tail of a long turn are read.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

from msgspec import Meta, Struct, structs

from agentflow.routing.cards import ToolCard
from agentflow.routing.direct import DIRECT, FOLLOW_UP_UNITS, JOINTS, follows_up
from agentflow.routing.lexical import LexicalIndex, Match
from agentflow.routing.semantic import SemanticIndex, card_texts
from agentflow.routing.terms import embedded, excerpt, script_of, units

if TYPE_CHECKING:
    import numpy as np

Route = Literal["answer", "extract", "reason", "aggregate"]
Share = Annotated[float, Meta(ge=0, le=1)]

_JOINTS = re.compile(JOINTS, re.IGNORECASE)
_ASKS = re.compile(r"[?？呢]|换成|\b(?:about|at|for|from|in|of|on|to|with)\b", re.IGNORECASE)  # noqa: RUF001 - Chinese
_NOTHING = Match()
PARTS = 16  # nobody asks for more at once, and each is scored
EARLIER = 4  # turns before, that are looked at
LIKE = 0.2  # a cosine below this is no reason that a person would see


class Thresholds(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When the router is sure. The defaults lie in the middle of what was best on the tuning turns of benchmarks/routing.py."""

    sure: Annotated[Share, Meta(description="Score from which a tool is clearly wanted, if it leads.")] = 0.4
    lead: Annotated[Share, Meta(description="How much a clear tool's score is above the next one's.")] = 0.15
    decisive: Annotated[
        float,
        Meta(ge=0, le=2, description="Score by words alone from which no vector is asked for; above 1: always ask."),
    ] = 0.95
    direct_prior: Annotated[
        float, Meta(ge=-20, le=20, description="What needs no tool has before anything is read, in logarithms of odds.")
    ] = 1.0
    direct_weight: Annotated[
        float,
        Meta(ge=0, le=10, description="How much more words of requests that need no tool count than those of tools."),
    ] = 1.75
    evidence_scale: Annotated[
        float, Meta(gt=0, le=100, description="Lexical evidence for which odds grow e-fold. One alias is about 0.7.")
    ] = 0.2
    cosine_scale: Annotated[
        float, Meta(gt=0, le=10, description="Difference of cosines for which odds grow e-fold.")
    ] = 0.06
    follow_up_units: Annotated[
        int, Meta(ge=0, le=100, description="Longest follow-up, in words or Chinese characters.")
    ] = FOLLOW_UP_UNITS


class Turn(Struct, frozen=True, kw_only=True):
    """What a user said, and where the conversation stands.

    `results_present`: tools' results have come since. `previous_tool`: the one tool that was called for the turn before.
    `earlier`: what the user said before, the last first.
    """

    text: str
    results_present: bool = False
    previous_tool: str | None = None
    earlier: tuple[str, ...] = ()


class Decision(Struct, frozen=True, kw_only=True):
    """Where a turn goes.

    `tool`: the one that is wanted (extract), or the likeliest of those that may be (reason). `score`: of the best tool, 0 to 1.
    `reasons`: what decided, and what speaks for the best tools and for none, for a person to read.
    """

    route: Route
    tool: str | None = None
    score: float = 0.0
    runner_up: str | None = None
    reasons: tuple[str, ...] = ()


class _Scored(Struct, frozen=True):
    """One card's score, and what made it."""

    card: ToolCard
    score: float
    reason: str


class Router:
    """Tools' cards, ready to be compared with turns. Frozen: `with_vectors` makes another."""

    def __init__(self, cards: Sequence[ToolCard], thresholds: Thresholds | None = None) -> None:
        """Names of cards are different and not empty. Takes a millisecond or two a tool, as `with_vectors` does."""
        self._cards = (*cards, DIRECT)
        self._thresholds = thresholds or Thresholds()
        # The examples of what needs no tool are of any subject: their words say nothing, and only their vectors count.
        self._lexical = LexicalIndex((*cards, structs.replace(DIRECT, examples=())))
        self._texts = card_texts(self._cards)
        self._semantic: SemanticIndex | None = None

    def texts(self) -> list[str]:
        """What is to be embedded, once: descriptions and examples."""
        return [text.text for text in self._texts]

    def with_vectors(self, vectors: np.ndarray) -> Self:
        """This router with the vectors of its `texts`: float32 (len(texts), width), each of length 1."""
        if len(vectors) != len(self._texts):
            raise ValueError(f"{len(vectors)} vectors of {len(self._texts)} texts")
        other = copy.copy(self)
        other._semantic = SemanticIndex(self._texts, vectors)
        return other

    def to_embed(self, turn: Turn) -> str | None:
        """The text whose vector `decide` is to get; None where a vector would change nothing, or words are decisive."""
        turn, _ = self._whole(turn)
        text = excerpt(turn.text)
        found = units(text)
        if self._semantic is None or turn.results_present or len(self._cards) == 1 or not found:
            return None
        if not self._semantic.trust[script_of(text)]:
            return None
        *tools, direct = self._scored(text, None)
        if max(scored.score for scored in (*tools, direct)) >= self._thresholds.decisive:
            return None
        if self._several(text, tools) or self._followed_up(turn, tools):
            return None
        return embedded(turn.text)

    def decide(self, turn: Turn, vector: np.ndarray | None = None) -> Decision:
        """Where the turn goes.

        `vector`: of the text of `to_embed`, float32 (width,), of length 1. Without it words decide alone.
        """
        if turn.results_present:
            return Decision(route="aggregate", reasons=("results of tools are there",))
        if len(self._cards) == 1:
            return Decision(route="answer", reasons=("there are no tools",))
        turn, before = self._whole(turn)
        text = excerpt(turn.text)
        found = units(text)
        if not found:
            return Decision(route="answer", reasons=("the turn has no words",))
        *tools, direct = self._scored(text, vector)
        tools.sort(key=lambda scored: -scored.score)
        decision = self._several(text, tools) or self._followed_up(turn, tools) or self._compared(tools, direct)
        if before:
            told = f'a short follow-up, read together with "{_shown(before)}"'
            return structs.replace(decision, reasons=(told, *decision.reasons))
        return decision

    def _whole(self, turn: Turn) -> tuple[Turn, str]:
        """The turn, with the earlier one in front that a follow-up leaves its question to; and that one, or nothing."""
        if turn.results_present or turn.previous_tool is not None or not self._is_follow_up(turn.text):
            return turn, ""
        if not _ASKS.search(turn.text):  # "and thank you" begins as a follow-up does
            return turn, ""
        before = next((text for text in turn.earlier[:EARLIER] if not self._is_follow_up(text)), "")
        if not before or self._speaks_for(turn.text) or self._speaks_for(before) == "direct":
            return turn, ""
        return Turn(text=f"{excerpt(before)}\n{turn.text}"), before

    def _is_follow_up(self, text: str) -> bool:
        return follows_up(text, self._thresholds.follow_up_units)

    def _speaks_for(self, text: str) -> Literal["tool", "direct", ""]:
        """Whether a text's words want a tool clearly, or else are those of what needs none."""
        *tools, direct = self._scored(excerpt(text), None)
        tools.sort(key=lambda scored: -scored.score)
        if self._is_clear(tools, direct):
            return "tool"
        return "direct" if direct.reason else ""

    def _several(self, text: str, tools: list[_Scored]) -> Decision | None:
        """Parts of the turn that clearly want different tools."""
        wanted: dict[str, str] = {}
        parts = [part for part in _JOINTS.split(text) if part.strip()][:PARTS]
        if len(parts) < 2:
            return None
        for part in parts:
            *scored, direct = self._scored(part, None)
            scored.sort(key=lambda item: -item.score)
            if self._is_clear(scored, direct):
                wanted.setdefault(scored[0].card.name, part.strip())
        if len(wanted) < 2:
            return None
        reasons = (
            "parts of the turn want different tools",
            *(f'"{_shown(part)}": {name}' for name, part in wanted.items()),
        )
        return self._decision("reason", tools, *reasons)

    def _followed_up(self, turn: Turn, tools: list[_Scored]) -> Decision | None:
        """The tool of the turn before, asked again."""
        if turn.previous_tool is None:
            return None
        previous = next((scored for scored in tools if scored.card.name == turn.previous_tool), None)
        if previous is None or not self._is_follow_up(turn.text):
            return None
        *said, _ = self._scored(turn.text, None)  # by its words: so short a text has little meaning of its own
        rival = max(said, key=lambda scored: scored.score)
        if rival.card.name != turn.previous_tool and rival.score >= self._thresholds.sure:
            return None
        ordered = [previous, *(scored for scored in tools if scored is not previous)]
        return self._decision(
            "extract", ordered, f"a short follow-up of a turn that wanted {turn.previous_tool}", previous.reason
        )

    def _compared(self, tools: list[_Scored], direct: _Scored) -> Decision:
        """By the scores alone."""
        best = tools[0]
        reasons = tuple(scored.reason for scored in (best, *tools[1:2], direct) if scored.reason)
        if direct.score >= best.score:
            return self._decision("answer", tools, "that no tool is wanted is likeliest", *reasons)
        if self._is_clear(tools, direct):
            return self._decision("extract", tools, f"{best.card.name} is clearly wanted", *reasons)
        return self._decision("reason", tools, "no tool is clearly wanted, and some may be", *reasons)

    def _is_clear(self, tools: list[_Scored], direct: _Scored) -> bool:
        """Whether the first of the tools, best first, is sure and leads."""
        rivals = [scored.score for scored in (*tools[1:2], direct)]
        return tools[0].score >= self._thresholds.sure and tools[0].score - max(rivals) >= self._thresholds.lead

    def _scored(self, text: str, vector: np.ndarray | None) -> list[_Scored]:
        """All cards in their order, with their scores for the text."""
        bounds = self._thresholds
        matches = self._lexical.match(text)
        nearest: dict[int, tuple[float, str]] = {}
        trust = 0.0
        if self._semantic is not None and vector is not None:
            trust = self._semantic.trust[script_of(text)]
            nearest = self._semantic.nearest(vector) if trust else {}
        most = max((likeness for likeness, _ in nearest.values()), default=0.0)
        sums = []
        for number, card in enumerate(self._cards):
            words = matches.get(number, _NOTHING).evidence / bounds.evidence_scale
            if card is DIRECT:
                words = words * bounds.direct_weight + bounds.direct_prior
            likeness = nearest[number][0] if number in nearest else 0.0
            if matches.get(number, _NOTHING).framed:
                likeness = most
            sums.append(words + trust * likeness / bounds.cosine_scale)
        highest = max(sums)
        shares = [math.exp(each - highest) for each in sums]
        total = sum(shares)
        return [
            _Scored(
                card, share / total, _reason(card, share / total, matches.get(number, _NOTHING), nearest.get(number))
            )
            for number, (card, share) in enumerate(zip(self._cards, shares, strict=True))
        ]

    def _decision(self, route: Route, tools: list[_Scored], *reasons: str) -> Decision:
        named = [scored.card.name for scored in tools[:2]] if route != "answer" else []
        return Decision(
            route=route,
            tool=named[0] if named else None,
            score=round(tools[0].score, 3),
            runner_up=named[1] if len(named) > 1 else None,
            reasons=tuple(reason for reason in reasons if reason),
        )


def _reason(card: ToolCard, score: float, match: Match, like: tuple[float, str] | None) -> str:
    """What speaks for a card, for a person to read; empty when nothing does."""
    said = []
    if match.terms:
        said.append("says " + ", ".join(f'"{_shown(term)}"' for term in match.terms[:4]))
    if like is not None and like[0] > LIKE:
        said.append(f'is like "{_shown(like[1])}" ({like[0]:.2f})')
    return f"{card.name or 'no tool'} {score:.2f}: the turn {' and '.join(said)}" if said else ""


def _shown(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
