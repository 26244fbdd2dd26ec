"""What the engine's choices rest on: facts about the machine and about a model's folder, read without vLLM or torch."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from agentflow.engine.vllm.kvshape import kv_shape
from agentflow.errors import EngineStartFailed

_TCMALLOC_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


class MachineFacts(Struct, frozen=True):
    """The machine as an engine finds it.

    `cpus` are those that this process may use, one of each physical core. Memory in bytes. `gpu_*` are None without a GPU:
    the whole of its memory, and the operator's shares for the weights and the KV pool. `preloads` are libraries that make
    the CPU engine faster, as far as they are installed; `cache` is a folder where compiled code may be kept between starts.
    `node` is the NUMA node on which all of those CPUs lie, where there are several nodes.

    `weights` and `gpu_scratch` are of one engine, by the plan of memory: what its weights take as it holds them (None: as
    many as its files have), and what it needs beside weights and KV pool (context, graphs, one step). `gpu_limit` is the most
    that MPS is to let it take of the card (None: there is no MPS).
    """

    cpus: tuple[int, ...]
    memory_available: int
    cpu_flags: frozenset[str] = frozenset()
    preloads: tuple[str, ...] = ()
    cache: str | None = None
    node: int | None = None
    gpu: bool = False
    gpu_memory: int | None = None
    gpu_weights: int | None = None
    gpu_kv_cache: int | None = None
    weights: int | None = None
    gpu_scratch: int | None = None
    gpu_limit: int | None = None


class ModelFacts(Struct, frozen=True):
    """A model's folder. `kv_width` is the number of values that one token leaves in the KV pool, over all layers; `kv_windowed`
    of them stay for the last `kv_window` tokens alone.

    `hidden`, `intermediate` and `vocabulary` are widths of what one token is while a step computes it (0: not known).
    """

    path: str
    name: str
    weights_bytes: int
    weights_dtype: str
    max_model_len: int
    kv_width: int
    eos_token_ids: frozenset[int]
    hidden: int = 0
    intermediate: int = 0
    vocabulary: int = 0
    kv_windowed: int = 0
    kv_window: int = 0


def read_machine(
    memory_available: int,
    cache: Path,
    *,
    gpu_memory: int | None = None,
    gpu_weights: int | None = None,
    gpu_kv_cache: int | None = None,
) -> MachineFacts:
    """The machine now, with `memory_available` bytes that may be taken without swapping.

    `cache` is a folder for compiled code. `gpu_memory` (bytes) tells that there is a GPU; the others are the operator's
    shares of it.
    """
    cpus = one_cpu_a_core()
    return MachineFacts(
        cpus=cpus,
        node=one_node_of(cpus),
        memory_available=memory_available,
        cpu_flags=_cpu_flags(),
        preloads=() if gpu_memory else _preloads(),
        cache=str(cache),
        gpu=gpu_memory is not None,
        gpu_memory=gpu_memory,
        gpu_weights=gpu_weights,
        gpu_kv_cache=gpu_kv_cache,
    )


def one_cpu_a_core(topology: Path = Path("/sys/devices/system/cpu")) -> tuple[int, ...]:
    """The CPUs that this process may use, in order, one of each physical core: the last of its siblings, as vLLM's on x86."""
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores[siblings.read_text(encoding="ascii").strip()] = cpu
        except OSError:
            cores[str(cpu)] = cpu
    return tuple(sorted(cores.values()))


def one_node_of(cpus: tuple[int, ...], devices: Path = Path("/sys/devices/system")) -> int | None:
    """The NUMA node on which all of the CPUs lie; None where they lie on several, or the machine has but one, or nobody tells."""
    if len(list(devices.glob("node/node[0-9]*"))) < 2:
        return None
    nodes = {node.name for cpu in cpus for node in (devices / "cpu" / f"cpu{cpu}").glob("node[0-9]*")}
    return int(nodes.pop().removeprefix("node")) if len(nodes) == 1 else None


def read_model(path: Path) -> ModelFacts:
    """The model in folder `path`. Raises EngineStartFailed when it is none that vLLM can load."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineStartFailed(f"{path} holds no model: config.json cannot be read ({error})") from error
    try:
        return _facts(path, config)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise EngineStartFailed(f"{path} holds no model: config.json has a value that is none ({error})") from error


def _facts(path: Path, config: dict[str, Any]) -> ModelFacts:
    text = config.get("text_config") or config
    shape = kv_shape(text)
    return ModelFacts(
        path=str(path),
        name=path.name,
        weights_bytes=sum(file.stat().st_size for file in path.glob("*.safetensors")),
        weights_dtype=str(next((found for each in (text, config) for found in _dtypes(each)), "float32")),
        max_model_len=_max_model_len(text, path / "sentence_bert_config.json"),
        kv_width=shape.width,
        eos_token_ids=_eos_token_ids(config, path / "generation_config.json"),
        hidden=int(text.get("hidden_size") or 0),
        intermediate=_intermediate(text),
        vocabulary=int(text.get("vocab_size") or 0),
        kv_windowed=shape.windowed,
        kv_window=shape.window,
    )


def _dtypes(config: dict[str, Any]) -> list[Any]:
    """The types that a configuration names, by its newer name first."""
    return [config[name] for name in ("dtype", "torch_dtype") if config.get(name)]


def _intermediate(config: dict[str, Any]) -> int:
    """The widest that a token becomes between two projections: of the experts that see it, where there are experts."""
    dense = _widest(config.get("intermediate_size"))
    experts = _widest(config.get("num_experts_per_tok"))
    return max(dense, experts * (_widest(config.get("moe_intermediate_size")) or dense))


def _widest(value: Any) -> int:
    """A size that some models give for each layer."""
    return max(map(int, value), default=0) if isinstance(value, list) else int(value or 0)


def _max_model_len(config: dict[str, Any], sentence_config: Path) -> int:
    """The longest sequence in tokens: what the positions allow, and what a sentence encoder was made for."""
    positions = int(config.get("max_position_embeddings") or 2048)
    try:
        made_for = json.loads(sentence_config.read_text(encoding="utf-8")).get("max_seq_length")
    except (OSError, ValueError):
        made_for = None
    return min(positions, int(made_for or positions))


def _eos_token_ids(config: dict[str, Any], generation_config: Path) -> frozenset[int]:
    ids: set[int] = set()
    try:
        generation = json.loads(generation_config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        generation = {}
    for source in (config, generation):
        eos = source.get("eos_token_id")
        ids.update([eos] if isinstance(eos, int) else eos or [])
    return frozenset(ids)


def _cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _preloads() -> tuple[str, ...]:
    """Paths of tcmalloc and of Intel's OpenMP (x86 only), in the order in which they must be preloaded."""
    allocators = [path for folder in _TCMALLOC_FOLDERS for path in sorted(Path(folder).glob("libtcmalloc_minimal.so*"))]
    found = allocators[:1]
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if platform.machine() == "x86_64" and openmp.exists():
        found.append(openmp)
    return tuple(str(path) for path in found)
