"""The headline's request: what is asked, what the model is made to say, what both sides are filled with, and the sums. Pure.

Three generations: nine calls (`collect`, one external call, two vector searches, five lookups by key), two calls on what
`collect` gave (`refine` and `summarise`), and the answer. The model writes calls without a word around them, as most do, those
that take longest first; and a short answer. What it writes takes both sides' engines the same time. HANDLE stands for the
handle of the table, which is another in every request: whoever forces the text puts the last handle of the conversation there.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

HANDLE: Final = "{handle}"
A_HANDLE: Final = re.compile(r"\bh_[0-9a-f]{8,32}\b")
LOOKUPS: Final = ("profile", "preferences", "session", "prices", "policy")
SEARCHES: Final = (
    "What is said about late deliveries to the coast?",
    "Which orders may be sent back without a reason?",
)
EXTERNAL: Final = "get_weather"
TABLE_CALLS: Final = ("refine", "summarise")
CALLS: Final = len(LOOKUPS) + len(SEARCHES) + 2 + len(TABLE_CALLS)
PASSAGES: Final = 1000
"""Of some 95 tokens; 100 is the least that a vector store can be told to cut to."""
A_DOCUMENT: Final = 50  # passages
FOUND: Final = 5  # passages a search
HEAD: Final = 256  # bytes of a table that the model reads
CLOSING: Final = (
    "The orders to the coast are late because of the storm, and may be sent back. The rest is in the table."
)


def call(tool: str, /, **arguments: object) -> str:
    """A call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


TEXTS: Final = (
    "\n".join(
        [
            call("collect"),
            call(EXTERNAL, city="Rostock"),
            *(call("file_search", query=query, max_results=FOUND) for query in SEARCHES),
            *(call("memory_read", name=name) for name in LOOKUPS),
        ]
    ),
    "\n".join(call(name, table=HANDLE) for name in TABLE_CALLS),
    CLOSING,
)
_WORDS: Final = (
    "order delivery coast harbour storm late early customer refund return parcel price discount region north south depot van "
    "driver policy reason invoice weight stock article market season contract notice term fee"
)


def question(number: int) -> str:
    """What a user asks; no two ask the same."""
    return (
        f"Case {number}: which of my open orders are late, why, and what may I send back? Make me a table of the rest."
    )


def said(template: str, conversation: str) -> str:
    """A text with the conversation's last handle in it, if it asks for one. Raises ValueError where there is none."""
    if HANDLE not in template:
        return template
    handles = A_HANDLE.findall(conversation)
    if not handles:
        raise ValueError("no tool has given a handle")
    return template.replace(HANDLE, handles[-1])


def values() -> dict[str, str]:
    """What the lookups find: some 300 characters each."""
    source = random.Random(1)
    return {name: f"{name}: {' '.join(source.choices(_WORDS.split(), k=44))}"[:300] for name in LOOKUPS}


def documents(count: int = PASSAGES) -> list[str]:
    """What the vector searches look through, as files of A_DOCUMENT paragraphs; each is a passage, and no two are the same."""
    source = random.Random(2)
    notes = [f"Note {at}. {' '.join(source.choices(_WORDS.split(), k=84)).capitalize()}." for at in range(count)]
    return ["\n\n".join(notes[at : at + A_DOCUMENT]) for at in range(0, count, A_DOCUMENT)]


def weather(city: str) -> bytes:
    """What the external service answers: some 2 KB of JSON."""
    hours = [{"hour": at, "wind_kmh": 40 + at % 9, "rain_mm": at % 5, "sky": "storm"} for at in range(32)]
    return json.dumps({"city": city, "hours": hours}).encode()


class Parts(NamedTuple):
    """Seconds of one request: in all, while the model spoke, while only tools ran, and what is left."""

    seconds: float
    model_s: float
    tools_s: float
    rest_s: float


Span = tuple[float, float]


def parts(whole: Span, models: Sequence[Span], tools: Sequence[Span]) -> Parts:
    """Divide a request by its generations and calls, as moments of one clock."""
    seconds = whole[1] - whole[0]
    model_s = _covered(models)
    tools_s = _covered([*models, *tools]) - model_s
    return Parts(seconds=seconds, model_s=model_s, tools_s=tools_s, rest_s=seconds - model_s - tools_s)


def _covered(spans: Sequence[Span]) -> float:
    """Seconds that lie in at least one of them."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
