"""Whether an S3 server that dies takes anything with it, and a lost box comes back: `python -m benchmarks.outage`.

A data plane archives into a real S3 server (SeaweedFS) that this exercise starts, and two tenants work in it all the time:

    1. fill       rows with texts and attributes, records, event logs; everything is archived
    2. outage     the server is killed (SIGKILL) under load and left dead for --seconds: every write is acknowledged, searches
                  are right, the backlog grows, the status says why
    3. drain      it is started again over its folder: the backlog goes by itself, and the archive is what was acknowledged
    4. restore    the data folder is removed, and comes back by the function of `acu data restore`: every row, record and event
                  is there, `verify` is clean, and a set of searches gives the same ids and scores as before

Exit status: 0 everything held, 1 something did not (it is printed), 2 it could not be run, 130 or 143 it was broken off by
Ctrl-C or SIGTERM. Server, data and archive are gone afterwards in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from acu.commands.datarestore import from_bucket
from acu.errors import DataError
from benchmarks.disk import filesystem
from benchmarks.ending import to_the_end
from benchmarks.outagecheck import answers, archive_problems, box_problems, settled, verify_problems
from benchmarks.outageload import LOGS, SIZES, Load
from benchmarks.outagemodel import Model
from benchmarks.outagesearch import LEAST_RECALL, Question, differences, questions, wrong_answers
from benchmarks.outagewatch import Watch, seqs
from benchmarks.report import NotMeasured, last_line, table
from benchmarks.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed
from benchmarks.soaking import DIMENSIONS
from dataplane.cold.bucket import Bucket
from dataplane.cold_config import ColdConfig
from dataplane.config import DataPlaneConfig
from dataplane.errors import DataPlaneError
from dataplane.rows import SearchResult
from dataplane.store import DataPlane, opened
from dataplane.tuning import tune_process

MEMORY_MB = 64
ARCHIVE_EVERY_S = 1.0
STEADY_S = 2.0  # of load before the server is killed, and after its backlog is gone
NOTICE_S = 20.0  # until the archive says that the server is away
DRAIN_S = 180.0  # an attempt may be a minute away when the server comes back
REST_S = 2.5 * ARCHIVE_EVERY_S  # without a run, and there is nothing left to archive
POLL_S = 0.05
ASKED = 8  # questions of each kind and place
SHOWN, SHOWN_LENGTH = 40, 500  # problems, and characters of each
NOT_RUN = 2


@dataclass
class Outcome:
    """What came of it. `why`: what the status said while the server was dead."""

    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    why: str = ""


class Lost(Exception):
    """It makes no sense to go on; the message is a problem."""


class Outage:
    """One exercise in a folder of its own."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self.outcome = Outcome()
        self._data = folder / "data"
        self._server = Seaweed(folder / "server", ends_with_us=True)
        self._seconds = seconds
        self._seed = seed
        self._model = Model(SIZES, DIMENSIONS, LOGS)
        self._asked: list[Question] = []
        self._config = DataPlaneConfig(
            path=str(self._data),
            hot_layer_mem_mb=MEMORY_MB,
            archive_every_s=ARCHIVE_EVERY_S,
            cold=ColdConfig(
                bucket=BUCKET,
                endpoint=self._server.endpoint,
                prefix="exercise/box",
                access_key_id=ACCESS_KEY,
                secret_access_key=SECRET_KEY,
                allow_http=True,
                request_timeout_s=10.0,
            ),
        )

    async def run(self) -> Outcome:
        """All of it. Raises NotMeasured."""
        try:
            await self._start_server()
            async with opened(self._config) as plane:
                before = await self._live(plane)
            await self._restore(before)
        except TimeoutError:
            self.outcome.problems.append("the data plane did not come to rest: graph, full text or archive never end")
        except (Lost, DataPlaneError, DataError) as error:
            self.outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self._server.kill()
        return self.outcome

    async def _start_server(self) -> None:
        self._server.launch()
        await asyncio.to_thread(self._server.wait)

    def _expect(self, held: bool, problem: str) -> None:
        """Note a problem unless this held."""
        if not held:
            self.outcome.problems.append(problem)

    # With the first box

    async def _live(self, plane: DataPlane) -> list[SearchResult]:
        """Fill, outage, drain, compare. Returns the answers of the box."""
        load = Load(plane, self._model, self._seed)
        await load.fill()
        await self._backlog_gone(plane)
        tell(f"filled: {self._model.rows} rows, archived in manifest {plane.cold.status().manifest}")
        watch = Watch(plane)
        try:
            async with watch.watching(), load.running():
                await load.rest(STEADY_S)
                await self._outage(plane, load, watch)
                await self._caught_up(plane)
                await load.rest(STEADY_S)
        finally:
            self._count(load, watch)
        if load.failed:
            raise Lost("the load ended early: what is stored is not known")
        began = time.monotonic()
        await self._backlog_gone(plane)
        self.outcome.figures["drained_to_0_after_load_s"] = time.monotonic() - began
        return await self._compare(plane)

    async def _outage(self, plane: DataPlane, load: Load, watch: Watch) -> None:
        """The server is dead for a while, and the load goes on."""
        await asyncio.to_thread(self._server.kill)
        model, began = self._model, time.monotonic()
        calls, changes, searches = model.calls, model.changes, load.tally.checked
        watch.outage_begins()
        await load.rest(self._seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_S):
                while not watch.failures and not load.failed:
                    await asyncio.sleep(POLL_S)
        changed, status = model.changes - changes, plane.status()
        watch.outage_ends()
        self.outcome.why = status.cold.last_error or ""
        self.outcome.figures |= {
            "outage_s": time.monotonic() - began,
            "acknowledged_in_outage": model.calls - calls,
            "searches_in_outage": load.tally.checked - searches,
            "failed_runs": watch.failures,
        }
        self._expect(model.calls > calls and load.tally.checked > searches, "nothing was done during the outage")
        self._expect(
            status.cold.backlog_rows >= changed > 0,
            f"the backlog is {status.cold.backlog_rows} after {changed} rows were changed without a server",
        )
        self._expect(watch.failures > 0, "no run failed while the server was dead")
        self._expect(
            self._server.endpoint in self.outcome.why,
            f"the status does not say why the archive waits: {self.outcome.why!r}",
        )
        tell(f"dead for {self._seconds:g} s: backlog {status.cold.backlog_rows}; {self.outcome.why}")

    async def _caught_up(self, plane: DataPlane) -> None:
        """The server comes back; wait until all from before is archived, while the load goes on."""
        await self._start_server()
        began, before = time.monotonic(), seqs(plane)
        try:
            async with asyncio.timeout(DRAIN_S):
                while plane.cold.status().backlog_rows > seqs(plane) - before:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Lost(f"the backlog did not drain within {DRAIN_S:g} s: {plane.cold.status().last_error}") from None
        self.outcome.figures["drained_after_s"] = time.monotonic() - began
        tell(f"drained after {time.monotonic() - began:.1f} s")

    async def _backlog_gone(self, plane: DataPlane) -> None:
        """Without load, the archive gets everything by itself. Raises Lost."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while plane.cold.status().backlog_rows:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Lost(
                f"a backlog of {plane.cold.status().backlog_rows} stays: {plane.cold.status().last_error}"
            ) from None

    async def _at_rest(self, plane: DataPlane) -> None:
        """Wait until the backlog is gone and no run was needed for a while: records and logs, which it does not count, are
        archived too.
        """
        await self._backlog_gone(plane)
        runs, since = -1, time.monotonic()
        async with asyncio.timeout(DRAIN_S):
            while time.monotonic() < since + REST_S:
                status = plane.cold.status()
                if status.running or status.runs != runs:
                    runs, since = status.runs, time.monotonic()
                await asyncio.sleep(POLL_S)

    def _count(self, load: Load, watch: Watch) -> None:
        """What load and watch have seen."""
        tally, problems = load.tally, self.outcome.problems
        problems += tally.problems + watch.problems
        self._expect(tally.recall >= LEAST_RECALL, f"the recall of searches under load is {tally.recall:.3f}")
        self.outcome.figures |= {
            "acknowledged": self._model.calls,
            "refused": self._model.refused,
            "changed_rows": self._model.changes,
            "searches_under_load": tally.checked,
            "incomplete_under_load": tally.incomplete,
            "short_under_load": tally.short,
            "recall_under_load": tally.recall,
            "backlog_highest": watch.highest,
        }

    async def _compare(self, plane: DataPlane) -> list[SearchResult]:
        """Box and archive against the model, with nothing going on. Returns the answers."""
        await settled(plane, self._model)
        self._asked = list(questions(self._model, self._seed, ASKED))
        found = await answers(plane, self._asked)
        await self._at_rest(plane)
        problems, compared = await box_problems(plane, self._model)
        problems += wrong_answers(self._model, self._asked, found)
        self.outcome.problems += [f"before the wipe, {problem}" for problem in problems]
        problems, rows = await archive_problems(Bucket(self._config.cold, self._data), plane.rocks, self._data)
        self.outcome.problems += problems
        self._expect(rows == self._model.rows, f"the archive has {rows} rows, not {self._model.rows}")
        self.outcome.figures |= {"compared_in_box": compared, "archived_rows": rows}
        tell(f"archive read: {rows} rows, of {self._model.rows} that were acknowledged")
        return found

    # With the second box

    async def _restore(self, before: list[SearchResult]) -> None:
        """Remove the data, bring them back from the bucket alone, and compare everything."""
        await asyncio.to_thread(shutil.rmtree, self._data)
        began = time.monotonic()
        done = await asyncio.to_thread(from_bucket, self._config, silent)
        restored = time.monotonic()
        async with opened(self._config) as plane:
            ready = time.monotonic()
            problems, compared = await box_problems(plane, self._model)
            await settled(plane, self._model)
            problems += await verify_problems(plane)
            after = await answers(plane, self._asked)
            sent = (await plane.cold.archive_now()).rows
        problems += wrong_answers(self._model, self._asked, after)
        self.outcome.problems += [f"after the restore, {problem}" for problem in problems]
        self._expect(done["rows"] == self._model.rows, f"{done['rows']} rows were restored, not {self._model.rows}")
        self._expect(sent == 0, f"the restored box archived {sent} rows again")
        different, missed = differences(self._asked, before, after)
        self.outcome.problems += different
        self.outcome.figures |= {
            "restored_rows": done["rows"],
            "restored_bytes": done["bytes"],
            "restore_s": restored - began,
            "open_s": ready - restored,
            "compared_after_restore": compared,
            "searches_compared": len(self._asked),
            "differences": len(different),
            "graph_missed_others": missed,
        }
        kinds = Counter(question.kind for question in self._asked)
        tell(
            f"restored: {done['rows']} rows; searches compared: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}"
        )


def tell(line: str) -> None:
    """A line on the way."""
    print(line, flush=True)


def silent(_what: str, _done: int, _total: int) -> None:
    """The restore's progress is not shown."""


