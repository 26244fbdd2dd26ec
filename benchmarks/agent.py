"""Agents: tools that start while the model speaks, prompts that stay in the KV cache, and what the loop itself costs.

A real vLLM on the CPU, whose texts are forced (tapped.py). What each figure is, is said where it is measured:

    speed      agentspeed.py      one answer with three calls, beside other ways to run it; 2-layer random model
    dispatch   agentdispatch.py   from a closing brace to the tool's first line; the same model
    many       agentmany.py       fifty runs at once, and then half of them cancelled; the 2-layer model
    cache      agentcache.py      six steps: cached tokens, time to the first token; SmolLM2
    steps      agentsteps.py      the loop's overhead; no engine
    router     agentrouting.py    decisions and accuracy (routing.py), and the tokens that they spare

    python -m benchmarks.agent [--rounds 3] [--only PART ...] [--ways WAY ...] [--durations S ...] [--dir FOLDER] [--json]

The folder must be on a real disk. The frameworks are in .venv-bench (scripts/setup --bench); where they are not, that is said,
and the rest is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import openai
import uvloop

from acu.config.places import default_model_cache
from agentflow.errors import AgentFlowError
from agentflow.tokenizer import FileTokenizer
from benchmarks import agentcache, agentdispatch, agentmany, agentmodel, agentrouting, agentspeed, agentsteps
from benchmarks.agentbench import MIXED, AgentBench
from benchmarks.disk import refuse_memory
from benchmarks.ending import to_the_end
from benchmarks.report import NotMeasured, last_line, spread, table
from benchmarks.server import OBSTACLES
from dataplane.errors import DataPlaneError

PARTS = ("speed", "dispatch", "many", "cache", "steps", "router")
WAYS = (*agentspeed.LOOPS, *agentspeed.FRAMEWORKS)
DURATIONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SMOLLM2 = "smollm2-135m-instruct"
SMOLLM2_CONTEXT = 8192
GOALS = {
    "overlap_efficiency": "0.97 or more",
    **{f"vs_{way}": "" for way in WAYS},
    **{f"ideal_vs_{way}": "" for way in WAYS},
    "vs_of_ideal": "0.95 or more",
    "kv_reuse_of_possible": "1.0",
    "kv_reuse": "",
    "ttft_reuse_ratio": "0.25 or less",
    "step_overhead_p50_ms": "under 2",
    "step_overhead_p99_ms": "under 10",
    "dispatch_p50_ms": "",
    "dispatch_p99_ms": "under 5",
    "many_lost_events": "0",
    "many_slots_held": "0",
    "many_left": "0",
    "cancel_abort_p99_ms": "under 50",
    "cancel_abort_max_ms": "under 50",
    "cancel_late_steps": "0",
    "router_p99_ms": "under 25",
    "router_accuracy": "0.9 or more",
    "router_over_majority": "0.1 or more",
    "router_over_keywords": "0.1 or more",
    "large_tokens_saved": "",
    "large_tokens_saved_share": "",
}
ERRORS = (*OBSTACLES, AgentFlowError, DataPlaneError, openai.OpenAIError)


async def run(bench: AgentBench, args: argparse.Namespace) -> None:
    """Every part that is wanted, one engine of ACU's at a time."""
    only = args.only or PARTS
    if "steps" in only:
        await agentsteps.measure(bench, FileTokenizer.load(bench.smollm2), args.runs)
    if "router" in only:
        await agentrouting.measure(bench)
    if {"speed", "dispatch", "many"} & set(only):
        model = agentmodel.build(bench.smollm2, bench.folder / "two-layers")
        with bench.host(model, 2048) as host:
            if "dispatch" in only:
                await agentdispatch.measure(bench, host, args.answers)
            if "speed" in only:
                await agentspeed.measure(bench, host, model)
            if "many" in only:
                await agentmany.measure(bench, host, args.at_once)
    if "cache" in only:
        with bench.host(bench.smollm2, SMOLLM2_CONTEXT) as host:
            await agentcache.measure(bench, host, args.start_tokens)


