"""The plan of memory as `acu doctor --plan` shows it: as text for people, or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from acu.hardware.placement import NodeBudget
from acu.hardware.vram import Demand, MemoryPlan

HEAD = ("MODEL", "WEIGHTS", "KV", "TOKENS", "FULL SEQUENCES", "ENGINE", "ONE STEP")
NO_CARD = (
    "No GPU{}: what is planned is the machine's memory. `acu doctor --card a10g` plans for a card that is not here."
)
NONE_ON_CARD = "No model has an engine on the card: they are scripted, or computed on the CPU (models.KEY.engine)."
NONE_THERE = "No model takes memory: all are scripted (models.KEY.model; `acu models list` names others)."
NONE_KNOWN = "No model can be planned: nothing is known of them here."


class Drawn(Struct, frozen=True):
    """A plan as it is shown. `on_card`: of a card, else of the memory of a machine, which is this one where it is `here`.

    `problems` keep an ACU from starting.
    """

    plan: MemoryPlan
    on_card: bool
    node: NodeBudget | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    here: bool = True


def as_json(drawn: Drawn) -> str:
    """The plan as one JSON object; sizes in MiB."""
    plan = drawn.plan
    document = {
        "card": msgspec.to_builtins(plan.card) | {"usable_mb": plan.card.usable_mb, "gpu": drawn.on_card},
        "models": [_row_json(demand) | _limit_json(drawn, demand) for demand in plan.demands],
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


def _limit_json(drawn: Drawn, demand: Demand) -> dict[str, int]:
    """The most that MPS, where it runs, lets the model's engine take."""
    return {"limit_mb": drawn.plan.limit_mb(demand)} if drawn.on_card else {}


def _node_json(node: NodeBudget | None) -> dict[str, int] | None:
    return msgspec.to_builtins(node) | {"left_mb": node.left_mb, "spare_mb": node.spare_mb} if node else None


def as_text(drawn: Drawn) -> str:
    """The plan for people."""
    card = drawn.plan.card
    holders = "the driver and other programs" if drawn.on_card else "what runs"
    lines = [] if drawn.on_card else [NO_CARD.format(" here" if drawn.here else " there"), ""]
    lines += [
        f"{card.name}: {card.total_mb} MiB, of which {holders} hold {card.held_mb}: {card.usable_mb} to divide",
        "",
    ]
    if drawn.plan.demands:
        lines += _divided(drawn)
    else:
        lines.append(NONE_KNOWN if drawn.problems else NONE_ON_CARD if drawn.on_card else NONE_THERE)
    lines += ["", *(f"note: {note}" for note in drawn.notes)] if drawn.notes else []
    if drawn.problems:
        lines += ["", *(f"refused: {text}" for text in drawn.problems)]
    elif drawn.plan.demands:
        lines += ["", "It fits."]
    return "\n".join("".join(sign if sign.isprintable() else "?" for sign in line) for line in lines)  # a report's too


def _divided(drawn: Drawn) -> list[str]:
    """What each model takes, and what remains."""
    plan = drawn.plan
    total = ("all", plan.weights_mb, plan.kv_mb, "", "", plan.processes_mb, plan.step_mb or "-")
    lines = [*_table([HEAD, *map(_row, plan.demands), tuple(map(str, total))]), ""]
    if plan.weights_limit_mb is not None:
        lines.append(f"weights  {plan.weights_mb} of {plan.weights_limit_mb} MiB that gpu.weights_mb allows")
    if plan.workers_mb:
        lines.append(f"workers  {plan.workers_mb} MiB are left to other processes of this ACU (gpu.workers_mb)")
    lines.append(f"scratch  {_scratch(plan)}")
    if drawn.on_card:
        lines.append(f"engines  {plan.engines_on_gpu} on the GPU")
    if drawn.node is not None:
        node = drawn.node
        lines.append(
            f"node     {node.memory_mb} MiB, less {node.engines_mb} of engines and daemon: {node.left_mb} for the hot layer, "
            f"which may take {node.hot_mb}"
        )
    return lines


def _scratch(plan: MemoryPlan) -> str:
    """What remains, and of a card what is needed of it."""
    if plan.scratch_mb < 0:
        step = f", and one step of every engine needs {plan.step_mb} more" if plan.step_mb else ""
        return f"{-plan.scratch_mb} MiB are lacking{step}"
    return f"{plan.scratch_mb} MiB remain" + (
        f", of which one step of every engine needs {plan.step_mb}" if plan.step_mb else ""
    )


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
