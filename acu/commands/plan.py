"""`acu doctor --plan`: how the memory of the card is divided among the configuration's models, before any is loaded.

Of this box's card, or of one that it does not have (`--card a10g`, `--card 23028`); without any, of the machine's memory. What
is planned is what `acu serve` checks at its start. A model that is not here yet counts with what the catalogue says of it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from acu.allotment import (
    Budget,
    Sized,
    alternatives,
    by_catalogue,
    card_of,
    card_plan,
    demand_on_cpu,
    demand_on_gpu,
    device_of,
    gpu_budget,
    held_bytes,
    node_plan,
    node_warning,
    settled_model,
)
from acu.commands import exits
from acu.commands.options import file_answers, places_answer
from acu.commands.output import out
from acu.commands.planview import Drawn, as_json, as_text
from acu.config import AcuConfig, load, process_environment
from acu.doctor.examination import Examination
from acu.errors import ConfigError, ModelError, ModelUnreadable, StartRefused
from acu.hardware import Gpu, Report, gpu_present, probe_machine
from acu.hardware.numa import read_nodes
from acu.hardware.report import Node
from acu.hardware.vram import CARDS, Card, Demand, MemoryPlan, known_card, problem
from acu.models import by_name, locate
from acu.models.headers import read_weights
from agentflow.config import ModelConfig
from agentflow.engine.vllm.asked import pool_bytes
from agentflow.engine.vllm.facts import MachineFacts, read_model
from agentflow.engine.vllm.tuning import MIB, choose, choose_pooling, dtype_of
from agentflow.errors import EngineStartFailed
from dataplane.truth.inuse import user_of


class Box(Struct, frozen=True):
    """The machine that is planned for. `here`: it is this one."""

    report: Report
    nodes: tuple[Node, ...] = ()
    here: bool = True

    @property
    def flags(self) -> frozenset[str]:
        """What its processor can, as far as an engine's choices hang on it."""
        return frozenset(self.report.cpu_features)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """`--plan` and `--card`, for the command that shows it."""
    parser.add_argument(
        "--plan", action="store_true", help="how the card's memory is divided among the models, and nothing else"
    )
    parser.add_argument(
        "--card",
        metavar="CARD",
        help=f"as --plan, for a card that this box does not have: its memory in MiB, or {', '.join(CARDS)}",
    )


def run_plan(args: argparse.Namespace, examination: Examination | None = None) -> int:
    """Print the plan, of this box or of the one that was examined. 2 where a start would be refused. Raises ConfigError."""
    card = known_card(args.card) if args.card else None
    if args.card and card is None:
        raise ConfigError([f"--card: {args.card!r} is neither a number of MiB nor one of {', '.join(CARDS)}"])
    box = (
        Box(probe_machine(), read_nodes())
        if examination is None
        else Box(examination.machine, examination.nodes, here=False)
    )
    found = bool(box.report.gpus) or (box.here and gpu_present())
    file_answers(args.config)
    config = load(process_environment(), file=args.config, gpu_present=card is not None or found).config
    places_answer(config)
    if card is not None:
        gpu = Gpu(config.gpu.device_id, card.name, card.total_mb, card.usable_mb)
        box = replace(box, report=replace(box.report, gpus=(gpu,)))
    drawn = draw(config, box)
    out(as_json(drawn) if args.json else as_text(drawn))
    return exits.REFUSED if drawn.problems else exits.OK


