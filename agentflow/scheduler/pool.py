"""Pool: the engines of one model, their seats, and who waits for one.

A seat is a place for one sequence on an engine, which has `EngineInfo.max_running` of them. Placement takes the
ready engine with the most free seats. The pool trips (`tripped`) when each of its engines failed to come back
`TRIP_AFTER` times in a row: callers are then refused at once with the reason, instead of waiting out their deadline for
an engine that is not coming, until one is ready again.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from agentflow.engine.protocol import EngineInfo
from agentflow.engine.supervisor import Supervisor
from agentflow.scheduler.estimate import WaitEstimate
from agentflow.scheduler.queue import AdmissionQueue

TRIP_AFTER = 3
T = TypeVar("T")


class Slot:
    """One supervised engine and the number of its seats that are taken."""

    def __init__(self, supervisor: Supervisor[Any]) -> None:
        self.supervisor = supervisor
        self.taken = 0
        self.held_back = False  # it gets no more work: it is about to be replaced
        self.failures_in_a_row = 0
        self._was = ""

    def free(self) -> int:
        """Seats that may be taken now; 0 while the engine is not ready, or is held back."""
        info = self.supervisor.info if self.ready and not self.held_back else None
        return max(0, info.max_running - self.taken) if info else 0

    @property
    def ready(self) -> bool:
        """Whether the engine takes work. A dead one does not, even before its supervisor has looked."""
        engine = self.supervisor.engine
        return engine is not None and engine.failure is None

    def note_state(self) -> None:
        """Follow the supervisor's state, counting failures in a row."""
        state = self.supervisor.state
        if state == "ready":
            self.failures_in_a_row = 0
        elif state == "backing_off" and self._was != state:
            self.failures_in_a_row += 1
        self._was = state


class Pool(Generic[T]):
    """The engines that serve `name`, behind one queue of whatever the scheduler lets wait."""

    def __init__(self, name: str, supervisors: tuple[Supervisor[Any], ...], ageing_s: float) -> None:
        self.name = name
        self.slots = [Slot(supervisor) for supervisor in supervisors]
        self.waiting: AdmissionQueue[T] = AdmissionQueue(ageing_s)
        self.estimate = WaitEstimate()
        self._info: EngineInfo | None = None

    @property
    def info(self) -> EngineInfo | None:
        """What the engines turned out to be, once one has ever been ready."""
        for slot in self.slots:
            if slot.supervisor.info is not None:
                self._info = slot.supervisor.info
        return self._info

    @property
    def running(self) -> int:
        """Seats that are taken."""
        return sum(slot.taken for slot in self.slots)

    @property
    def ready(self) -> bool:
        """Whether an engine takes work."""
        return any(slot.ready for slot in self.slots)

    @property
    def seats(self) -> int:
        """Seats of the engines that are ready; of one engine while none is."""
        ready = [slot.supervisor.info for slot in self.slots if slot.ready]
        return sum(info.max_running for info in ready if info) or (self.info.max_running if self.info else 1)

    @property
    def free(self) -> int:
        """Seats that whoever comes now would get: none while others wait for one, or no engine is ready."""
        return 0 if len(self.waiting) else sum(slot.free() for slot in self.slots)

    @property
    def tripped(self) -> bool:
        """Whether every engine failed so often in a row that nobody should wait for one."""
        return all(slot.failures_in_a_row >= TRIP_AFTER for slot in self.slots)

    @property
    def last_error(self) -> str | None:
        """Why the engines are not there, if one of them has said so."""
        errors = [status.last_error for slot in self.slots if (status := slot.supervisor.status()).last_error]
        return errors[-1] if errors else None

    def place(self) -> Slot | None:
        """The ready engine with the most free seats, or None."""
        best = max(self.slots, key=Slot.free, default=None)
        return best if best is not None and best.free() > 0 else None
