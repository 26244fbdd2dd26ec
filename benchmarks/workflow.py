"""The headline: one request that needs a model, memory, documents, a service and large tables, in ACU and in the usual split.

A request makes three generations, five lookups by key, two vector searches over 1,000 passages, one external call of 250 ms, and
12 MB of intermediate results (workflowscript.py, workflowtables.py). It is asked 1, 4 and 8 at once:

    acu      the whole daemon, asked as a user asks it: over HTTP, streamed, `agent/desk`, stored runs (workflowacu.py)
    usual    LangGraph over vLLM's own OpenAI server, Chroma's server and Redis, all on the loopback; tables are the artifacts
             of tools' messages, as LangChain's documentation teaches, and checkpoints hold them (workflowsplit.py)
    tuned    the same, but tables are raw bytes in Redis, and nothing large is in the graph's state
    exit     only where asked for: as tuned, with checkpoints at a request's end alone

What bears on the result: the model writes the slowest calls first, the best order for whoever starts a call before the answer is
whole, as ACU does and the split does not. ACU's router is off (`routing: False`): every request has all tools and the one model.
The split's application is one process; ACU's tools on tables are processes of their own. Which choices about checkpoints were
taken, and which were not and why, is in workflowsplit.py.

Same model, template, tools, texts (which are forced on both sides), embedder and engine arguments. Whoever is not asked is
stopped (SIGSTOP). ACU's time is that of an HTTP client; the split's is that of its application, which no client asks.

    vs_split_p50, vs_split_p99               usual over acu: how many times faster ACU is, at the worst of the concurrencies
    vs_split_p50:1, :4, :8                   at each of them
    vs_tuned_split_p50, ...                  tuned over acu, of equal weight
    around_vs_split_mean, ...:1, :4, :8      the same of what the product answers for: a request's seconds less the engine's own
    around_vs_tuned_split_mean, ...
    ceiling_vs_split_mean, ...:1, :4, :8     usual over ACU's engine alone: what no ACU could pass, were it to cost nothing itself
    ceiling_vs_tuned_split_mean, ...

A p99 is the nearest rank: of so few requests (under 100 a side and concurrency) it is the slowest of them, and of one it is the
p50. `around` is of means, not of p50: vLLM's server counts sums alone (/metrics, from a generation's arrival there to its last
token, with the making of the prompt, which is in the split's favour). Of ACU it is from the call of the engine to the last token.

Parts of a request: `model` while a generation goes on (of ACU seen at its engine; of the split around the model's client, so
with LangChain's work, HTTP, JSON and the front of vLLM's server, which are not in `the rest` then), `tools alone` while calls do
and no generation, `the rest` is neither: serialisation, storage of runs and checkpoints, HTTP, and the loop itself. Of the split
its meters say more (they overlap with the parts, and with one another): the serialiser of its checkpoints, waiting for Redis and
Chroma, for checkpoints, for the embedder.

`serialised`: of the split what that serialiser made; of ACU the run's log as the API gives it (JSON; the log itself is shorter)
and the body of the answer. `written`: all bytes that the side's processes gave to the kernel by write calls, to files, pipes and
sockets (`wchar` in /proc; sends of Chroma's server are not in it, nor what passes by shared memory), the engine's own processes
left out on both sides (of ACU those that its status names).

Two models: a random one of 2 layers, so that what is around the model shows, and SmolLM2-135M (keys with `smollm2_` in front).

    python -m benchmarks.workflow [--rounds 2] [--model two-layer smollm2] [--ways usual tuned] [--dir FOLDER] [--json]

The folder must be on a real disk. The split is in .venv-bench (scripts/setup --bench), but for a redis-server where no wheel has
one. Exits with 1 only if it could not measure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp
import uvloop

from acu.config.places import default_model_cache
from benchmarks import agentmodel, workflowspeed
from benchmarks.agent import SMOLLM2, obstacles
from benchmarks.agentbench import AgentBench
from benchmarks.disk import refuse_memory
from benchmarks.ending import to_the_end
from benchmarks.report import NotMeasured, last_line, table
from benchmarks.server import OBSTACLES
from benchmarks.workflowacu import CONTEXT, EMBEDDER
from benchmarks.workflowpeers import EXIT, WAYS, missing
from benchmarks.workflowspeed import Results, arounds, ceilings, plain, ratios, rows

REQUESTS = {"two-layer": {1: 10, 4: 16, 8: 16}, "smollm2": {1: 1, 4: 4, 8: 8}}
"""A round's, by model and by how many at once."""
ROUNDS = {"smollm2": 1}
"""At most."""
GOAL = "3 or more"
ERRORS = (*OBSTACLES, aiohttp.ClientError)