def draw(config: AcuConfig, box: Box) -> Drawn:
    """The plan of the configured device, else of the box's memory. Raises StartRefused where that device is not there."""
    report, device, looked = box.report, device_of(config.gpu, box.report), _Looked(config, box)
    budget: Budget | None = None
    with looked.noted():
        budget = gpu_budget(config.gpu, report)
    models = {key: settled_model(key, model) for key, model in config.models.items() if model.engine != "scripted"}
    sharing = [key for key, model in models.items() if model.engine == "vllm" and pool_bytes(model) is None]
    for key, model in models.items():
        if device is not None and model.engine == "vllm":
            pool = budget.kv_cache_mb // len(sharing) if budget and key in sharing else None
            looked.on_card(key, model, pool)
        else:
            looked.on_host(key, model)
    if device is not None:
        daemon = user_of(Path(config.data_plane.path)) if box.here and device.processes else None
        plan = card_plan(card_of(device, daemon), [each for each in looked.demands if each.process_mb], budget)
        looked.problems += filter(None, [problem(plan, alternatives())])
    else:
        held = (report.memory_total - report.memory_available) // MIB
        plan = MemoryPlan(card=Card("memory", report.memory_total // MIB, held), demands=tuple(looked.demands))
    node = node_plan(config, box.nodes, device, looked.demands)
    with looked.noted():
        looked.notes += filter(None, [node_warning(config, node)])
    return Drawn(plan, device is not None, node, tuple(looked.problems), tuple(looked.notes), box.here)


class _Looked:
    """What was found of the models so far."""

    def __init__(self, config: AcuConfig, box: Box) -> None:
        self.demands: list[Demand] = []
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._unread: set[str] = set()
        self._cache = Path(config.gpu.model_cache_dir)
        self._machine = MachineFacts(cpus=(), memory_available=box.report.memory_available, cpu_flags=box.flags)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what the block refuses, and go on behind it."""
        try:
            yield
        except StartRefused as refused:
            self.problems += refused.problems

    def on_card(self, key: str, model: ModelConfig, pool: int | None) -> None:
        """Look at a model with an engine on the card; `pool` is its part of the common KV pool in MiB, if it has one."""
        shared = pool_bytes(model) is None
        model = replace(model, kv_cache_mb=pool) if shared else model
        sized = self._read(key, model)
        if sized is not None:
            self.demands.append(replace(demand_on_gpu(sized, shared=shared), read=key not in self._unread))
            self._choose(key, sized, replace(self._machine, gpu=True, weights=held_bytes(sized)))

    def on_host(self, key: str, model: ModelConfig) -> None:
        """Look at a model that is computed on the CPU."""
        sized = self._read(key, model)
        if sized is None:
            return
        dtype, pool = "float32", 0
        if model.engine == "vllm":
            dtype = dtype_of(sized.facts, model, self._machine)
            pool = self._choose(key, sized, replace(self._machine, weights=sized.weights.held(dtype)))
        self.demands.append(replace(demand_on_cpu(sized, dtype, pool), read=key not in self._unread))

    def _read(self, key: str, model: ModelConfig) -> Sized | None:
        """What is known of a model: by its files, or before it is pulled by the catalogue. None, and noted why: nothing."""
        try:
            files = locate(model.model, self._cache)
            return Sized(key, model, read_model(files.path), read_weights(files.path))
        except EngineStartFailed as error:
            self.problems.append(f"models.{key}: {error}")
        except ModelUnreadable as error:
            self.problems.append(f"models.{key}.model: {error}")
        except ModelError as error:
            entry = by_name(model.model)
            if entry is not None:
                self._unread.add(key)
                self.notes.append(f"models.{key}: its size is the catalogue's (~) until `acu models pull {entry.name}`")
                return by_catalogue(key, model, entry)
            self.problems.append(f"models.{key}.model: {error}")
        return None

    def _choose(self, key: str, sized: Sized, machine: MachineFacts) -> int:
        """The KV pool that the engine would get, MiB, once its own rules were asked."""
        if sized.facts.kv_width == 0:  # the catalogue does not tell
            return sized.config.kv_cache_mb or 0
        decide = choose_pooling if sized.config.role == "embed" else choose
        try:
            args = decide(sized.facts, sized.config, machine).args
        except EngineStartFailed as error:
            self.problems.append(f"models.{key}: {error}")
            return sized.config.kv_cache_mb or 0
        return int(args.get("kv_cache_memory_bytes") or 0) // MIB
