"""From the configuration's models to what the service serves: files found, memory checked, engines to build named.

Engines are given as factories that import their module when they are called: the daemon accepts before vLLM is imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from acu.allotment import (
    Budget,
    Sized,
    alternatives,
    card_of,
    card_plan,
    demand_on_gpu,
    device_of,
    gpu_budget,
    held_bytes,
    node_plan,
    node_warning,
    settled_model,
)
from acu.config import AcuConfig, model_role, names_by_key
from acu.config.document import read_regular
from acu.errors import ModelError, ModelIncomplete, StartRefused
from acu.hardware import Report
from acu.hardware.cards import mps_runs
from acu.hardware.numa import read_nodes
from acu.hardware.probe import memory
from acu.hardware.vram import Demand, MemoryPlan, problem
from acu.models import LocalModel, Recommended, is_path, locate, recommended_sampling
from acu.models.headers import Weights, read_weights
from acu.refusals import Refusals, few
from agentflow.config import ModelConfig, SamplingConfig
from agentflow.engine.script import Script
from agentflow.engine.vllm.asked import pool_bytes
from agentflow.engine.vllm.facts import MachineFacts, read_machine, read_model
from agentflow.engine.vllm.tuning import MIB, RUNTIME_BYTES, choose, choose_pooling, dtype_of
from agentflow.errors import EngineStartFailed
from agentflow.messages import Sampling
from agentflow.sampling import settled
from dataplane.truth.inuse import user_of


class Plan(Struct, frozen=True, kw_only=True):
    """One model to serve: its names, its settled configuration and sampling, and its files (None for a scripted one).

    `compiled` is the folder in which the engine's compiler keeps what it made. `ignored` says, a sentence each, which
    values of the model's files cannot be used. `weights` is what the files hold, `held` the bytes of it in the engine, and
    `demand` what an engine on a card takes there; `shared` tells that its KV pool is a part of the common one. `limit_mb` is
    the most that MPS is to let it take of the card, where MPS runs.
    """

    key: str
    names: tuple[str, ...]
    role: str
    config: ModelConfig
    files: LocalModel | None
    script: Script
    sampling: Sampling
    grammar_compile_s: float
    compiled: Path
    weights: Weights = Weights(0, 0, 0)
    held: int = 0
    demand: Demand | None = None
    budget: Budget | None = None
    shared: bool = False
    limit_mb: int | None = None
    ignored: tuple[str, ...] = ()


def scripted(models: Mapping[str, ModelConfig], script: str | None) -> dict[str, ModelConfig]:
    """The same models, all played by the scripted engine.

    The first chat model is served as `scripted`, the first embedding model as `scripted-embed`, others as
    `scripted-KEY`; every name that the real ones have stays an alias.
    """
    taken: set[str] = set()
    names = names_by_key(models)
    changed: dict[str, ModelConfig] = {}
    for key, model in models.items():
        first = "scripted" if model_role(key, model) == "chat" else "scripted-embed"
        name = first if first not in taken else f"scripted-{key}"
        taken.add(name)
        aliases = tuple(alias for alias in names[key] if alias != name)
        changed[key] = replace(
            model, engine="scripted", served_name=name, aliases=aliases, script=script or model.script
        )
    return changed


def plan_models(config: AcuConfig, report: Report) -> tuple[Plan, ...]:
    """Find every model's files and settle what its configuration leaves open.

    Raises StartRefused, with every problem of every model; whether they fit together is looked at once there is none.
    """
    refusals = Refusals()
    budget: Budget | None = None
    with refusals.noted():
        budget = gpu_budget(config.gpu, report)
    plans = tuple(_plan(key, model, config, refusals) for key, model in config.models.items())
    refusals.tell()
    if budget is not None:
        sharing = [plan.key for plan in plans if plan.config.engine == "vllm" and pool_bytes(plan.config) is None]
        plans = tuple(_on_gpu(plan, budget, sharing) for plan in plans)
    weighed = []
    for plan in plans:
        with refusals.noted():
            weighed.append(_weighed(plan))
    refusals.tell()
    check_memory(weighed, config, report)
    return tuple(_limited(weighed, config, report))


def _on_gpu(plan: Plan, budget: Budget, sharing: list[str]) -> Plan:
    """The plan with its share of the GPU's KV pool."""
    config = plan.config
    if plan.key in sharing:
        config = replace(config, kv_cache_mb=budget.kv_cache_mb // len(sharing))
    return replace(plan, config=config, budget=budget, shared=plan.key in sharing)


def _limited(plans: Sequence[Plan], config: AcuConfig, report: Report) -> Sequence[Plan]:
    """The plans with what MPS is to let each engine take."""
    planned = card_memory(plans, config, report)
    if planned is None:
        return plans
    return [replace(plan, limit_mb=planned.limit_mb(plan.demand)) if plan.demand else plan for plan in plans]


def _weighed(plan: Plan) -> Plan:
    """The plan with what the model's engine will hold. Raises StartRefused where that is not known."""
    if plan.files is None or plan.config.engine == "encoder":
        return replace(plan, held=plan.weights.held("float32"))
    try:
        facts = read_model(plan.files.path)
    except EngineStartFailed as error:
        raise StartRefused(f"models.{plan.key}: {error}") from error
    if plan.budget is None:
        dtype = dtype_of(facts, plan.config, facts_for(plan))
        return replace(plan, held=plan.weights.held(dtype))
    sized = Sized(plan.key, plan.config, facts, plan.weights)
    return replace(plan, held=held_bytes(sized), demand=demand_on_gpu(sized, shared=plan.shared))


def _plan(key: str, model: ModelConfig, config: AcuConfig, refusals: Refusals) -> Plan:
    """The plan of one model, which holds only where `refusals` has got nothing."""
    model = settled_model(key, model)
    role, engine = model.role or "chat", model.engine
    for field in ("chat_template", "script"):
        with refusals.noted():
            check_file(f"models.{key}.{field}", getattr(model, field))
    files, script, recommended, weights = None, Script(), Recommended(SamplingConfig()), Weights(0, 0, 0)
    with refusals.noted():
        if engine == "scripted":
            script = read_script(key, model.script)
        else:
            files = find_model(key, model.model, Path(config.gpu.model_cache_dir))
            recommended = recommended_sampling(files)
            weights = weigh(key, files)
    chat = role == "chat"
    return Plan(
        key=key,
        names=names_by_key(config.models)[key],
        role=role,
        config=model,
        files=files,
        script=script,
        sampling=settled(model.sampling, recommended.sampling) if chat else Sampling(),
        grammar_compile_s=config.scheduler.grammar_compile_s,
        # Beside the model cache: the same disk, and under systemd the folder that the unit may write.
        compiled=Path(config.gpu.model_cache_dir).parent / "compiled",
        weights=weights,
        ignored=recommended.ignored if chat else (),
    )


def check_file(field: str, path: str | None) -> None:
    """Refuse a path of the configuration at which there is no file that can be read. Raises StartRefused."""
    if path is None:
        return
    try:
        read_regular(Path(path))
    except OSError as error:
        raise StartRefused(f"{field}: {path} cannot be read: {error.strerror}; correct the path") from error


def find_model(key: str, model: str, cache_dir: Path) -> LocalModel:
    """The model's files. Raises StartRefused."""
    try:
        return locate(model, cache_dir)
    except ModelIncomplete as error:
        pulls = "" if is_path(model) else " `acu serve --pull` does so before it starts."
        raise StartRefused(f"models.{key}.model: {error}{pulls}") from error
    except ModelError as error:
        raise StartRefused(f"models.{key}.model: {error}") from error


def weigh(key: str, files: LocalModel) -> Weights:
    """What the model's files hold. Raises StartRefused for one that is damaged, or cannot be read."""
    try:
        return read_weights(files.path)
    except ModelError as error:
        raise StartRefused(f"models.{key}.model: {error}") from error


def read_script(key: str, path: str | None) -> Script:
    """The script of a scripted model; an empty one where no file is named, or none can be read. Raises StartRefused."""
    try:
        if path is None:
            return Script()
        read_regular(Path(path))
        return Script.load(Path(path))
    except OSError:  # which `check_file` tells
        return Script()
    except EngineStartFailed as error:
        raise StartRefused(f"models.{key}.script: {error}") from error


def check_memory(plans: Sequence[Plan], config: AcuConfig, report: Report) -> None:
    """Refuse models that cannot fit, naming the sizes. Raises StartRefused, with all problems."""
    refusals = Refusals()
    with refusals.noted():
        check_weights(plans, report)
    with refusals.noted():
        check_card(plans, config, report)
    refusals.tell()
    for plan in plans:
        if plan.files is not None and plan.config.engine == "vllm":
            with refusals.noted():
                check_engine(plan)
    refusals.tell()


def check_weights(plans: Sequence[Plan], report: Report) -> None:
    """Refuse weights that are more than there is memory for, of engines that are not on a card. Raises StartRefused."""
    elsewhere = [plan for plan in plans if plan.files is not None and plan.demand is None]
    available = report.memory_available // MIB
    if (need := sum(plan.held for plan in elsewhere) // MIB) > available:
        raise StartRefused(
            f"models: the weights of {_listed(elsewhere)} need {need} MiB of memory, and {available} MiB are available; "
            "choose smaller models, or stop other programs"
        )


def check_card(plans: Sequence[Plan], config: AcuConfig, report: Report) -> None:
    """Refuse engines that the card has no room for, saying what would fit. Raises StartRefused."""
    planned = card_memory(plans, config, report)
    if planned is not None and (found := problem(planned, alternatives())):
        raise StartRefused(found)


def card_memory(plans: Sequence[Plan], config: AcuConfig, report: Report) -> MemoryPlan | None:
    """How the card's memory is divided; None where no engine is on one."""
    demands = [plan.demand for plan in plans if plan.demand is not None]
    device, budget = device_of(config.gpu, report), gpu_budget(config.gpu, report)
    if device is None or not demands:
        return None
    daemon = user_of(Path(config.data_plane.path)) if device.processes else None
    return card_plan(card_of(device, daemon), demands, budget)


def check_engine(plan: Plan) -> None:
    """Ask the engine's own rules whether the model fits. Raises StartRefused."""
    assert plan.files is not None
    try:
        decide = choose_pooling if plan.role == "embed" else choose
        decide(read_model(plan.files.path), plan.config, facts_for(plan))
    except EngineStartFailed as error:
        raise StartRefused(f"models.{plan.key}: {error}") from error


def hot_warning(plans: Sequence[Plan], config: AcuConfig, report: Report, root: Path = Path("/")) -> str | None:
    """What is to be said of a hot layer that the engines leave no room on its node. Raises StartRefused, see node_warning."""
    device, nodes = device_of(config.gpu, report), read_nodes(root)
    if device is None and len(nodes) < 2 and config.numa.memory_mb is None:
        return None  # one node is all of the memory, of which there may be too little, but never on the wrong side
    return node_warning(config, node_plan(config, nodes, device, map(_on_host, plans)))


def _on_host(plan: Plan) -> Demand:
    """What a plan's engine takes of the machine's memory; on the CPU at least so much."""
    if plan.demand is not None:
        return plan.demand
    pool, process = (plan.config.kv_cache_mb or 0, RUNTIME_BYTES) if plan.config.engine == "vllm" else (0, 0)
    weights = -(-plan.held // MIB)
    return Demand(key=plan.key, model=plan.config.model, weights_mb=weights, kv_mb=pool, process_mb=process // MIB)


def machine_facts(
    budget: Budget | None, compiled: Path, held: int | None = None, demand: Demand | None = None
) -> MachineFacts:
    """The machine as an engine must see it now, whose compiler keeps what it made in folder `compiled`.

    `held` are the bytes of its weights and `demand` what it takes of the card, by the plan; None: it goes by the files' size.
    """
    _, available = memory()
    if budget is None:
        return replace(read_machine(available, compiled), weights=held)
    facts = read_machine(
        available,
        compiled,
        gpu_memory=budget.device_mb * MIB,
        gpu_weights=budget.weights_mb * MIB,
        gpu_kv_cache=budget.kv_cache_mb * MIB,
    )
    beside = (demand.process_mb + demand.step_mb) * MIB if demand is not None else None
    return replace(facts, weights=held, gpu_scratch=beside)


def facts_for(plan: Plan, mps: Callable[[], bool] = mps_runs) -> MachineFacts:
    """The machine as the engine of the plan must see it now. `mps` tells whether the daemon of MPS runs."""
    limit = plan.limit_mb * MIB if plan.limit_mb is not None and mps() else None
    return replace(machine_facts(plan.budget, plan.compiled, plan.held or None, plan.demand), gpu_limit=limit)


def _listed(plans: list[Plan]) -> str:
    return few([f"models.{plan.key} ({plan.config.model})" for plan in plans])


def build(plan: Plan) -> Any:
    """The ServedModel of a plan. Imports what the service itself needs, and no engine."""
    from agentflow.service import ServedModel

    path = plan.files.path if plan.files else None
    created = int(path.stat().st_mtime) if path else 0
    return ServedModel(
        name=plan.names[0],
        aliases=plan.names[1:],
        role=plan.role,
        config=plan.config,
        path=path,
        created=created,
        tokenizer=functools.partial(_tokenizer, path),
        engines=(functools.partial(_engine, plan),),
        sampling=plan.sampling,
    )


def _tokenizer(path: Path | None) -> Any:
    from agentflow.tokenizer import ByteTokenizer, FileTokenizer

    return ByteTokenizer() if path is None else FileTokenizer.load(path)


def _engine(plan: Plan) -> Any:
    """A fresh engine for the plan. Runs on the event loop; the slow imports are the engine's own, in its `start`."""
    config, path = plan.config, plan.files.path if plan.files else None
    if config.engine == "scripted":
        asked = {"max_model_len": config.max_model_len, "max_running": config.max_running}
        limits = {name: limit for name, limit in asked.items() if limit is not None}
        if plan.role == "embed":
            from agentflow.engine.scripted_embedder import ScriptedEmbedder

            return ScriptedEmbedder(plan.script, **limits)
        from agentflow.engine.scripted import ScriptedEngine

        return ScriptedEngine(plan.script, **limits)
    assert path is not None
    if config.engine == "encoder":
        from agentflow.engine.encoder import Encoder

        return Encoder(path, config)
    machine = functools.partial(facts_for, plan)
    if plan.role == "embed":
        from agentflow.engine.vllm.pooling import VllmEmbedder

        return VllmEmbedder(path, config, machine)
    from agentflow.engine.vllm.engine import VllmEngine

    return VllmEngine(path, config, machine, plan.grammar_compile_s)
