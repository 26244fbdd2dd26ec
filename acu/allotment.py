"""Allotment: from the configuration's models to the plan of the card's memory (acu/hardware/vram.py), and of the node's.

What an engine is told (agentflow/engine/vllm/tuning.py) and what the plan counts come from here alike, the operator's
`engine_args` among them, so that they cannot contradict each other.

The NUMA node's memory. An engine on the GPU keeps its weights on the card and nothing of them on the host: it maps the files,
whose pages are the kernel's to drop again, and copies. What stays is its process, HOST_MB. Measured on a CPU: EngineCore with a
model of 514 MiB in float32 and a pool of 512 has 1,852 MiB of its own, so the process is 826 of them; CUDA's tables and the
pinned buffers of a step's inputs come to that on a GPU, and the rest is room (not measured). An engine on the CPU has weights,
pool and process on the node (RUNTIME_BYTES, with room for a step). The daemon, DAEMON_MB: 605 MiB measured with one such engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from acu.config import AcuConfig, GpuConfig, model_role
from acu.errors import StartRefused
from acu.hardware.placement import NodeBudget, memory_of, node_budget
from acu.hardware.report import Gpu, Node, Report
from acu.hardware.vram import CONTEXT_MB, GRAPHS_MB, Alternative, Card, Demand, MemoryPlan, step_mb, whole_mib
from acu.models.catalogue import Layout, ModelEntry, catalogue
from acu.models.headers import VALUE_BYTES, Weights
from agentflow.config import ModelConfig
from agentflow.engine.vllm.asked import pool_bytes, taken_up
from agentflow.engine.vllm.facts import MachineFacts, ModelFacts
from agentflow.engine.vllm.tuning import MIB, RUNTIME_BYTES, KvCost, dtype_of, kv_cost, step_of
from dataplane.memory import memory_bytes

A10G_MB, A10G_WEIGHTS_MB, A10G_KV_MB = 23_028, 12_288, 8_192  # the reference device, and how it is divided
HOST_MB = 3072  # of the node's memory, an engine on the GPU
DAEMON_MB = 768  # of the node's memory, the daemon beside its hot layer
LEAST_HOT_MB = 64  # what the data plane works with
_A_CARD = MachineFacts(cpus=(), memory_available=0, gpu=True)


class Budget(Struct, frozen=True):
    """How the GPU's memory is divided, in MiB."""

    device_mb: int
    weights_mb: int
    kv_cache_mb: int
    workers_mb: int = 0


class Sized(Struct, frozen=True):
    """A model and what was read of it. `config` has its role and engine settled."""

    key: str
    config: ModelConfig
    facts: ModelFacts
    weights: Weights


def settled_model(key: str, model: ModelConfig) -> ModelConfig:
    """The model with its role and its engine, as configured or by its key."""
    role = model_role(key, model)
    return replace(model, role=role, engine=model.engine or ("vllm" if role == "chat" else "encoder"))


def device_of(gpu: GpuConfig, report: Report) -> Gpu | None:
    """The configured device; None without a GPU. Raises StartRefused when it is not there."""
    device = next((found for found in report.gpus if found.index == gpu.device_id), None)
    if report.gpus and device is None:
        known = ", ".join(f"{found.index} ({found.name})" for found in report.gpus)
        raise StartRefused(f"gpu.device_id: {gpu.device_id} does not exist; there are {known}")
    return device


