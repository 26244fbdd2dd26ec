"""The router on labelled turns, with the real sentence encoder: how often it is right, and how long a decision takes.

The turns and the cards of eight tools are in tests/agentflow/routing_turns.jsonl and routing_cards.json. `router_accuracy` is
over the 200 turns of the set `test`, a third of them Chinese. They were written after thresholds, cards and words were fixed,
and have changed none of them. Those were chosen on the set `tune`: three rounds of 200 turns, of which the later two were
tests as well, until they had been looked at. One hand wrote cards and turns. A turn is right if its route is, and for
`extract` its tool as well. None is of the route `aggregate`, which follows from a flag and would only flatter the figure.

Beside it: always the commonest label of the tuning set; and keywords, which take the tools whose name or aliases stand in the
turn (as the router does: no tool answers, one extracts, several reason). `router_p99_ms` is the time of one turn after
another: its tokens and its vector from the encoder in a thread of this process, if the router asks for one, and the decision;
`embedded_p99_ms` is of the turns that were embedded, `decide_p99_ms` of the decisions alone.

    python -m benchmarks.routing [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from acu.config.places import default_model_cache
from acu.errors import ModelError
from acu.models import locate
from agentflow.config import ModelConfig
from agentflow.engine.encoder import Encoder
from agentflow.errors import EngineFailure
from agentflow.router import Decision, Route, Router, Turn
from agentflow.routing.cards import ToolCard
from agentflow.tokenizer import FileTokenizer
from benchmarks.ending import to_the_end
from benchmarks.report import NotMeasured, last_line, percentile, table

MODEL = "all-minilm-l6-v2"
FOLDER = Path(__file__).parent.parent / "tests" / "agentflow"

Label = tuple[Route, str | None]


class Labelled(msgspec.Struct, frozen=True, kw_only=True):
    """A turn, and where it belongs."""

    set: str
    lang: str
    route: Route
    text: str
    tool: str | None = None
    previous_tool: str | None = None

    @property
    def label(self) -> Label:
        """What is to be found."""
        return self.route, self.tool

    @property
    def turn(self) -> Turn:
        """As the router gets it."""
        return Turn(text=self.text, previous_tool=self.previous_tool)


def read_cards() -> list[ToolCard]:
    """The eight tools."""
    return msgspec.json.decode((FOLDER / "routing_cards.json").read_bytes(), type=list[ToolCard])


def read_turns(name: str) -> list[Labelled]:
    """The labelled turns of a set: `tune` or `test`."""
    turns = msgspec.json.Decoder(Labelled).decode_lines((FOLDER / "routing_turns.jsonl").read_bytes())
    return [turn for turn in turns if turn.set == name]


def label_of(decision: Decision) -> Label:
    """What counts of a decision."""
    return decision.route, decision.tool if decision.route == "extract" else None


def keyword_label(cards: Sequence[ToolCard], text: str) -> Label:
    """What plain keywords make of a text."""
    spoken = text.lower()
    found = [
        card.name
        for card in cards
        if any(word.lower() in spoken for word in (card.name, card.name.replace("_", " "), *card.aliases))
    ]
    if len(found) == 1:
        return "extract", found[0]
    return ("reason" if found else "answer"), None


def accuracies(turns: Sequence[Labelled], label: Callable[[Labelled], Label]) -> dict[str, float]:
    """The share that is right: of all, and of each language."""
    right = {turn.text: label(turn) == turn.label for turn in turns}
    groups = {"all": turns} | {lang: [turn for turn in turns if turn.lang == lang] for lang in ("en", "zh")}
    return {name: sum(right[turn.text] for turn in group) / len(group) for name, group in groups.items()}


class Encoding:
    """The real encoder and its tokenizer."""

    def __init__(self) -> None:
        path = locate(MODEL, default_model_cache(os.environ)).path
        self._tokenizer = FileTokenizer.load(path)
        self._encoder = Encoder(path, ModelConfig(model=str(path)))
        self._most = 0

    async def start(self) -> None:
        """Load the model. Raises EngineFailure."""
        self._most = (await self._encoder.start(lambda _progress: None)).max_model_len

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32 (texts, width)."""
        tokens = [self._tokenizer.encode(text, True)[: self._most] for text in texts]
        vectors: np.ndarray = await self._encoder.embed(tokens)
        return vectors

    async def stop(self) -> None:
        """Let the thread go."""
        await self._encoder.stop(5.0)


