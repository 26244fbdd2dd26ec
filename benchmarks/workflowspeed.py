"""The rounds of the headline with one model, and what is made of them.

In each round each side is asked for all its requests at one concurrency before it is the next side's turn, whose order turns
every round; no question is asked twice. Percentiles are of all rounds' requests together (nearest rank), so that p99 of under
100 of them is the slowest; a spread is of the rounds' own.

What is around the engine is a request's seconds less the engine's own, `engine_s`: of ACU from each generation's call of the
engine to its last token; of the split as vLLM's server counts, from the arrival of a generation, with the making of its prompt,
to its last token. As the server counts sums alone, `around` is of means.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks import workflowtables
from benchmarks.agentbench import AgentBench
from benchmarks.report import NotMeasured, Ratio, percentile, table
from benchmarks.server import Server, free_port
from benchmarks.workflowacu import AcuSide, models
from benchmarks.workflowpeers import EXIT, SplitSide
from benchmarks.workflowscript import TEXTS, Parts

FIRST: Final = 10_000  # of the questions' numbers
WARM: Final = 4  # requests that do not count, all at once; fewer where fewer are asked for
LABELS: Final = {"usual": "vs_split", "tuned": "vs_tuned_split", EXIT: "vs_exit_split"}
QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
MB: Final = 1e6


@dataclass
class Played:
    """What one side did at one concurrency: each round's requests, and each round's means a request by name."""

    rounds: list[list[Parts]] = field(default_factory=list)
    means: list[dict[str, float]] = field(default_factory=list)

    def seconds(self, number: int | None = None) -> list[float]:
        """Of the requests of a round, or of all."""
        chosen = self.rounds if number is None else self.rounds[number : number + 1]
        return [request.seconds for requests in chosen for request in requests]

    def part(self, name: str) -> float:
        """The median of a part, in seconds."""
        return float(statistics.median(getattr(request, name) for requests in self.rounds for request in requests))

    def mean(self, name: str) -> float:
        """Over all rounds."""
        return statistics.fmean(means.get(name, 0.0) for means in self.means)

    def around(self, number: int | None = None) -> float:
        """The mean of a request's seconds that are not the engine's, of a round or of all. Raises NotMeasured if none are."""
        engine_s = self.mean("engine_s") if number is None else self.means[number].get("engine_s", 0.0)
        if (seconds := statistics.fmean(self.seconds(number)) - engine_s) <= 0:
            raise NotMeasured("the engine took longer than the requests")
        return seconds


Results = dict[tuple[str, int], Played]
"""By side and concurrency."""


@dataclass(frozen=True)
class Written:
    """Bytes that processes have written so far, to files, pipes and sockets, by the kernel's count (`wchar`)."""

    counts: dict[int, int]

    @classmethod
    def by(cls, processes: Sequence[psutil.Process]) -> Written:
        """One that has ended meanwhile counts nothing."""
        counts = {}
        for process in processes:
            with contextlib.suppress(psutil.Error):
                counts[process.pid] = int(process.io_counters().write_chars)
        return cls(counts)

    def since(self, before: Written) -> int:
        """Bytes between the two."""
        return sum(count - before.counts.get(pid, 0) for pid, count in self.counts.items())