def gpu_budget(gpu: GpuConfig, report: Report) -> Budget | None:
    """The configured device's memory, divided; None without a GPU. Raises StartRefused."""
    device = device_of(gpu, report)
    if device is None:
        return None
    pool = gpu.kv_cache_size_mb or device.memory_mb * A10G_KV_MB // A10G_MB
    weights = gpu.weights_mb or min(device.memory_mb * A10G_WEIGHTS_MB // A10G_MB, max(device.memory_mb - pool, 0))
    if weights + pool > device.memory_mb:
        raise StartRefused(
            f"gpu.weights_mb + gpu.kv_cache_size_mb: {weights} + {pool} MiB do not fit the {device.memory_mb} MiB of "
            f"{device.name}; lower one of them"
        )
    return Budget(device.memory_mb, weights, pool, gpu.workers_mb)


def card_of(device: Gpu, daemon: int | None = None) -> Card:
    """The device's memory. What the engines of the process `daemon` hold counts as free: it is what is planned."""
    held = device.memory_mb - device.memory_free_mb
    ours = {pid for pid, _ in device.processes if daemon and daemon in _line_of(pid)}
    others = tuple((pid, size) for pid, size in device.processes if pid not in ours)
    planned = sum(size for pid, size in device.processes if pid in ours)
    return Card(device.name, device.memory_mb, max(held - planned, 0), others)


def _line_of(pid: int) -> list[int]:
    """A process and those that it descends from, as far as can be read."""
    line: list[int] = []
    while pid > 1 and pid not in line:
        line.append(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
    return line


def demand_on_gpu(model: Sized, *, shared: bool) -> Demand:
    """What a model takes of the card with the pool of its kv_cache_mb, which `shared` says is its part of the common one."""
    config, facts = taken_up(model.config), model.facts
    running, tokens = step_of(config, gpu=True)
    dtype = dtype_of(facts, config, _A_CARD)
    cost = kv_cost(facts, config, dtype, gpu=True)
    longest = _context(config, facts)
    speaks = config.role != "embed"
    written = "kv_cache_memory_bytes" in config.engine_args
    return Demand(
        key=model.key,
        model=config.model,
        weights_mb=whole_mib(model.weights.held(dtype)),
        kv_mb=whole_mib(pool_bytes(config) or 0),
        own_pool=written or not shared,
        written=written,
        token_bytes=cost.token,
        windowed_bytes=cost.windowed,
        window=cost.window,
        context=longest,
        fixed=config.max_model_len is not None,
        process_mb=CONTEXT_MB + (0 if config.engine_args.get("enforce_eager") else GRAPHS_MB),
        step_mb=step_mb(
            tokens=tokens if speaks else max(tokens, longest),
            rows=running,
            widths=(facts.hidden, facts.intermediate, facts.vocabulary if speaks else 0),
            value_bytes=VALUE_BYTES[dtype],
        ),
        speaks=speaks,
    )


def demand_on_cpu(model: Sized, dtype: str, kv_mb: int) -> Demand:
    """What a model takes of the machine's memory; its engine's process has room for a step in it."""
    config, facts = taken_up(model.config), model.facts
    engine = config.engine == "vllm"
    cost = kv_cost(facts, config, dtype, gpu=False) if engine else KvCost(0)
    return Demand(
        key=model.key,
        model=config.model,
        weights_mb=whole_mib(model.weights.held(dtype)),
        kv_mb=kv_mb,
        own_pool=pool_bytes(config) is not None,
        token_bytes=cost.token or None,
        windowed_bytes=cost.windowed,
        window=cost.window,
        context=_context(config, facts),
        fixed=config.max_model_len is not None,
        process_mb=RUNTIME_BYTES // MIB if engine else 0,
        speaks=config.role != "embed",
    )


def held_bytes(model: Sized) -> int:
    """The weights on the card, bytes."""
    return model.weights.held(dtype_of(model.facts, taken_up(model.config), _A_CARD))


def by_catalogue(key: str, model: ModelConfig, entry: ModelEntry) -> Sized:
    """What the catalogue tells of a model that is not here. Weights that take less than their plain values are packed."""
    layout = entry.layout or Layout("float32", 0, 0, 0, 0)
    packed = entry.installed_bytes < entry.parameters * VALUE_BYTES[layout.dtype]
    facts = ModelFacts(
        path="",
        name=entry.name,
        weights_bytes=entry.installed_bytes,
        weights_dtype=layout.dtype,
        max_model_len=entry.context_tokens,
        kv_width=layout.kv_width,
        eos_token_ids=frozenset(),
        hidden=layout.hidden,
        intermediate=layout.intermediate,
        vocabulary=layout.vocabulary,
    )
    values, kept = (0, entry.installed_bytes) if packed else (entry.parameters, 0)
    return Sized(key, model, facts, Weights(entry.installed_bytes, values, kept))


def alternatives() -> tuple[Alternative, ...]:
    """The catalogue's chat models."""
    return tuple(Alternative(each.name, whole_mib(each.installed_bytes)) for each in catalogue() if each.role == "chat")


def card_plan(card: Card, demands: Iterable[Demand], budget: Budget | None) -> MemoryPlan:
    """The plan of a card, within gpu.weights_mb and beside gpu.workers_mb."""
    limit, workers = (budget.weights_mb, budget.workers_mb) if budget else (None, 0)
    return MemoryPlan(card=card, demands=tuple(demands), weights_limit_mb=limit, workers_mb=workers)


def node_plan(
    config: AcuConfig, nodes: tuple[Node, ...], device: Gpu | None, demands: Iterable[Demand]
) -> NodeBudget | None:
    """How the memory of the node is divided to which the daemon is bound; None where it is not known, or there is none.

    `demands`: of every model that has an engine; on the host, weights and pool count where there is no `device`.
    """
    if config.numa.node is None:
        return None
    known = {node.id: node for node in nodes}
    asked = config.numa.node if config.numa.node != "auto" else device.numa_node if device else None
    memory = memory_of(config.numa, known.get(asked) if asked is not None else nodes[0] if len(nodes) == 1 else None)
    if memory is None:
        return None
    engines = sum(HOST_MB if device and each.process_mb else _on_host(each) for each in demands)
    return node_budget(memory, engines + DAEMON_MB, memory_bytes(config.data_plane) // MIB)


def node_warning(config: AcuConfig, budget: NodeBudget | None) -> str | None:
    """What is to be said of a hot layer that the node has no room for. Raises StartRefused when it is more than all of it."""
    if budget is None or budget.spare_mb >= 0:
        return None
    hot, limit = config.data_plane.hot_layer_mem_mb, config.numa.memory_mb
    if hot is not None and limit is not None and hot > limit:
        raise StartRefused(
            f"data_plane.hot_layer_mem_mb: {hot} is more than all of numa.memory_mb, {limit}; beside the engines "
            f"({budget.engines_mb} MiB with the daemon) {budget.left_mb} are left: lower it"
        )
    least = budget.left_mb >= LEAST_HOT_MB
    what = (
        f"lower it to {budget.left_mb}"
        if least
        else "choose smaller models, or give them more of the node (numa.memory_mb)"
    )
    return (
        f"data_plane.hot_layer_mem_mb: {budget.hot_mb} MiB and the engines' {budget.engines_mb} (with the daemon) are more than "
        f"the {budget.memory_mb} MiB that are there for them on the NUMA node; {what}"
    )


def _on_host(demand: Demand) -> int:
    return demand.weights_mb + demand.kv_mb + demand.process_mb


def _context(config: ModelConfig, facts: ModelFacts) -> int:
    """The longest sequence that is asked for; `hf_overrides` may stretch what the model was made for."""
    asked = config.max_model_len or facts.max_model_len
    return asked if "hf_overrides" in config.engine_args else min(asked, facts.max_model_len)
