"""How long it takes to read one event of the history by its stream and number, the shard's handle being cached.

One log shard of 20,000 events in 100 streams that take turns, each event a tool call of a few hundred bytes with real
text. Events are asked for at random and compared with what was stored. `warm_read_dropped_*` is the same with the file's
pages dropped before every read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from benchmarks.bench import Bench
from benchmarks.disk import PageCache
from benchmarks.report import NotMeasured, percentile
from dataplane.state.history import History
from dataplane.state.logshards import LogEvent

EVENTS = 20_000
STREAMS = 100
READS = 1000  # a round
DROPPED = 100  # a round
TENANT = "bench"
BEGAN_MS = 1_750_000_000_000
KEYS = ("warm_read_p50_ms",)


def event(number: int, texts: list[str]) -> LogEvent:
    """The `number`th of all."""
    said = [texts[(number * 3 + part) % len(texts)] for part in range(3)]
    payload = {"type": "function_call_output", "call_id": f"call_{number:024d}", "name": "recall", "output": said}
    stream = f"session-{number % STREAMS:04d}"
    return LogEvent(TENANT, stream, number // STREAMS, "tool", BEGAN_MS + number, json.dumps(payload).encode())


def measure(bench: Bench) -> None:
    """Rounds of reads from one shard."""
    events = [event(number, bench.corpus.texts) for number in range(EVENTS)]
    rng = np.random.default_rng(11)
    with bench.scratch("history") as folder:
        history = History.open(folder / "history")
        try:
            history.append_shard(events)
            cache = PageCache(folder)
            timed(history, events[:1], None)
            for number in range(bench.rounds):
                picked = [events[at] for at in rng.integers(0, EVENTS, READS)]
                took, cold = timed(history, picked, None), timed(history, picked[:DROPPED], cache.drop)
                bench.add(
                    warm_read_p50_ms=percentile(took, 0.5) * 1000,
                    warm_read_p99_ms=percentile(took, 0.99) * 1000,
                    warm_read_dropped_p50_ms=percentile(cold, 0.5) * 1000,
                    warm_read_dropped_p99_ms=percentile(cold, 0.99) * 1000,
                )
                bench.say(f"log events read, round {number + 1}")
        finally:
            history.close()


def timed(history: History, events: list[LogEvent], before: Callable[[], None] | None) -> list[float]:
    """Seconds that each read took; `before` is called before each. Raises NotMeasured for a wrong answer."""
    took = []
    for wanted in events:
        if before is not None:
            before()
        began = time.perf_counter()
        found = history.read(wanted.tenant, wanted.stream, wanted.seq)
        took.append(time.perf_counter() - began)
        if found != wanted:
            raise NotMeasured(f"event {wanted.seq} of {wanted.stream} was read as {found}")
    return took
