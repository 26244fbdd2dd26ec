"""CardKeeper: reads how much of the GPU's memory is in use, every `gpu.watch_s`, and does what is to be done about it.

What that is, is decided in hardware/watch.py; the service does it (see agentflow/scheduler/upkeep.py). It looks only while every
model is ready, and takes what is in use after that for what the engines need: so after a start, and after each restart.

Without a GPU there is no task. A reading that fails is counted, told once in a row, and never more than that. NVML is closed as
soon as the daemon drains: the GPU can be reset only when nobody holds it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct

from acu.config import AcuConfig
from acu.errors import GpuUnreadable
from acu.hardware import Report
from acu.hardware.cards import CardMemory
from acu.hardware.watch import CardMarks, CardWatch, Step

if TYPE_CHECKING:
    from agentflow.service import Service

RETRY_AFTER_S = 30.0  # when a long prompt may come again
NAMES = {Step.CALM: "calm", Step.LIMIT: "limit_prompts", Step.FREE: "drop_caches", Step.RESTART: "restart_engines"}
WHY = "The GPU's memory runs short."
FUTILE = "restarting the engines did not help: another process holds GPU memory (see nvidia-smi)"

log = logging.getLogger("acu.hardware.cardkeeper")


class Card(Protocol):
    """What is read: CardMemory, or a recording."""

    def used_mb(self) -> int: ...

    def capacity_mb(self) -> int: ...

    def close(self) -> None: ...


class CardStatus(Struct, frozen=True):
    """The card's memory as last read, in MiB.

    `share`: of the room above the baseline. `step` is one of NAMES, and `taken` counts how often each was; `mb_per_hour` and
    `full_in_s` (None: not in sight) are the trend. `unreadable` counts readings that failed. `problem` is a sentence, or empty.
    """

    used_mb: int | None
    baseline_mb: int | None
    capacity_mb: int
    share: float
    step: str
    taken: dict[str, int]
    mb_per_hour: float
    full_in_s: float | None
    unreadable: int
    problem: str


class CardKeeper:
    """For the event loop. `start` and `stop` it once each; `open_card` runs in a thread, for it loads NVML."""

    def __init__(
        self, config: AcuConfig, report: Report, open_card: Callable[[int], Card | None] = CardMemory.open
    ) -> None:
        self._config = config
        self._present = any(gpu.index == config.gpu.device_id for gpu in report.gpus)
        self._open_card = open_card
        self._card: Card | None = None
        self._watch: CardWatch | None = None
        self._task: asyncio.Task[None] | None = None
        self._used_mb: int | None = None
        self._was_ready = False
        self._step = Step.CALM
        self._taken = dict.fromkeys((NAMES[step] for step in Step if step), 0)
        self._unreadable = 0
        self._failing = False
        self._restarted_from_mb: int | None = None  # until it is known whether that helped

    def start(self, tasks: asyncio.TaskGroup, service: Service) -> None:
        """Watch the card, where there is one, in `tasks`."""
        if self._present:
            self._task = tasks.create_task(self._run(service), name="GPU memory")

    def stop(self) -> None:
        """Watch no more, and let go of the card. A restart of engines that is waiting for what runs does not come."""
        if self._task is not None:
            self._task.cancel()
        self._close()

    def status(self) -> CardStatus | None:
        """As last read; None where no card is watched."""
        watch = self._watch
        if watch is None:
            return None
        return CardStatus(
            used_mb=self._used_mb,
            baseline_mb=watch.baseline_mb,
            capacity_mb=watch.capacity_mb,
            share=0.0 if self._used_mb is None else round(watch.share(self._used_mb), 4),
            step=NAMES[self._step],
            taken=dict(self._taken),
            mb_per_hour=round(watch.trend.mb_per_hour, 1),
            full_in_s=None if watch.trend.full_in_s is None else round(watch.trend.full_in_s),
            unreadable=self._unreadable,
            problem=self._problem(watch),
        )

    def told(self) -> Any:
        """The same for /acu/v1/status."""
        return msgspec.to_builtins(self.status())

    def _problem(self, watch: CardWatch) -> str:
        if self._failing:
            return "the GPU's memory cannot be read"
        futile = f"{FUTILE}; " if watch.futile else ""
        if self._step:
            caches = "" if self._step is Step.LIMIT else ", what was cached is dropped"
            return f"{futile}prompts of more than {self._config.gpu.long_prompt_tokens} tokens are refused{caches}"
        return ""

    async def _run(self, service: Service) -> None:
        gpu = self._config.gpu
        try:
            self._card = card = await asyncio.to_thread(self._open_card, gpu.device_id)
            if card is None:
                log.warning("the GPU's memory is not watched: NVML does not answer", extra={"gpu": gpu.device_id})
                return
            while True:
                try:
                    await self._look(card, service)
                except Exception:
                    log.exception("a look at the GPU's memory failed")
                await asyncio.sleep(gpu.watch_s)
        finally:
            self._close()

    async def _look(self, card: Card, service: Service) -> None:
        """One reading, and what follows from it."""
        if not service.status().ready:
            self._was_ready = False
            return
        used_mb = await self._read(card)
        if used_mb is None or self._watch is None:
            return
        watch = self._watch
        if not self._was_ready:
            self._was_ready = True
            watch.warm_up()
        step = watch.observe(used_mb, time.monotonic())
        if self._restarted_from_mb is not None and watch.warm:
            self._tell_whether_it_helped(watch, self._restarted_from_mb - used_mb)
        if step is Step.RESTART:
            await self._restart(watch, used_mb, service)
        elif step != self._step:
            await self._go_to(step, watch, service)

    async def _read(self, card: Card) -> int | None:
        """MiB in use; None where the driver does not tell."""
        try:
            if self._watch is None:
                gpu = self._config.gpu
                marks = CardMarks(gpu.limit_prompts_at, gpu.drop_caches_at, gpu.restart_engines_at, gpu.restart_every_s)
                self._watch = CardWatch(await asyncio.to_thread(card.capacity_mb), marks)
            self._used_mb = await asyncio.to_thread(card.used_mb)
        except GpuUnreadable as error:
            self._unreadable += 1
            if not self._failing:
                log.error("the GPU's memory cannot be read", extra={"why": str(error)})  # noqa: TRY400 - the message says it all
            self._failing = True
            return None
        self._failing = False
        return self._used_mb

    async def _go_to(self, step: Step, watch: CardWatch, service: Service) -> None:
        """From the step in force to its neighbour, or to CALM after a restart."""
        before, self._step = self._step, step
        if step > before:
            self._taken[NAMES[step]] += 1
        tokens = self._config.gpu.long_prompt_tokens
        service.upkeep.limit_prompts(tokens if step else None, WHY, RETRY_AFTER_S)
        if step < before:
            still = ": long prompts are still refused" if step else ""
            log.info("the GPU has room again%s", still, extra=self._figures(watch))
        elif step is Step.LIMIT:
            log.warning("the GPU's memory runs short: long prompts are refused", extra=self._figures(watch))
        else:
            log.warning("the GPU's memory runs short: what engines cache is dropped", extra=self._figures(watch))
            freed = await service.upkeep.free_memory()
            log.info("what engines cached is dropped", extra={"tokens": freed})

    async def _restart(self, watch: CardWatch, used_mb: int, service: Service) -> None:
        self._taken[NAMES[Step.RESTART]] += 1
        self._restarted_from_mb = used_mb
        self._was_ready = False  # the next reading that counts is after a warm-up, also where this fails
        log.error("the GPU is almost full: engines are restarted, one after the other", extra=self._figures(watch))
        why = "the engine was restarted, since the GPU's memory was almost used up"
        await service.upkeep.restart_engines(why, self._config.daemon.drain_timeout_s)

    def _tell_whether_it_helped(self, watch: CardWatch, gained_mb: int) -> None:
        self._restarted_from_mb = None
        told = {"gained_mb": gained_mb, **self._figures(watch)}
        if watch.futile:
            log.error("%s; they are not restarted again until it has room", FUTILE, extra=told)
        else:
            log.info("restarting the engines gave GPU memory back", extra=told)

    def _figures(self, watch: CardWatch) -> dict[str, Any]:
        """For the log: what was seen, in MiB, and when the card would be full, in hours."""
        full_in_s = watch.trend.full_in_s
        return {
            "used_mb": self._used_mb,
            "baseline_mb": watch.baseline_mb,
            "capacity_mb": watch.capacity_mb,
            "mb_per_hour": round(watch.trend.mb_per_hour, 1),
            "full_in_h": None if full_in_s is None else round(full_in_s / 3600, 1),
        }

    def _close(self) -> None:
        if self._card is not None:
            self._card.close()
            self._card = None