@dataclass(slots=True)
class Times:
    """Seconds of each turn: all that it takes, and the decision alone."""

    whole: list[float] = field(default_factory=list)
    embedded: list[float] = field(default_factory=list)  # of whole: the turns that were embedded
    decision: list[float] = field(default_factory=list)


async def decide_all(router: Router, encoding: Encoding, turns: Sequence[Labelled], times: Times) -> dict[str, Label]:
    """Each turn by itself, as a daemon gets them: labels by text. What each takes is added to `times`."""
    labels = {}
    for turn in turns:
        start = time.perf_counter()
        text = router.to_embed(turn.turn)
        vector = None if text is None else (await encoding.embed([text]))[0]
        waited = time.perf_counter()
        labels[turn.text] = label_of(router.decide(turn.turn, vector))
        end = time.perf_counter()
        times.whole.append(end - start)
        if vector is not None:
            times.embedded.append(end - start)
        times.decision.append(end - waited)
    return labels


async def measure(rounds: int) -> tuple[dict[str, dict[str, float]], Times]:
    """Accuracies by method, and the times of the test set."""
    cards = read_cards()
    tune, test = read_turns("tune"), read_turns("test")
    encoding = Encoding()
    await encoding.start()
    try:
        lexical = Router(cards)
        router = lexical.with_vectors(await encoding.embed(lexical.texts()))
        tuned = await decide_all(router, encoding, tune, Times())  # and whatever is made lazily is there
        times = Times()
        tested: dict[str, Label] = {}
        for _ in range(rounds):
            tested = await decide_all(router, encoding, test, times)
    finally:
        await encoding.stop()
    majority = Counter(turn.label for turn in tune).most_common(1)[0][0]
    return {
        "router": accuracies(test, lambda turn: tested[turn.text]),
        "router without vectors": accuracies(test, lambda turn: label_of(lexical.decide(turn.turn))),
        "keywords": accuracies(test, lambda turn: keyword_label(cards, turn.text)),
        f"always {majority[0]}": accuracies(test, lambda _turn: majority),
        "router, tuning set": accuracies(tune, lambda turn: tuned[turn.text]),
    }, times


def main() -> int:
    """Measure, print the table, and with --json one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often the turns of the test set are timed")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    try:
        found, times = asyncio.run(measure(args.rounds))
    except (NotMeasured, ModelError, EngineFailure) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    rows = [[name, *(f"{shares[lang]:.3f}" for lang in ("all", "en", "zh"))] for name, shares in found.items()]
    print(table("Turns that are routed rightly", ["method", "all", "English", "Chinese"], rows))
    share = len(times.embedded) / len(times.whole)
    milliseconds = {
        "router_p50_ms": percentile(times.whole, 0.5) * 1e3,
        "router_p99_ms": percentile(times.whole, 0.99) * 1e3,
        "embedded_p99_ms": percentile(times.embedded, 0.99) * 1e3,
        "decide_p99_ms": percentile(times.decision, 0.99) * 1e3,
    }
    print(f"\n{len(times.whole)} turns, {share:.0%} of them embedded:", end=" ")
    print(", ".join(f"{name} {value:.1f}" for name, value in milliseconds.items()))
    if args.json:
        ours, lexical, keywords, majority, tuned = found.values()
        print(
            last_line(
                {
                    "router_accuracy": ours["all"],
                    **milliseconds,
                    "embedded_share": share,
                    "router_accuracy_en": ours["en"],
                    "router_accuracy_zh": ours["zh"],
                    "lexical_accuracy": lexical["all"],
                    "keyword_accuracy": keywords["all"],
                    "majority_accuracy": majority["all"],
                    "tuning_accuracy": tuned["all"],
                }
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
