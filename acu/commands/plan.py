"""`acu doctor --plan`: how the memory of the card is divided among the configuration's models, before any is loaded.

Of this box's card, or of one that it does not have (`--card a10g`, `--card 23028`); without any, of the machine's memory. What
is planned is what `acu serve` checks at its start. A model that is not here yet counts with what the catalogue says of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from acu.allotment import (
    Sized,
    alternatives,
    card_of,
    card_plan,
    demand_on_cpu,
    demand_on_gpu,
    device_of,
    gpu_budget,
    node_plan,
    node_warning,
    settled_model,
)
from acu.commands import exits
from acu.commands.output import out
from acu.config import AcuConfig, load, process_environment
from acu.errors import ConfigError, ModelError, StartRefused
from acu.hardware import Gpu, Report, gpu_present, probe_machine
from acu.hardware.numa import read_nodes
from acu.hardware.placement import NodeBudget
from acu.hardware.vram import CARDS, CONTEXT_MB, GRAPHS_MB, MIB, Card, Demand, MemoryPlan, known_card, problem
from acu.models import by_name, locate
from acu.models.headers import read_weights
from agentflow.config import ModelConfig
from agentflow.engine.vllm.facts import MachineFacts, ModelFacts, read_machine, read_model
from agentflow.engine.vllm.tuning import choose, dtype_of
from agentflow.errors import EngineStartFailed
from dataplane.truth.inuse import user_of

HEAD = ("MODEL", "WEIGHTS", "KV", "TOKENS", "FULL SEQUENCES", "ENGINE", "ONE STEP")


class Drawn(Struct, frozen=True):
    """A plan as it is shown. `on_card`: of a card, else of the machine's memory. `problems` keep an ACU from starting."""

    plan: MemoryPlan
    on_card: bool
    node: NodeBudget | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """`--plan` and `--card`, for the command that shows it."""
    parser.add_argument(
        "--plan", action="store_true", help="how the card's memory is divided among the models, and nothing else"
    )
    parser.add_argument(
        "--card",
        metavar="CARD",
        help=f"with --plan: for a card that this box does not have: its memory in MiB, or {', '.join(CARDS)}",
    )


def run_plan(args: argparse.Namespace) -> int:
    """Print the plan. Its exit code is that of a start: 2 where it would be refused. Raises ConfigError."""
    card = known_card(args.card) if args.card else None
    if args.card and card is None:
        raise ConfigError([f"--card: {args.card!r} is neither a number of MiB nor one of {', '.join(CARDS)}"])
    config = load(process_environment(), file=args.config, gpu_present=card is not None or gpu_present()).config
    drawn = draw(config, probe_machine(), card)
    out(as_json(drawn) if args.json else as_text(drawn))
    return exits.REFUSED if drawn.problems else exits.OK


