"""Sweeper: gives back the space of state that has expired, now and then. Nobody sees it anyway. Used on the event loop."""

from __future__ import annotations

import asyncio
import logging

from dataplane import clock
from dataplane.errors import Closed, DataPlaneError
from dataplane.state.store import StateStore

EVERY_S = 30.0

_log = logging.getLogger(__name__)


class Sweeper:
    """Owns the timer."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._timer: asyncio.Task[None] | None = None
        self.swept = 0  # records, for metrics

    def start(self) -> None:
        """Begin."""
        self._timer = asyncio.get_running_loop().create_task(self._sweep_for_ever())

    async def stop(self) -> None:
        """End. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def sweep(self) -> None:
        """Remove what has expired by now, in the steps that `StateStore.sweep` takes."""
        while removed := await self._state.sweep(clock.now_ms()):
            self.swept += removed

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.sweep()
            except Closed:
                return
            except DataPlaneError as error:  # a full disk: it is tried again
                _log.warning("expired state was not removed", extra={"why": str(error)})
            except Exception:  # noqa: BLE001 - a defect must not end it for good
                _log.exception("expired state was not removed")
