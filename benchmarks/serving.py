"""ACU against vLLM's own OpenAI server, and against raw AsyncLLM.generate, on the same random 2-layer model.

All servers are up at once; while one is measured the others are stopped (SIGSTOP), and the order turns every round. One
process can be luckier than another for as long as it lives (where its memory lies, for one), so all of them are started
anew several times. The engines get the same arguments and the same preloaded libraries, as vLLM's documentation advises
for a CPU (theirs in the front process too, as LD_PRELOAD is set for the whole command; ACU sets it for its engine alone).
ACU writes its audit log and a line a request; vLLM's server does not log requests. Front CPU is the user + system time
of the process that talks to clients, over the tokens that were streamed.

    python -m benchmarks.serving [--starts 3] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from acu.config.places import default_model_cache
from benchmarks import randommodel
from benchmarks.ending import to_the_end
from benchmarks.report import NotMeasured, Ratio, last_line, percentile, table
from benchmarks.server import OBSTACLES, Server, free_port

MODEL = "bench"
TOKENS = 64
REQUESTS = {1: 24, 16: 256, 64: 768}
ENGINE_ARGS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 32,
    "max_model_len": 2048,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": True,
    "enforce_eager": True,
}
KV_GIB = 1


def servers(folder: Path, model: Path) -> list[Server]:
    """ACU, vLLM's server and the raw engine, not yet started."""
    preload = ":".join(
        [
            *map(str, Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")),
            *map(str, Path(sys.prefix).glob("lib/libiomp5.so")),
        ]
    )
    env = {
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "LD_PRELOAD": preload,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return [acu_server(folder, model), vllm_server(folder, model, env), raw_server(folder, model, env)]


def acu_server(folder: Path, model: Path) -> Server:
    """ACU, with everything switched on."""
    port = free_port()
    served = {
        "model": str(model),
        "served_name": MODEL,
        "max_running": ENGINE_ARGS["max_num_seqs"],
        "kv_cache_mb": KV_GIB * 1024,
        "engine_args": ENGINE_ARGS,
    }
    document = {
        "network": {"bind_addr": f"127.0.0.1:{port}", "unix_socket": str(folder / "acu.sock")},
        "models": {"large": served},
        "daemon": {"audit_log": str(folder / "audit.log")},
    }
    config = folder / "acu.yaml"
    config.write_text(json.dumps(document))
    command = [sys.executable, "-m", "acu", "serve", "-c", str(config)]
    return Server("acu", command, port, "/readyz", folder / "acu.log")


def vllm_server(folder: Path, model: Path, env: dict[str, str]) -> Server:
    """vLLM's own OpenAI server."""
    port = free_port()
    flags: list[str] = []
    for key, value in ENGINE_ARGS.items():
        name = "--" + key.replace("_", "-")
        flags += [name] if value is True else [name, str(value)]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)),
        *("--disable-uvicorn-access-log", *flags),
    ]
    return Server("vllm", command, port, "/health", folder / "vllm.log", env)