def two_layers(tokenizer_from: Path, folder: Path) -> Path:
    """The random model, which reads as much as SmolLM2 does."""
    agentmodel.build(tokenizer_from, folder)
    about = folder / "config.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"max_position_embeddings": CONTEXT}))
    return folder


def with_tools(model: Path, folder: Path) -> Path:
    """A copy of a model with the template of the random one: its own knows no tools, and all ways are to read the same."""
    shutil.copytree(model, folder, symlinks=False)
    (folder / "chat_template.jinja").write_text(agentmodel.TEMPLATE)
    return folder


def headline(results: Results, ways: Sequence[str], goal: str) -> str:
    """What was measured with one model, for people."""
    cells = [[key, str(ratio), goal] for key, ratio in ratios(results, ways).items()]
    title = "The split over ACU: all requests (lowest to highest round); without a number: the worst"
    around = [[key, str(ratio)] for key, ratio in (arounds(results, ways) | ceilings(results, ways)).items()]
    return "\n".join(
        [
            rows(results),
            table(title, ["figure", "times faster", "to reach"], cells),
            table(
                "The same of means around the engine, and against ACU's engine alone",
                ["figure", "times faster"],
                around,
            ),
        ]
    )


def one_line(found: dict[str, Results], ways: Sequence[str], notes: dict[str, str]) -> str:
    """The same for programs."""
    values: dict[str, object] = {}
    spreads: dict[str, list[float]] = {}
    for name, results in found.items():
        front = "" if name == "two-layer" else f"{name}_"
        for key, ratio in (ratios(results, ways) | arounds(results, ways) | ceilings(results, ways)).items():
            values[front + key] = ratio.median
            spreads[front + key] = [ratio.low, ratio.high]
        values |= {front + key: value for key, value in plain(results).items()}
    return last_line(values | {"spread": spreads, "notes": notes})


async def run(bench: AgentBench, models: Sequence[str]) -> dict[str, Results]:
    """One model after the other. Raises NotMeasured."""
    found = {}
    for name in models:
        make = with_tools if name == "smollm2" else two_layers
        model = make(bench.smollm2, bench.folder / name)
        at_most = replace(bench, rounds=min(bench.rounds, ROUNDS.get(name, bench.rounds)))
        found[name] = await workflowspeed.measure(at_most, model, REQUESTS[name])
        bench.say(f"{name}: done")
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, choices=range(1, 20), metavar="1-19")
    parser.add_argument("--model", nargs="+", choices=REQUESTS, default=list(REQUESTS), help=", ".join(REQUESTS))
    ways = (*WAYS, EXIT)
    parser.add_argument("--ways", nargs="*", choices=ways, default=list(WAYS), metavar="WAY", help=", ".join(ways))
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where data is kept; a real disk")
    parser.add_argument("--bench-python", type=Path, default=Path(".venv-bench/bin/python"), help="with the split")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, print the tables, and with --json one line of figures."""
    args = parse()
    cache = default_model_cache(os.environ)
    notes: dict[str, str] = {}
    try:
        for model in (SMOLLM2, EMBEDDER):
            if not (cache / model).is_dir():
                raise NotMeasured(f"no model in {cache / model}: run `acu models pull {model}` first")
        if args.ways and (why := missing(args.bench_python)):
            raise NotMeasured(why)
        notes["file system"] = refuse_memory(args.dir)
        with tempfile.TemporaryDirectory(prefix="acu-bench-", dir=args.dir) as name:
            bench = AgentBench(
                folder=Path(name),
                smollm2=cache / SMOLLM2,
                peers_python=args.bench_python,
                rounds=args.rounds,
                ways=tuple(args.ways),
                notes=notes,
            )
            found = uvloop.run(run(bench, args.model))
    except (*ERRORS, BaseExceptionGroup) as error:
        for each in obstacles(error):
            print(f"not measured: {each}", file=sys.stderr)
        return 1
    for model, results in found.items():
        print(f"\n{model}\n{headline(results, args.ways, GOAL if model == 'two-layer' else '')}")
    if args.json:
        print(one_line(found, args.ways, notes))
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
