"""What the model is made to say in the agents' benchmark, and how long that takes at best. Pure.

An answer is a few words, then a call for each duration, with words between them, as a model would say them; then, once the
results are there, a closing sentence. The ideal starts each tool at its call's own closing brace and lets the closing sentence
follow the last result at once:

    ideal = max(end of the answer, latest of (closing brace + duration)) + time of the closing sentence - request

All moments are `time.monotonic()` seconds of one machine.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

CLOSING = "All of the services have answered, and this is what they said, in the order in which they were asked."
_BETWEEN = (
    "I shall ask several services for what you want to know, and tell you what they say once they have answered.",
    "While that one is at work I can ask another, which knows more about the second part of your question than it does.",
    "The last one is quick, and what it says is needed to put the other two into words that are easy to compare.",
)


class Forced(Struct, frozen=True, kw_only=True):
    """What the model says at each step; the last text for all further ones. `salted`: no step finds its prefix cached.

    `scripts`: where not every run says the same, the texts of one each; the next run to speak has the next of them.
    """

    texts: tuple[str, ...]
    salted: bool = False
    scripts: tuple[tuple[str, ...], ...] = ()

    def text(self, step: int, run: int = 0) -> str:
        """What is said at a step of a run, both from 0."""
        texts = self.scripts[run % len(self.scripts)] if self.scripts else self.texts
        return texts[min(step, len(texts) - 1)]


class Tap(Struct, frozen=True, kw_only=True):
    """One generation as it left the engine: when it was asked for, and when so many characters (`ends`) were there (`at`).

    `cut`: when it was given up before its end; the abort had left for the engine by then. None: it came to its end.
    """

    id: str
    called: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    at: tuple[float, ...]
    ends: tuple[int, ...]
    cut: float | None = None

    @property
    def ttft_s(self) -> float:
        """From the request to the first token."""
        return self.at[0] - self.called

    @property
    def ended(self) -> float:
        """When it was over."""
        return self.at[-1]

    def reached(self, end: int) -> float:
        """When the first `end` characters were there."""
        return self.at[bisect_left(self.ends, end)]


def call(name: str, **arguments: object) -> str:
    """A call as the model writes it."""
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def answer(durations: Sequence[float]) -> str:
    """An answer with a call of `wait` for each of so many seconds."""
    parts = [f"{_BETWEEN[at % len(_BETWEEN)]}\n{call('wait', seconds=each)}" for at, each in enumerate(durations)]
    return "\n".join(parts)


def braces(text: str) -> list[int]:
    """How many characters there are up to and with each call's closing brace."""
    ends = []
    at = text.find("\n</tool_call>")
    while at >= 0:
        ends.append(at)
        at = text.find("\n</tool_call>", at + 1)
    return ends


def ideal_s(started: float, steps: Sequence[Tap], text: str, durations: Sequence[float]) -> float:
    """The ideal's seconds for the run with these two steps, which was asked for at `started`."""
    first, second = steps
    results = [first.reached(end) + each for end, each in zip(braces(text), durations, strict=True)]
    return max(first.ended, *results) + (second.ended - second.called) - started