class Rounds:
    """Both sides, filled and warm."""

    def __init__(self, bench: AgentBench, acu: AcuSide, split: SplitSide | None) -> None:
        self._bench = bench
        self._acu = acu
        self._split = split
        self._next = FIRST
        self.results: Results = defaultdict(Played)

    async def play(self, requests: dict[int, int]) -> Results:
        """All rounds, after one that does not count. Raises NotMeasured."""
        sides = ("acu", *self._bench.ways)
        warm = min(WARM, *requests.values())
        for side in sides:
            await self._side(side, warm, warm)
        for number in range(self._bench.rounds):
            shift = number % len(sides)
            for at_once, count in requests.items():
                for side in (*sides[shift:], *sides[:shift]):
                    found, means = await self._side(side, at_once, count)
                    played = self.results[side, at_once]
                    played.rounds.append(found)
                    played.means.append(means)
            self._bench.say(f"round {number + 1}/{self._bench.rounds}")
        return self.results

    async def _side(self, side: str, at_once: int, count: int) -> tuple[list[Parts], dict[str, float]]:
        first, self._next = self._next, self._next + count
        if side == "acu":
            before = Written.by(self._acu.processes())
            answers = await self._acu.play(first, count, at_once)
            written = Written.by(self._acu.processes()).since(before)
            found, means = await self._acu.parts(answers)
        else:
            assert self._split is not None
            with paused(self._acu.server), self._split.running():
                spoken = self._split.spoken()
                before = Written.by(self._split.processes())
                found, means = self._split.play(side, first, count, at_once)
                written = Written.by(self._split.processes()).since(before)
                ended = self._split.spoken(spoken.generations + count * len(TEXTS))
                means["engine_s"] = (ended.seconds - spoken.seconds) / count
                self._split.forget(side, first, count)
        return found, means | {"written": written / count}


@contextlib.contextmanager
def paused(server: Server) -> Iterator[None]:
    """It does nothing until the end."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


async def measure(bench: AgentBench, model: Path, requests: dict[int, int]) -> Results:
    """Start everything with a model, and play. Raises NotMeasured."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workflow-", dir=bench.folder)))
        orders = folder / "orders.csv"
        orders.write_bytes(workflowtables.table())
        service = _service(folder)
        _started(stack, service, 60)
        (folder / "acu").mkdir()
        side = AcuSide(folder / "acu", models(model), orders, service.port)
        side.force("ready")
        _started(stack, side.server, 600)
        async with side:
            passages = await side.fill()
            bench.say(f"ACU is ready with {model.name}, and filled with {len(passages)} passages")
            split = None
            if bench.ways:
                (folder / "split").mkdir()
                split = SplitSide(folder / "split", bench.peers_python, model, orders, service.port)
                with paused(side.server):
                    stack.enter_context(split.started())
                    split.fill(passages)
                bench.say("the split is ready, and filled")
            return await Rounds(bench, side, split).play(requests)


def _started(stack: contextlib.ExitStack, server: Server, timeout_s: float) -> None:
    stack.callback(server.stop)
    server.start()
    server.wait(timeout_s)


def _service(folder: Path) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.workflowservice", "--port", str(port)]
    return Server("the external service", command, port, "/readyz", folder / "service.log")


def ratios(results: Results, ways: Sequence[str]) -> dict[str, Ratio]:
    """How many times faster ACU is, by key: `vs_split_p50:4` and so on; without a number, the worst of the concurrencies."""
    found: dict[str, Ratio] = {}
    for way in ways:
        for name, q in QUANTILES.items():
            key = f"{LABELS[way]}_{name}"
            each = {at_once: _ratio(results, way, at_once, q) for side, at_once in results if side == "acu"}
            found[key] = min(each.values(), key=lambda ratio: ratio.median)
            found |= {f"{key}:{at_once}": ratio for at_once, ratio in each.items()}
    return found


def arounds(results: Results, ways: Sequence[str]) -> dict[str, Ratio]:
    """The same of the mean time around the engine: `around_vs_split_mean:4` and so on."""
    return _of_means("around", _around, results, ways)


def ceilings(results: Results, ways: Sequence[str]) -> dict[str, Ratio]:
    """The most that ACU could reach with no time at all around its engine, of means: `ceiling_vs_split_mean:4` and so on."""
    return _of_means("ceiling", _ceiling, results, ways)


def _of_means(
    name: str, ratio_of: Callable[[Results, str, int], Ratio], results: Results, ways: Sequence[str]
) -> dict[str, Ratio]:
    found: dict[str, Ratio] = {}
    for way in ways:
        key = f"{name}_{LABELS[way]}_mean"
        each = {at_once: ratio_of(results, way, at_once) for side, at_once in results if side == "acu"}
        found[key] = min(each.values(), key=lambda ratio: ratio.median)
        found |= {f"{key}:{at_once}": ratio for at_once, ratio in each.items()}
    return found


