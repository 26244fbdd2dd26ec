"""CardKeeper: reads how much of the GPU's memory is in use, every `gpu.watch_s`, and does what is to be done about it.

What that is, is decided in hardware/watch.py; the service does it (see agentflow/scheduler/upkeep.py). What is in use once every
model is ready is taken for what the engines need: so after a start, and after each restart. Where more is in use than the plan of
memory has (hardware/vram.py), that is said: the plan's figures are then too small, or somebody has come.

Without a GPU there is no task. A reading that fails is counted, and told once in a row; a step in force is given up when
there were too many (watch.py), which is told as well. NVML is closed as soon as the daemon drains: the GPU can be reset only when
nobody holds it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from acu.config import AcuConfig
from acu.errors import GpuUnreadable
from acu.hardware import Report
from acu.hardware.cardreader import PATIENCE_S, Card, CardReader, Reading
from acu.hardware.cards import CardMemory
from acu.hardware.vram import MemoryPlan
from acu.hardware.watch import CardMarks, CardWatch, Step

if TYPE_CHECKING:
    from agentflow.service import Service

RETRY_AFTER_S = 30.0  # when a long prompt may come again
NAMES = {Step.CALM: "calm", Step.LIMIT: "limit_prompts", Step.FREE: "drop_caches", Step.RESTART: "restart_engines"}
WHY = "The GPU's memory runs short."
UNREADABLE = "the GPU's memory cannot be read"
PLAN = "see `acu doctor --plan`, and give gpu.workers_mb to what else computes there, or less to gpu.kv_cache_size_mb"
FUTILE = "restarting the engines did not help: another process holds GPU memory (see nvidia-smi)"

log = logging.getLogger("acu.hardware.cardkeeper")


class CardStatus(Struct, frozen=True):
    """The card's memory as last read, in MiB.

    `planned_mb`: at the most by the plan, with what others held at the start; None where there is none. `share`: of the room
    above the baseline. `step` is one of NAMES, and `taken` counts how often each was; `mb_per_hour` and `full_in_s` (None: not in
    sight) are the trend. `unreadable` counts readings that failed. `problem`: what is not well, or empty.
    """

    used_mb: int | None
    planned_mb: int | None
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
        self,
        config: AcuConfig,
        report: Report,
        plan: MemoryPlan | None = None,
        open_card: Callable[[int], Card | None] = CardMemory.open,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._config = config
        gpu = config.gpu
        self._memory_mb = next((found.memory_mb for found in report.gpus if found.index == gpu.device_id), None)
        self._plan = plan
        self._reader = CardReader(lambda: open_card(gpu.device_id), patience_s)
        self._marks = CardMarks(gpu.limit_prompts_at, gpu.drop_caches_at, gpu.restart_engines_at, gpu.restart_every_s)
        self._watch: CardWatch | None = None
        self._task: asyncio.Task[None] | None = None
        self._used_mb: int | None = None
        self._planned_mb: int | None = None
        self._exceeded = False  # that more is used than was planned is told
        self._was_ready = False
        self._step = Step.CALM
        self._taken = dict.fromkeys((NAMES[step] for step in Step if step), 0)
        self._unreadable = 0
        self._failing = False
        self._restarted_from_mb: int | None = None  # until it is known whether that helped

    def start(self, tasks: asyncio.TaskGroup, service: Service) -> None:
        """Watch the card, where there is one, in `tasks`."""
        if self._memory_mb is not None:
            self._task = tasks.create_task(self._run(service), name="GPU memory")

    def stop(self) -> None:
        """Watch no more, and let go of the card. A restart of engines that is waiting for what runs does not come."""
        if self._task is not None:
            self._task.cancel()
        self._reader.close()

    def status(self) -> CardStatus | None:
        """As last read; None where no card is watched, or before the first look."""
        watch = self._watch
        if watch is None:
            return None
        return CardStatus(
            used_mb=self._used_mb,
            planned_mb=self._planned_mb,
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
        said = []
        if self._failing or watch.blind:
            said.append(UNREADABLE + (", so nothing is done about it" if watch.blind else ""))
        if self._step:
            caches = "" if self._step is Step.LIMIT else ", what was cached is dropped"
            futile = f"{FUTILE}; " if watch.futile else ""
            said.append(
                f"{futile}prompts of more than {self._config.gpu.long_prompt_tokens} tokens are refused{caches}"
            )
        if not self._failing and (over_mb := self._over_plan_mb()):
            said.append(f"{over_mb} MiB more are in use than the plan has ({PLAN})")
        return "; ".join(said)

    def _over_plan_mb(self) -> int:
        """How much more is used than was planned."""
        if self._used_mb is None or self._planned_mb is None:
            return 0
        return max(0, self._used_mb - self._planned_mb)

    async def _run(self, service: Service) -> None:
        try:
            while True:
                try:
                    await self._look(service)
                except Exception:
                    log.exception("a look at the GPU's memory failed")
                    self._missed(service)
                await asyncio.sleep(self._config.gpu.watch_s)
        finally:
            self._reader.close()
            await self._reader.settled()

    async def _look(self, service: Service) -> None:
        """One reading, and what follows from it."""
        ready = service.status().ready  # before: what is read while they load is none of a card at work
        reading = await self._read()
        if reading is None:
            self._missed(service)
            return
        watch = self._watched(reading)
        if not ready:
            self._was_ready = False
            await self._go_to(watch.starting(reading.used_mb), watch, service)
            return
        if not self._was_ready:
            self._was_ready, self._exceeded = True, False
            watch.warm_up()
        step = watch.observe(reading.used_mb, time.monotonic())
        if self._restarted_from_mb is not None and watch.warm:
            self._tell_whether_it_helped(watch, self._restarted_from_mb - reading.used_mb)
        self._compare(watch)
        if step is Step.RESTART:
            await self._restart(watch, reading.used_mb, service)
        else:
            await self._go_to(step, watch, service)

    async def _read(self) -> Reading | None:
        """The card's memory; None where the driver does not tell."""
        try:
            reading = await self._reader.read()
        except GpuUnreadable as error:
            if not self._failing:
                log.error(UNREADABLE, extra={"why": str(error)})  # noqa: TRY400 - the message says it all
            self._failing = True
            return None
        if self._failing:
            log.info("the GPU's memory can be read again", extra={"used_mb": reading.used_mb})
        self._failing = False
        return reading

    def _watched(self, reading: Reading) -> CardWatch:
        """The watch of the card that was read, which may have come back from a reset with another size."""
        self._used_mb = reading.used_mb
        self._watch = self._watch or CardWatch(reading.capacity_mb, self._marks)
        self._watch.capacity_mb = reading.capacity_mb
        if self._plan is not None:
            self._planned_mb = reading.capacity_mb - self._plan.spare_mb
        return self._watch

    def _missed(self, service: Service) -> None:
        """A reading failed: what follows from it where many have."""
        self._unreadable += 1
        self._watch = watch = self._watch or CardWatch(self._memory_mb or 0, self._marks)
        step = watch.miss()
        if step != self._step:
            log.warning(
                "the GPU's memory could not be read for long: long prompts are taken again, and nothing is done about it until "
                "it can be",
                extra={"readings": self._unreadable, **self._figures(watch)},
            )
            self._let_long_prompts(step, service)

    def _compare(self, watch: CardWatch) -> None:
        """Tell, once until engines come up again, of a card on which more is used than was planned."""
        over_mb = self._over_plan_mb() if watch.warm else 0
        if over_mb and not self._exceeded:
            told = {"over_mb": over_mb, "planned_mb": self._planned_mb, **self._figures(watch)}
            log.warning("more of the GPU's memory is in use than the plan has: %s", PLAN, extra=told)
            self._exceeded = True

    async def _go_to(self, step: Step, watch: CardWatch, service: Service) -> None:
        """From the step in force to its neighbour, or further down after a restart; nowhere, if it is that."""
        before = self._step
        if step == before:
            return
        if step > before:
            self._taken[NAMES[step]] += 1
        self._let_long_prompts(step, service)
        if step < before:
            still = ": long prompts are still refused" if step else ""
            log.info("the GPU has room again%s", still, extra=self._figures(watch))
        elif step is Step.LIMIT:
            log.warning("the GPU's memory runs short: long prompts are refused", extra=self._figures(watch))
        else:
            log.warning("the GPU's memory runs short: what engines cache is dropped", extra=self._figures(watch))
            freed = await service.upkeep.free_memory()
            log.info("what engines cached is dropped", extra={"tokens": freed})

    def _let_long_prompts(self, step: Step, service: Service) -> None:
        """This step is in force: long prompts are taken, or not."""
        self._step = step
        tokens = self._config.gpu.long_prompt_tokens
        service.upkeep.limit_prompts(tokens if step else None, WHY, RETRY_AFTER_S)

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
