"""Entries: what of a finished run is worth remembering. Pure: a run's events in, what to write out.

    turn     the user's last turn and the answer, together: each alone would say little
    result   of a tool that says how long its results hold (`fresh_for_s`); it is gone when they no longer do

Only of runs that came to their end. Long texts are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from agentflow.agents.progress import Progress
from agentflow.agents.record import HANDED_OVER, CallEnded, CallStarted, Event
from agentflow.memory.rows import Entry, fingerprint, memory_id

MOST_USER: Final = 1500  # characters
MOST_ANSWER: Final = 2500
MOST_ARGUMENTS: Final = 500
MOST_RESULT: Final = 1000
MOST_RESULTS: Final = 8  # of one run, the last ones
_DAY_MS: Final = 86_400_000


def entries_of(
    progress: Progress, events: Iterable[Event], fresh_s: Mapping[str, float], ttl_days: float | None
) -> list[Entry]:
    """What to remember of a run, all of whose events `progress` has had. `fresh_s`: seconds that a tool's results hold.

    `ttl_days`: how long a turn is remembered, and a result at most; None: for ever.
    """
    began, ended = progress.began, progress.ended
    if began is None or ended is None or ended.end != "completed":
        return []
    until = None if ttl_days is None else ended.at + int(ttl_days * _DAY_MS)
    found = [_result(progress, *pair, until) for pair in _results(events, fresh_s)][-MOST_RESULTS:]
    user = next((message.content or "" for message in reversed(began.messages) if message.role == "user"), "")
    # What is said before the caller's own calls have their results is no answer.
    answer = "" if ended.why == HANDED_OVER else progress.said_turn().content or ""
    if user.strip() and answer.strip():
        text = f"User: {_cut(user.strip(), MOST_USER)}\nAssistant: {_cut(answer.strip(), MOST_ANSWER)}"
        found.append(
            Entry(
                id=memory_id(progress.run_id, "turn", text),
                kind="turn",
                text=text,
                agent=began.agent,
                run_id=progress.run_id,
                at=ended.at,
                said=fingerprint(user),
                until=until,
            )
        )
    return found


def _results(events: Iterable[Event], fresh_s: Mapping[str, float]) -> Iterable[tuple[CallStarted, CallEnded, float]]:
    started: dict[str, CallStarted] = {}
    for event in events:
        if isinstance(event, CallStarted):
            started[event.call_id] = event
        elif isinstance(event, CallEnded) and not event.is_error:
            call = started.get(event.call_id)
            if call is not None and call.name in fresh_s:
                yield call, event, fresh_s[call.name]


def _result(progress: Progress, call: CallStarted, ended: CallEnded, fresh_s: float, until: int | None) -> Entry:
    assert progress.began is not None
    stale = ended.at + int(1000 * fresh_s)
    text = f"{call.name} {_cut(call.arguments, MOST_ARGUMENTS)} gave: {_cut(ended.text, MOST_RESULT)}"
    return Entry(
        id=memory_id(progress.run_id, "result", f"{call.call_id}\n{text}"),
        kind="result",
        text=text,
        agent=progress.began.agent,
        run_id=progress.run_id,
        at=ended.at,
        until=stale if until is None else min(stale, until),
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "\u2026"