def draw(config: AcuConfig, report: Report, card: Card | None = None) -> Drawn:
    """The plan of `card`, else of the configured device, else of the machine's memory. Raises StartRefused for no such device."""
    if card is not None:
        gpu = Gpu(config.gpu.device_id, card.name, card.total_mb, card.usable_mb)
        report = replace(report, gpus=(gpu,))
    problems: list[str] = []
    notes: list[str] = []
    device, budget = device_of(config.gpu, report), None
    try:
        budget = gpu_budget(config.gpu, report)
    except StartRefused as refused:
        problems += refused.problems
    models = {key: settled_model(key, model) for key, model in config.models.items()}
    sharing = [key for key, model in models.items() if model.engine == "vllm" and model.kv_cache_mb is None]
    demands = []
    for key, model in models.items():
        if model.engine == "scripted":
            continue
        if device is not None and model.engine == "vllm":
            pool = budget.kv_cache_mb // len(sharing) if budget and key in sharing else 0
            found = _on_card(key, model, config, pool, notes, problems)
        else:
            found = _on_host(key, model, config, report, notes, problems)
        demands += [found] if found else []
    on_card = [each for each in demands if each.process_mb] if device else demands
    if device is not None:
        daemon = user_of(Path(config.data_plane.path)) if device.processes else None
        plan = card_plan(card_of(device, daemon), on_card, budget)
    else:
        held = (report.memory_total - report.memory_available) // MIB
        plan = MemoryPlan(card=Card("memory", report.memory_total // MIB, held), demands=tuple(on_card))
    if device is not None and (text := problem(plan, alternatives())):
        problems.append(text)
    node = node_plan(config, read_nodes(), device, demands)
    try:
        notes += filter(None, [node_warning(config, node)])
    except StartRefused as refused:
        problems += refused.problems
    return Drawn(plan, device is not None, node, tuple(problems), tuple(notes))


def _read(key: str, model: ModelConfig, config: AcuConfig) -> Sized:
    """What is known of a model by its files. Raises ModelError or EngineStartFailed."""
    files = locate(model.model, Path(config.gpu.model_cache_dir))
    return Sized(key, model, read_model(files.path), read_weights(files.path))


def _unread(key: str, model: ModelConfig, why: Exception, notes: list[str], problems: list[str]) -> Demand | None:
    """What the catalogue says of a model that is not here; None for one that nobody knows."""
    entry = by_name(model.model)
    if entry is None:
        problems.append(f"models.{key}.model: {why}")
        return None
    notes.append(
        f"models.{key}: {entry.name} is not here, so its size is the catalogue's; acu models pull {entry.name}"
    )
    return Demand(key=key, model=model.model, weights_mb=-(-entry.installed_bytes // MIB), read=False)


def _on_card(
    key: str, model: ModelConfig, config: AcuConfig, pool: int, notes: list[str], problems: list[str]
) -> Demand | None:
    shared = model.kv_cache_mb is None
    settled = replace(model, kv_cache_mb=pool or None) if shared else model
    try:
        return demand_on_gpu(_read(key, settled, config), shared=shared)
    except (ModelError, EngineStartFailed) as error:
        demand = _unread(key, model, error, notes, problems)
    if demand is None:
        return None
    return replace(demand, kv_mb=settled.kv_cache_mb or 0, own_pool=not shared, process_mb=CONTEXT_MB + GRAPHS_MB)


def _on_host(
    key: str, model: ModelConfig, config: AcuConfig, report: Report, notes: list[str], problems: list[str]
) -> Demand | None:
    try:
        sized = _read(key, model, config)
    except (ModelError, EngineStartFailed) as error:
        return _unread(key, model, error, notes, problems)
    if model.engine != "vllm":
        return demand_on_cpu(sized, "float32", 0)
    machine = read_machine(report.memory_available, Path())
    dtype = dtype_of(sized.facts, model, machine)
    try:
        pool = _pool_on_cpu(sized.facts, model, replace(machine, weights=sized.weights.held(dtype)))
    except EngineStartFailed as error:
        problems.append(f"models.{key}: {error}")
        pool = model.kv_cache_mb or 0
    return demand_on_cpu(sized, dtype, pool)


def _pool_on_cpu(facts: ModelFacts, model: ModelConfig, machine: MachineFacts) -> int:
    """MiB that the engine would choose now."""
    return int(choose(facts, model, machine).args.get("kv_cache_memory_bytes") or 0) // MIB


def as_json(drawn: Drawn) -> str:
    """The plan as one JSON object; sizes in MiB."""
    plan = drawn.plan
    document = {
        "card": msgspec.to_builtins(plan.card) | {"usable_mb": plan.card.usable_mb, "gpu": drawn.on_card},
        "models": [_row_json(demand) for demand in plan.demands],
        "weights_mb": plan.weights_mb,
        "weights_limit_mb": plan.weights_limit_mb,
        "kv_mb": plan.kv_mb,
        "engines_mb": plan.processes_mb,
        "workers_mb": plan.workers_mb,
        "scratch_mb": plan.scratch_mb,
        "step_mb": plan.step_mb,
        "engines_on_gpu": plan.engines_on_gpu if drawn.on_card else 0,
        "fits": not drawn.problems,
        "problems": drawn.problems,
        "notes": drawn.notes,
        "node": _node_json(drawn.node),
    }
    return json.dumps(document, indent=2)


def _row_json(demand: Demand) -> dict[str, Any]:
    known: dict[str, Any] = msgspec.to_builtins(demand)
    sequences = round(demand.sequences, 2) if demand.sequences is not None else None
    return known | {"kv_tokens": demand.kv_tokens, "served_context": demand.served_context, "sequences": sequences}


def _node_json(node: NodeBudget | None) -> dict[str, int] | None:
    return msgspec.to_builtins(node) | {"left_mb": node.left_mb, "spare_mb": node.spare_mb} if node else None


def as_text(drawn: Drawn) -> str:
    """The plan for people."""
    plan, card = drawn.plan, drawn.plan.card
    holders = "the driver and other programs" if drawn.on_card else "what runs"
    lines = [
        f"{card.name}: {card.total_mb} MiB, of which {holders} hold {card.held_mb}: {card.usable_mb} to divide",
        "",
    ]
    total = ("all", plan.weights_mb, plan.kv_mb, "", "", plan.processes_mb, plan.step_mb or "-")
    lines += _table([HEAD, *map(_row, plan.demands), tuple(map(str, total))])
    lines.append("")
    if plan.weights_limit_mb is not None:
        lines.append(f"weights  {plan.weights_mb} of {plan.weights_limit_mb} MiB that gpu.weights_mb allows")
    if plan.workers_mb:
        lines.append(f"workers  {plan.workers_mb} MiB")
    needed = f", of which one step of every engine needs {plan.step_mb}" if drawn.on_card and plan.step_mb else ""
    lines.append(f"scratch  {plan.scratch_mb} MiB remain{needed}")
    if drawn.on_card:
        lines.append(f"engines  {plan.engines_on_gpu} on the GPU")
    if drawn.node is not None:
        node = drawn.node
        lines.append(
            f"node     {node.memory_mb} MiB, less {node.engines_mb} of engines and daemon: {node.left_mb} for the hot layer, "
            f"which may take {node.hot_mb}"
        )
    lines += ["", *(f"note: {note}" for note in drawn.notes)] if drawn.notes else []
    lines += ["", *(f"does not fit: {text}" for text in drawn.problems)] if drawn.problems else ["", "It fits."]
    return "\n".join(lines)


def _row(demand: Demand) -> tuple[str, ...]:
    sequences = (
        f"{demand.sequences:.1f} of {demand.served_context}" if demand.sequences is not None and demand.kv_mb else "-"
    )
    return (
        f"{demand.key} ({demand.model.rstrip('/').rpartition('/')[2]})",
        f"{'' if demand.read else '~'}{demand.weights_mb}",
        str(demand.kv_mb or "-"),
        str(demand.kv_tokens) if demand.kv_tokens is not None and demand.kv_mb else "-",
        sequences,
        str(demand.process_mb or "-"),
        str(demand.step_mb or "-"),
    )


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows in columns: the first to the left, figures to the right."""
    kept = list(rows)
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in kept
    ]