def ways(asked: Sequence[str], python: Path, notes: dict[str, str]) -> tuple[str, ...]:
    """The ways to measure: those that were asked for, or all that can be. Raises NotMeasured for one that cannot."""
    why = agentspeed.missing(python) if not asked or set(asked) & set(agentspeed.FRAMEWORKS) else None
    if why is None:
        return tuple(asked) or WAYS
    if asked:
        raise NotMeasured(f"{', '.join(agentspeed.FRAMEWORKS)}: {why}")
    notes["frameworks"] = f"left out: {why}"
    return agentspeed.LOOPS


def tables(bench: AgentBench) -> str:
    """What was measured, for people."""
    rows = [[key, spread(bench.figures[key], ".3f"), goal] for key, goal in GOALS.items() if key in bench.figures]
    parts = [table("Median (lowest to highest round)", ["figure", "value", "to reach"], rows), *bench.tables]
    if bench.notes:
        parts.append(table("How", ["what", ""], [[what, how] for what, how in bench.notes.items()]))
    return "\n".join(parts)


def one_line(bench: AgentBench) -> str:
    """The same for programs."""
    lines: dict[str, object] = {key: statistics.median(values) for key, values in bench.figures.items()}
    lines["spread"] = {key: [min(values), max(values)] for key, values in bench.figures.items()}
    lines["notes"] = bench.notes
    return last_line(lines)


def obstacles(error: BaseException) -> list[BaseException]:
    """What a group of errors is made of. Raises what is no obstacle but a defect."""
    if isinstance(error, BaseExceptionGroup):
        return [each for part in error.exceptions for each in obstacles(part)]
    if isinstance(error, ERRORS):
        return [error]
    raise error


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 20), metavar="1-19")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[], metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--mixed", type=float, nargs=3, default=MIXED, metavar="S", help="of the headline's tools")
    parser.add_argument(
        "--durations", type=float, nargs="*", default=DURATIONS, metavar="S", help="of three equal tools"
    )
    parser.add_argument("--short", action="store_true", help="leave out the durations over 1 s")
    parser.add_argument("--answers", type=int, default=100, help="of the part `dispatch`, four calls each")
    parser.add_argument("--runs", type=int, default=100, help="of the part `steps`, twelve steps each")
    parser.add_argument("--at-once", type=int, default=50, help="runs, of the part `many`")
    parser.add_argument("--start-tokens", type=int, default=agentcache.START_TOKENS, help="of the part `cache`")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where data is kept; a real disk")
    parser.add_argument("--bench-python", type=Path, default=Path(".venv-bench/bin/python"), help="with the frameworks")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, print the tables, and with --json one line of figures."""
    args = parse()
    smollm2 = default_model_cache(os.environ) / SMOLLM2
    notes: dict[str, str] = {}
    try:
        if not smollm2.is_dir():
            raise NotMeasured(f"no model in {smollm2}: run `acu models pull {SMOLLM2}` first")
        notes["file system"] = refuse_memory(args.dir)
        with tempfile.TemporaryDirectory(prefix="acu-bench-", dir=args.dir) as name:
            bench = AgentBench(
                folder=Path(name),
                smollm2=smollm2,
                peers_python=args.bench_python,
                rounds=args.rounds,
                mixed=tuple(args.mixed),
                durations=tuple(each for each in args.durations if not args.short or each <= 1.0),
                ways=ways(args.ways, args.bench_python, notes),
                notes=notes,
            )
            uvloop.run(run(bench, args))
    except (*ERRORS, BaseExceptionGroup) as error:
        for each in obstacles(error):
            print(f"not measured: {each}", file=sys.stderr)
        return 1
    print(tables(bench))
    if args.json:
        print(one_line(bench))
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
