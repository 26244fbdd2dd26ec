"""Metrics of the engines' memory: the GPU's, what idle runs hold of the KV pools, and what was done where either ran short.

Register a `MemoryCollector` with the full family. A box without a GPU has the second part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from acu.hardware.cardkeeper import NAMES, CardStatus
from agentflow.engine.vllm.tuning import MIB
from agentflow.status import HeldStatus, ServiceStatus


class MemoryCollector(Collector):
    """`card` is None where no card is watched."""

    def __init__(self, status: Callable[[], ServiceStatus], card: Callable[[], CardStatus | None]) -> None:
        self._status = status
        self._card = card

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        status, card = self._status(), self._card()
        yield from _pools({model.name: model.held for model in status.models if model.held is not None})
        limit = GaugeMetricFamily("acu_prompt_limit_tokens", "Longest prompt that is taken while memory runs short.")
        if status.prompt_limit is not None:
            limit.add_metric([], status.prompt_limit)
        yield limit
        if card is not None:
            yield from _gpu(card)


def _pools(held: dict[str, HeldStatus]) -> Iterator[Metric]:
    rows: tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, str], ...] = (
        (GaugeMetricFamily, "acu_kv_held_runs", "Idle runs' prompts that engines keep.", "runs"),
        (GaugeMetricFamily, "acu_kv_held_tokens", "Tokens of KV that only idle runs hold.", "tokens"),
        (GaugeMetricFamily, "acu_kv_running_and_held_perc", "Share of the KV pool with what runs, 1 is all.", "share"),
        (CounterMetricFamily, "acu_kv_watermark_passed", "Times that the pool's watermark was passed.", "passed"),
        (CounterMetricFamily, "acu_kv_released_runs", "Idle runs that lost their KV to the watermark.", "released"),
    )
    for family, name, text, field in rows:
        metric = family(name, text, labels=["model_name"])
        for model, status in held.items():
            metric.add_metric([model], float(getattr(status, field)))
        yield metric


def _gpu(card: CardStatus) -> Iterator[Metric]:
    def gauge(name: str, text: str, value: float | None) -> Metric:
        return GaugeMetricFamily(f"acu_gpu_memory_{name}", text, value=value)

    def size(name: str, text: str, mebibytes: float | None) -> Metric:
        return gauge(f"{name}_bytes", text, None if mebibytes is None else mebibytes * MIB)

    yield size("used", "GPU memory in use, of all processes.", card.used_mb)
    yield size("planned", "The most that the plan of memory has, with what others held at the start.", card.planned_mb)
    yield size("baseline", "The same after warm-up.", card.baseline_mb)
    yield size("capacity", "GPU memory that processes can have.", card.capacity_mb)
    yield gauge("room_used_perc", "Share in use of what was free after warm-up, 1 is all.", card.share)
    yield gauge("growth_bytes_per_hour", "The trend of the last hours.", card.mb_per_hour * MIB)
    yield gauge("full_in_seconds", "When the trend says that it is full; absent while not in sight.", card.full_in_s)
    step = GaugeMetricFamily("acu_gpu_memory_step", "1 for the step that is in force.", labels=["step"])
    for name in list(NAMES.values())[:-1]:
        step.add_metric([name], float(name == card.step))
    yield step
    taken = CounterMetricFamily("acu_gpu_memory_steps", "Times that each step was taken.", labels=["step"])
    for name, count in card.taken.items():
        taken.add_metric([name], count)
    yield taken
    yield CounterMetricFamily("acu_gpu_memory_unreadable", "Readings that failed.", value=card.unreadable)