ROWS = (
    ("acknowledged writes", "acknowledged", "d"),
    ("  of them while the server was dead", "acknowledged_in_outage", "d"),
    ("refused writes", "refused", "d"),
    ("rows inserted, replaced or deleted", "changed_rows", "d"),
    ("searches checked under load", "searches_under_load", "d"),
    ("  of them while the server was dead", "searches_in_outage", "d"),
    ("  recall@10 of the approximate ones", "recall_under_load", ".4f"),
    ("  with fewer hits: their rows ended meanwhile", "short_under_load", "d"),
    ("server dead (s)", "outage_s", ".1f"),
    ("archiving runs that failed", "failed_runs", "d"),
    ("backlog at its highest (changes)", "backlog_highest", "d"),
    ("drained after (s), under load", "drained_after_s", ".1f"),
    ("backlog 0 after the load ended (s)", "drained_to_0_after_load_s", ".1f"),
    ("rows in the archive, each read once", "archived_rows", "d"),
    ("restored rows", "restored_rows", "d"),
    ("restore (s)", "restore_s", ".2f"),
    ("open after it (s)", "open_s", ".2f"),
    ("rows, records, events compared", "compared_after_restore", "d"),
    ("searches compared", "searches_compared", "d"),
    ("differences", "differences", "d"),
    ("approximate searches that missed another row", "graph_missed_others", "d"),
)