def raw_server(folder: Path, model: Path, env: dict[str, str]) -> Server:
    """AsyncLLM.generate with nothing in front of it."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "benchmarks.rawengine", "--port", str(port), "--model", str(model)),
        *("--engine-args", json.dumps(ENGINE_ARGS)),
    ]
    return Server("raw", command, port, "/", folder / "raw.log", env)


def measure(server: Server, concurrency: int, requests: int) -> dict[str, float]:
    """One round of load on one server."""
    seen = server.load(MODEL, concurrency, requests, TOKENS)
    return {
        "tok_s": seen["tokens"] / seen["wall_s"],
        "ttft_p50": percentile(seen["ttft"], 0.5) * 1e3,
        "ttft_p99": percentile(seen["ttft"], 0.99) * 1e3,
        "itl_p50": percentile(seen["itl"], 0.5) * 1e3,
        "itl_p99": percentile(seen["itl"], 0.99) * 1e3,
        "chunks": seen["chunks"] / requests,
        "content_chunks": seen["content_chunks"] / requests,
        "front_cpu_us": seen["cpu_s"] / seen["tokens"] * 1e6,
        "rss_mb": server.rss_mb(),
    }


Figures = dict[tuple[str, int], dict[str, list[float]]]  # by server and concurrency, then by figure: one a round


def run(starts: int, rounds: int) -> Figures:
    """All rounds of all starts."""
    figures: Figures = defaultdict(lambda: defaultdict(list))
    cache = default_model_cache(os.environ) / "smollm2-135m-instruct"
    if not cache.is_dir():
        raise NotMeasured(f"no tokenizer in {cache}: run `acu models pull smollm2-135m-instruct` first")
    for start in range(starts):
        with tempfile.TemporaryDirectory(prefix="acu-bench-") as name:
            folder = Path(name)
            all_servers = servers(folder, randommodel.build(cache, folder / "model"))
            try:
                for server in all_servers[start % 3 :] + all_servers[: start % 3]:
                    server.start()
                    server.wait()
                    measure(server, 16, 64)  # compiled, cached and connected before anything counts
                    server.pause()
                for turn in range(rounds):
                    play_round(all_servers, turn, figures)
                    print(f"start {start + 1}/{starts}, round {turn + 1}/{rounds}: done", file=sys.stderr, flush=True)
            finally:
                for server in all_servers:
                    server.stop()
    return figures


def play_round(all_servers: list[Server], turn: int, figures: Figures) -> None:
    """Each server in turn, at each concurrency, the others stopped."""
    shift = turn % len(all_servers)
    for server in [*all_servers[shift:], *all_servers[:shift]]:
        server.resume()
        for concurrency, requests in REQUESTS.items():
            for key, value in measure(server, concurrency, requests).items():
                figures[server.name, concurrency][key].append(value)
        server.pause()


def main() -> int:
    """Measure, print the tables, and with --json one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3, help="how often all servers are started anew")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after each start")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    try:
        figures = run(args.starts, args.rounds)
    except OBSTACLES as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1

    keys = list(figures["acu", 1])
    for concurrency in REQUESTS:
        rows = [
            [name, *(f"{statistics.median(figures[name, concurrency][key]):.1f}" for key in keys)]
            for name in ("acu", "vllm", "raw")
        ]
        print(table(f"{concurrency} streams, {TOKENS} tokens each, medians of {args.starts * args.rounds} rounds (ms, us, MiB)",
                    ["server", *keys], rows))  # fmt: skip

    def ratio(key: str, concurrency: int, theirs: str = "vllm") -> Ratio:
        return Ratio.of(figures["acu", concurrency][key], figures[theirs, concurrency][key])

    ratios = {
        "front_cpu_ratio_c64": (ratio("front_cpu_us", 64), "0.55 or less"),
        "tok_s_ratio_c16": (ratio("tok_s", 16), "1.1 or more"),
        "tok_s_ratio_c64": (ratio("tok_s", 64), "1.1 or more"),
        "tok_s_vs_raw_c64": (ratio("tok_s", 64, "raw"), "0.9 or more"),
        "ttft_p50_ratio_c16": (ratio("ttft_p50", 16), "0.8 or less"),
        "ttft_p99_ratio_c64": (ratio("ttft_p99", 64), "0.95 or less"),
        "itl_p99_ratio_c64": (ratio("itl_p99", 64), "1.0 or less"),
        "chunks_ratio": (ratio("chunks", 64), "0.95 to 1.05"),
        "front_rss_ratio": (ratio("rss_mb", 64), "1.1 or less"),
        "ttft_p50_ratio_c1": (ratio("ttft_p50", 1), ""),
        "tok_s_ratio_c1": (ratio("tok_s", 1), ""),
    }
    rows = [[key, str(value), goal] for key, (value, goal) in ratios.items()]
    print(table("ACU over vLLM's server: median (lowest to highest round)", ["figure", "ratio", "to reach"], rows))
    if args.json:
        lines: dict[str, object] = {key: value.median for key, (value, _) in ratios.items()}
        lines["spread"] = {key: [value.low, value.high] for key, (value, _) in ratios.items()}
        lines["medians"] = {
            f"{name}_c{concurrency}": {key: statistics.median(values) for key, values in found.items()}
            for (name, concurrency), found in figures.items()
        }
        print(last_line(lines))
    return 0


if __name__ == "__main__":
    sys.exit(to_the_end(main))