def _ceiling(results: Results, way: str, at_once: int) -> Ratio:
    ours, theirs = results["acu", at_once], results[way, at_once]
    rounds = [statistics.fmean(theirs.seconds(at)) / means["engine_s"] for at, means in enumerate(ours.means)]
    return Ratio(statistics.fmean(theirs.seconds()) / ours.mean("engine_s"), min(rounds), max(rounds))


def _around(results: Results, way: str, at_once: int) -> Ratio:
    ours, theirs = results["acu", at_once], results[way, at_once]
    rounds = [theirs.around(at) / ours.around(at) for at in range(len(ours.rounds))]
    return Ratio(theirs.around() / ours.around(), min(rounds), max(rounds))


def _ratio(results: Results, way: str, at_once: int, q: float) -> Ratio:
    ours, theirs = results["acu", at_once], results[way, at_once]
    rounds = [percentile(theirs.seconds(at), q) / percentile(ours.seconds(at), q) for at in range(len(ours.rounds))]
    return Ratio(percentile(theirs.seconds(), q) / percentile(ours.seconds(), q), min(rounds), max(rounds))


COLUMNS: Final[dict[str, Callable[[Played], str]]] = {
    "requests": lambda played: str(len(played.seconds())),
    "p50 ms": lambda played: f"{percentile(played.seconds(), 0.5) * 1e3:.0f}",
    "p99 ms (under 100: the slowest)": lambda played: f"{percentile(played.seconds(), 0.99) * 1e3:.0f}",
    "model": lambda played: f"{played.part('model_s') * 1e3:.0f}",
    "tools alone": lambda played: f"{played.part('tools_s') * 1e3:.0f}",
    "the rest": lambda played: f"{played.part('rest_s') * 1e3:.0f}",
    "serialiser": lambda played: _ms(played, "serialise_s"),
    "storage": lambda played: _ms(played, "storage_s"),
    "checkpoints": lambda played: _ms(played, "saver_s"),
    "embedding": lambda played: _ms(played, "embed_s"),
    "serialised MB": lambda played: f"{played.mean('serialised') / MB:.2f}",
    "written MB": lambda played: f"{played.mean('written') / MB:.1f}",
    "prompt tokens": lambda played: f"{played.mean('prompt_tokens'):.0f}",
}


def _ms(played: Played, name: str) -> str:
    return f"{played.mean(name) * 1e3:.0f}" if any(name in means for means in played.means) else "-"


def rows(results: Results) -> str:
    """What each side took, for people, and in a table of its own what is around the engine."""
    order = sorted(results, key=lambda key: (key[1], key[0] != "acu", key[0] != "usual"))
    cells = [[at_once, side, *(tell(results[side, at_once]) for tell in COLUMNS.values())] for side, at_once in order]
    title = "Each request (ms: p50 of parts, means of meters; model: of acu at the engine, else around the client)"
    around = [[at_once, side, *_means(results[side, at_once])] for side, at_once in order]
    columns = ["at once", "side", "request", "the engine's own", "around it"]
    return table(title, ["at once", "side", *COLUMNS], cells) + "\n" + table("Means, ms", columns, around)


def _means(played: Played) -> list[str]:
    means = (statistics.fmean(played.seconds()), played.mean("engine_s"), played.around())
    return [f"{seconds * 1e3:.0f}" for seconds in means]


def plain(results: Results) -> dict[str, float]:
    """Medians and means of each side, for programs: `acu_p50_ms:4` and so on."""
    found: dict[str, float] = {}
    for (side, at_once), played in results.items():
        found |= {f"{side}_{name}_ms:{at_once}": percentile(played.seconds(), q) * 1e3 for name, q in QUANTILES.items()}
        for name in ("model_s", "tools_s", "rest_s"):
            found[f"{side}_{name}:{at_once}"] = played.part(name)
        for name in sorted({name for means in played.means for name in means}):
            found[f"{side}_{name}:{at_once}"] = played.mean(name)
        found[f"{side}_around_s:{at_once}"] = played.around()
    return found
