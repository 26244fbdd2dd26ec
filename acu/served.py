"""From the configuration's models to what the service serves: files found, memory checked, engines to build named.

Engines are given as factories that import their module when they are called: the daemon accepts before vLLM is imported.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from acu.config import AcuConfig, GpuConfig, model_role, names_by_key
from acu.errors import ModelError, ModelIncomplete, StartRefused
from acu.hardware import Report
from acu.hardware.probe import memory
from acu.models import LocalModel, Recommended, is_path, locate, recommended_sampling
from acu.refusals import Refusals
from agentflow.config import ModelConfig, SamplingConfig
from agentflow.engine.script import Script
from agentflow.engine.vllm.facts import MachineFacts, read_machine, read_model
from agentflow.engine.vllm.tuning import choose, choose_pooling
from agentflow.errors import EngineStartFailed
from agentflow.messages import Sampling
from agentflow.sampling import settled

MIB = 1 << 20
A10G_MB, A10G_WEIGHTS_MB, A10G_KV_MB = 23_028, 12_288, 8_192  # the reference device, and how it is divided


class Budget(Struct, frozen=True):
    """How the GPU's memory is divided, in MiB."""

    device_mb: int
    weights_mb: int
    kv_cache_mb: int


class Plan(Struct, frozen=True, kw_only=True):
    """One model to serve: its names, its settled configuration and sampling, and its files (None for a scripted one).

    `compiled` is the folder in which the engine's compiler keeps what it made. `ignored` says, a sentence each, which
    values of the model's files cannot be used.
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
    budget: Budget | None = None
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
        sharing = [plan.key for plan in plans if plan.config.engine == "vllm" and plan.config.kv_cache_mb is None]
        plans = tuple(_on_gpu(plan, budget, sharing) for plan in plans)
    check_memory(plans, report, budget)
    return plans


def _on_gpu(plan: Plan, budget: Budget, sharing: list[str]) -> Plan:
    """The plan with its share of the GPU's KV pool."""
    config = plan.config
    if plan.key in sharing:
        config = replace(config, kv_cache_mb=budget.kv_cache_mb // len(sharing))
    return replace(plan, config=config, budget=budget)


def _plan(key: str, model: ModelConfig, config: AcuConfig, refusals: Refusals) -> Plan:
    """The plan of one model, which holds only where `refusals` has got nothing."""
    role = model_role(key, model)
    engine = model.engine or ("vllm" if role == "chat" else "encoder")
    for field in ("chat_template", "script"):
        with refusals.noted():
            check_file(f"models.{key}.{field}", getattr(model, field))
    files, script, recommended = None, Script(), Recommended(SamplingConfig())
    with refusals.noted():
        if engine == "scripted":
            script = read_script(key, model.script)
        else:
            files = find_model(key, model.model, Path(config.gpu.model_cache_dir))
            recommended = recommended_sampling(files)
    chat = role == "chat"
    return Plan(
        key=key,
        names=names_by_key(config.models)[key],
        role=role,
        config=replace(model, role=role, engine=engine),
        files=files,
        script=script,
        sampling=settled(model.sampling, recommended.sampling) if chat else Sampling(),
        grammar_compile_s=config.scheduler.grammar_compile_s,
        # Beside the model cache: the same disk, and under systemd the folder that the unit may write.
        compiled=Path(config.gpu.model_cache_dir).parent / "compiled",
        ignored=recommended.ignored if chat else (),
    )


def check_file(field: str, path: str | None) -> None:
    """Refuse a path of the configuration at which there is no file. Raises StartRefused."""
    if path is not None and not Path(path).is_file():
        raise StartRefused(f"{field}: {path} is not a file; correct the path")


def find_model(key: str, model: str, cache_dir: Path) -> LocalModel:
    """The model's files. Raises StartRefused."""
    try:
        return locate(model, cache_dir)
    except ModelIncomplete as error:
        pulls = "" if is_path(model) else " `acu serve --pull` does so before it starts."
        raise StartRefused(f"models.{key}.model: {error}{pulls}") from error
    except ModelError as error:
        raise StartRefused(f"models.{key}.model: {error}") from error


def read_script(key: str, path: str | None) -> Script:
    """The script of a scripted model; an empty one where no file is named, or none is there. Raises StartRefused."""
    if path is None or not Path(path).is_file():
        return Script()
    try:
        return Script.load(Path(path))
    except EngineStartFailed as error:
        raise StartRefused(f"models.{key}.script: {error}") from error


def gpu_budget(gpu: GpuConfig, report: Report) -> Budget | None:
    """The configured device's memory, divided; None without a GPU. Raises StartRefused."""
    if not report.gpus:
        return None
    device = next((found for found in report.gpus if found.index == gpu.device_id), None)
    if device is None:
        known = ", ".join(f"{found.index} ({found.name})" for found in report.gpus)
        raise StartRefused(f"gpu.device_id: {gpu.device_id} does not exist; there are {known}")
    weights = gpu.weights_mb or device.memory_mb * A10G_WEIGHTS_MB // A10G_MB
    pool = gpu.kv_cache_size_mb or device.memory_mb * A10G_KV_MB // A10G_MB
    if weights + pool > device.memory_mb:
        raise StartRefused(
            f"gpu.weights_mb + gpu.kv_cache_size_mb: {weights} + {pool} MiB do not fit the {device.memory_mb} MiB of "
            f"{device.name}; lower one of them"
        )
    return Budget(device.memory_mb, weights, pool)


def check_memory(plans: tuple[Plan, ...], report: Report, budget: Budget | None) -> None:
    """Refuse models that cannot fit, naming the sizes. Raises StartRefused, with all problems."""
    refusals = Refusals()
    with refusals.noted():
        check_weights(plans, report, budget)
    for plan in plans:
        if plan.files is not None and plan.config.engine == "vllm":
            with refusals.noted():
                check_engine(plan, budget)
    refusals.tell()


def check_weights(plans: tuple[Plan, ...], report: Report, budget: Budget | None) -> None:
    """Refuse weights that are more than there is room for. Raises StartRefused."""
    with_files = [plan for plan in plans if plan.files is not None]
    on_gpu = [plan for plan in with_files if budget is not None and plan.config.engine == "vllm"]
    elsewhere = [plan for plan in with_files if plan not in on_gpu]
    if budget is not None and (need := _weights_mb(on_gpu)) > budget.weights_mb:
        raise StartRefused(
            f"models: the weights of {_listed(on_gpu)} need {need} MiB on the GPU, and gpu.weights_mb is "
            f"{budget.weights_mb}; raise it, or choose smaller models"
        )
    available = report.memory_available // MIB
    if (need := _weights_mb(elsewhere)) > available:
        raise StartRefused(
            f"models: the weights of {_listed(elsewhere)} need {need} MiB of memory, and {available} MiB are available; "
            "choose smaller models, or stop other programs"
        )


def check_engine(plan: Plan, budget: Budget | None) -> None:
    """Ask the engine's own rules whether the model fits. Raises StartRefused."""
    assert plan.files is not None
    try:
        decide = choose_pooling if plan.role == "embed" else choose
        decide(read_model(plan.files.path), plan.config, machine_facts(budget, plan.compiled))
    except EngineStartFailed as error:
        raise StartRefused(f"models.{plan.key}: {error}") from error


def machine_facts(budget: Budget | None, compiled: Path) -> MachineFacts:
    """The machine as the engine must see it now; its compiler keeps what it made in folder `compiled`."""
    _, available = memory()
    if budget is None:
        return read_machine(available, compiled)
    return read_machine(
        available,
        compiled,
        gpu_memory=budget.device_mb * MIB,
        gpu_weights=budget.weights_mb * MIB,
        gpu_kv_cache=budget.kv_cache_mb * MIB,
    )


def _weights_mb(plans: list[Plan]) -> int:
    return sum(plan.files.size_bytes for plan in plans if plan.files is not None) // MIB


def _listed(plans: list[Plan]) -> str:
    return ", ".join(f"models.{plan.key} ({plan.config.model})" for plan in plans)


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
    machine = functools.partial(machine_facts, plan.budget, plan.compiled)
    if plan.role == "embed":
        from agentflow.engine.vllm.pooling import VllmEmbedder

        return VllmEmbedder(path, config, machine)
    from agentflow.engine.vllm.engine import VllmEngine

    return VllmEngine(path, config, machine, plan.grammar_compile_s)