def report(outcome: Outcome) -> str:
    """The table for people. What was not reached is left out."""
    rows = [(name, f"{outcome.figures[key]:{form}}") for name, key, form in ROWS if key in outcome.figures]
    return table("An S3 server that dies under load, and a box that is lost", ("", ""), rows)


def main() -> int:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which the server is dead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="a folder on a real disk; default: the system's for temporary files")
    parser.add_argument("--json", action="store_true", help="a last line with the figures")
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    tune_process()
    try:
        with tempfile.TemporaryDirectory(prefix="outage-", dir=args.dir) as folder:
            kind = filesystem(Path(folder))
            outage = Outage(Path(folder), args.seconds, args.seed)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                outcome = runner.run(outage.run())
    except (NotMeasured, OSError) as error:
        print(f"not run: {error}", file=sys.stderr)
        return NOT_RUN
    print(report(outcome))
    print(f"data, server and archive on {kind}")
    print("\n".join(problem[:SHOWN_LENGTH] for problem in outcome.problems[:SHOWN]))
    verdict = f"{len(outcome.problems)} problems" if outcome.problems else "nothing lost, doubled or different"
    print(f"{verdict}; while the server was dead the status said: {outcome.why}")
    if args.json:
        figures = {key: round(value, 4) for key, value in outcome.figures.items()}
        print(last_line({**figures, "problems": len(outcome.problems)}))
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
