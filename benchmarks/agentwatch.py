"""Watch: looks at ACU's own counts, in its process, many times a second: which seats are taken, and what is left at work.

In one turn of the loop nothing else happens, so that a look sees all counts at the same moment, which nobody outside can. The
sums of all looks, and the last look, are in `watch.json` of the folder, anew every WRITTEN_S, while its file `watched` is there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from agentflow.engine.protocol import EngineStats
from agentflow.service import Service

LOOK_S = 0.005
WRITTEN_S = 0.1
TENANT = "default"


class Look(Struct, frozen=True, kw_only=True):
    """The counts of one moment, `time.monotonic()`.

    `going` runs, of which `speaking` have a step of their model's under way; `seats` of the scheduler that are taken, and
    `queued` who wait for one; `tasks` of the loop by what they run. `engine`: sequences that it was asked for
    (`outstanding`), and what it said of itself at its last step, when `kv_tokens` of its cache were in use.
    """

    at: float
    going: int
    speaking: int
    seats: int
    queued: int
    engine: EngineStats
    kv_tokens: int
    tasks: dict[str, int] = {}

    @property
    def held(self) -> bool:
        """Whether a seat, or a sequence of the engine's, belongs to no run that speaks: who speaks has it, or is in the queue."""
        return max(self.seats, self.engine.outstanding) > self.speaking - self.queued

    @property
    def excess(self) -> int:
        """How many sequences the engine still counts that are over for ACU."""
        return max(0, self.engine.running + self.engine.waiting - self.engine.outstanding)


class Sums(Struct, kw_only=True):
    """Over all looks: `quiet` ones, at which runs went on and none spoke; `held` ones.

    `late_steps`: see Lateness. `late_s`: by how much looks came
    later than they should have, which is how long the loop's turns took; `latest_s`: the most; `busiest_s`: the most that the
    loop's thread computed between two looks, which other processes on the machine do not lengthen.

    `alone`: looks at which no run went on and the engine had one sequence, and had made a step with it; `alone_sequences` and
    `alone_kv_tokens`: the most that it counted then.
    """

    looks: int = 0
    quiet: int = 0
    held: int = 0
    late_steps: int = 0
    late_s: float = 0.0
    latest_s: float = 0.0
    busiest_s: float = 0.0
    alone: int = 0
    alone_sequences: int = 0
    alone_kv_tokens: int = 0


class Lateness:
    """The most steps of the engine in a row that counted a sequence which was over for ACU before they began. Pure.

    0: what is over is out of the engine with its next step. The step that is under way when a sequence is over may count it;
    so whatever is over since the look before the one that saw the last step end is not late. Between two looks, one that is
    over and one that begins are not told apart: that alone can make a step late that was not.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._row = 0
        self._step_at = 0.0
        self._outstanding = 0
        self._over = 0  # since the last step ended

    def add(self, look: Look) -> None:
        """The next look."""
        over = max(0, self._outstanding - look.engine.outstanding)
        self._outstanding = look.engine.outstanding
        self._over += over
        if look.engine.last_progress_at != self._step_at:
            self._step_at = look.engine.last_progress_at
            self._row = self._row + 1 if look.excess > self._over else 0
            self.steps = max(self.steps, self._row)
            self._over = over  # perhaps while the next step was under way


class Watched(Struct, frozen=True, kw_only=True):
    """What the file has."""

    sums: Sums
    last: Look


class Watch:
    """Of one service, into one folder."""

    def __init__(self, service: Service, folder: Path) -> None:
        self._service = service
        self._file = folder / "watch.json"
        self._wanted = folder / "watched"
        self._sums = Sums()
        self._lateness = Lateness()
        self._alone_since = math.inf
        self._computed_s = time.thread_time()

    async def run(self) -> None:
        """Look, and write, while it is wanted."""
        written = due = 0.0
        while True:
            look = self.look()
            self._add(look, max(0.0, look.at - due) if due else 0.0)
            if look.at - written > WRITTEN_S:
                if not self._wanted.exists():
                    return
                written = look.at
                self._write(msgspec.structs.replace(look, tasks=_tasks()))
            due = look.at + LOOK_S
            await asyncio.sleep(LOOK_S)

    def look(self) -> Look:
        """The counts of now."""
        status, runs = self._service.status(), self._service.agents
        engine = status.models[0].engines[0]
        size = engine.info.kv_cache_tokens if engine.info is not None else None
        lives = [runs.live(TENANT, run_id) for run_id in runs.ids(TENANT)]
        return Look(
            at=time.monotonic(),
            going=runs.going,
            speaking=sum(live is not None and live.progress.speaking for live in lives),
            seats=status.running,
            queued=status.queued,
            engine=engine.stats,
            kv_tokens=round(engine.stats.kv_cache_usage * (size or 0)),
        )

    def _add(self, look: Look, late_s: float) -> None:
        sums = self._sums
        sums.looks += 1
        sums.quiet += look.going > 0 and look.speaking == 0
        sums.held += look.held
        sums.late_s += late_s
        sums.latest_s = max(sums.latest_s, late_s)
        self._add_alone(look)
        now = time.thread_time()
        sums.busiest_s = max(sums.busiest_s, now - self._computed_s)
        self._computed_s = now
        self._lateness.add(look)
        sums.late_steps = self._lateness.steps

    def _add_alone(self, look: Look) -> None:
        sums = self._sums
        if look.going or look.engine.outstanding != 1:
            self._alone_since = math.inf
            return
        self._alone_since = min(self._alone_since, look.at)
        if look.engine.last_progress_at > self._alone_since:  # before that it tells of the step before
            sums.alone += 1
            sums.alone_sequences = max(sums.alone_sequences, look.engine.running + look.engine.waiting)
            sums.alone_kv_tokens = max(sums.alone_kv_tokens, look.kv_tokens)

    def _write(self, look: Look) -> None:
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(Watched(sums=self._sums, last=look)))
        new.replace(self._file)


async def watched(service: Service, folder: Path) -> None:
    """Watch whenever there is a file `watched` in the folder."""
    while True:
        if (folder / "watched").exists():
            await Watch(service, folder).run()
        await asyncio.sleep(WRITTEN_S)


def _tasks() -> dict[str, int]:
    """The loop's tasks, by the names of their coroutines."""
    return dict(Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks()))
