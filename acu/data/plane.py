"""Data: the data plane and the library as the daemon has them.

They are opened at the start if the folder of data exists, else when somebody first asks for the library: a daemon that nobody
gives anything to keep takes no memory for it. Opening takes place in threads and tasks, beside everything else. One that
fails (another daemon has begun the folder meanwhile, it is damaged, the disk is full, or for a defect) is logged, told to whoever
asks, and tried again for the next who asks, after a pause. Whatever it fails with, the daemon goes on: chat needs no data.

End: the library's tasks are cancelled, then library, extractor and data plane are closed, in this order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from acu.config import AcuConfig, model_names
from acu.data.folder import folder_warning
from acu.errors import ModelError
from acu.models import locate
from agentflow.errors import AgentFlowError, Refused
from agentflow.library.refusals import DataUnavailable
from dataplane.errors import DataPlaneError, Locked

if TYPE_CHECKING:
    from agentflow.library.embedder import Embedder
    from agentflow.library.embedderid import EmbedderId
    from agentflow.library.extraction import Extractor
    from agentflow.library.library import Library
    from agentflow.library.prompts import Prompts
    from agentflow.service import Service
    from dataplane import DataPlane

RETRY_S = 5.0
SLOW_S = 10.0  # an opening that lasts longer is told

log = logging.getLogger("acu.data")


class Data:
    """Made and used on the event loop. `embedder` names the model that makes the library's vectors; None: there is none."""

    def __init__(self, config: AcuConfig, service: Service, embedder: str | None) -> None:
        self._config = config
        self._service = service
        self._embedder = embedder
        self._folder = Path(config.data_plane.path)
        self._tasks: asyncio.TaskGroup | None = None
        self._opening: asyncio.Task[None] | None = None
        self._own: asyncio.Task[None] | None = None
        self._closing = False
        self._plane_lock = asyncio.Lock()
        self._failed_at = -math.inf
        self.failure: str | None = None
        self.plane: DataPlane | None = None
        self._extractor: Extractor | None = None
        self._library: Library | None = None
        self._embeds: Embedder | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to open what is there already; returns at once."""
        self._tasks = tasks
        if lies_open := folder_warning(str(self._folder)):
            log.warning("the folder of data lies open", extra={"why": lies_open})
        if self._folder.is_dir():
            self._begin()

    def _begin(self) -> asyncio.Task[None]:
        """The task that opens everything; one at a time."""
        if self._opening is None:
            assert self._tasks is not None
            self._opening = self._tasks.create_task(self._open())
        return self._opening

    async def library(self) -> Library:
        """The library, opened if it is not. Raises DataUnavailable with the reason, and when to ask again."""
        if self._library is None and self._embedder is not None:
            if self._closing:
                raise DataUnavailable("The daemon is shutting down.", retry_after_s=5.0)
            if time.monotonic() - self._failed_at > RETRY_S:
                await asyncio.shield(self._begin())
        if self._library is not None:
            return self._library
        if self._embedder is None:
            raise DataUnavailable(
                "This daemon serves no embedding model, which files and vector stores need: configure models.embed.",
                retry_after_s=math.inf,
            )
        raise DataUnavailable(f"The data plane is not available: {self.failure}", retry_after_s=RETRY_S)

    async def embedder(self) -> Embedder:
        """What makes the library's vectors, opened if it is not. Raises DataUnavailable."""
        await self.library()
        assert self._embeds is not None
        return self._embeds

    async def _open(self) -> None:
        """Open data plane and library; what fails is noted."""
        began = time.monotonic()
        try:
            await self._open_plane()
            if self._embedder is not None:
                await self._open_library(self._embedder)
        except (DataPlaneError, AgentFlowError, OSError, ImportError) as error:
            self._fail(_why(error), error)
            self._opening = None
        except Exception as error:  # noqa: BLE001 - a defect there must not end the daemon
            self._fail(f"opening it failed, and the daemon's log has the traceback: {error!r}", error)
            self._opening = None
        else:
            self.failure = None
            log.info(
                "data plane open", extra={"folder": str(self._folder), "ms": round(1000 * (time.monotonic() - began))}
            )

    def _fail(self, why: str, error: BaseException) -> None:
        """Chat goes on without a data plane."""
        self._failed_at = time.monotonic()
        self.failure = why
        log.error("the data plane is not available", extra={"why": why}, exc_info=error)

    async def _open_plane(self) -> DataPlane:
        async with self._plane_lock:
            if self.plane is None:
                slow = asyncio.get_running_loop().call_later(SLOW_S, self._tell_slow)
                try:
                    kind = await asyncio.to_thread(_data_plane)
                    self.plane = await kind.open(self._config.data_plane)
                finally:
                    slow.cancel()
            return self.plane

    def _tell_slow(self) -> None:
        why = "it is large, or its disk is slow, frozen or out of reach"
        log.warning(
            "the data plane is not open yet", extra={"folder": str(self._folder), "after_s": SLOW_S, "why": why}
        )

    async def opened(self) -> DataPlane:
        """The data plane, opened if it is not. Raises DataUnavailable."""
        if self._closing:
            raise DataUnavailable("The daemon is shutting down.", retry_after_s=5.0)
        try:
            return await self._open_plane()
        except DataPlaneError as error:
            raise DataUnavailable(f"The data plane is not available: {_why(error)}", retry_after_s=RETRY_S) from error

    async def _open_library(self, embedder: str) -> None:
        assert self.plane is not None
        assert self._tasks is not None
        embedder_kind, extractor_kind, library_kind = await asyncio.to_thread(_library_parts)
        try:
            tokenizer = await self._service.tokenizer(embedder)
        except Refused as error:
            raise DataUnavailable(str(error), retry_after_s=error.retry_after_s) from error
        special = len(tokenizer.encode("", add_special_tokens=True))
        prompts, id_ = await asyncio.to_thread(self._looked_at, embedder)
        self._extractor = self._extractor or extractor_kind()
        self._embeds = embedder_kind(self._service, id_, tokenizer.spans, special, prompts)
        library = await library_kind.open(
            self.plane,
            self.plane.state,
            self._folder / "library",
            self._embeds,
            self._extractor,
            self._config.library,
        )
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._own = self._tasks.create_task(self._run(library, started))
        await started
        self._library = library

    def _looked_at(self, embedder: str) -> tuple[Prompts, EmbedderId]:
        """What the embedding model wants before texts, by the configuration and its files, and which model it is. Blocks."""
        from agentflow.library.embedderid import EmbedderId, fingerprint_of
        from agentflow.library.prompts import prompts_of

        folder = None
        for key, model in self._config.models.items():
            if model.engine != "scripted" and model_names(key, model)[0] == embedder:
                with contextlib.suppress(ModelError):  # who loads the model tells
                    folder = locate(model.model, Path(self._config.gpu.model_cache_dir)).path
        prompts = prompts_of(self._config.library, folder)
        return prompts, EmbedderId(model=embedder, fingerprint=fingerprint_of(folder, prompts.passage))

    async def _run(self, library: Library, started: asyncio.Future[None]) -> None:
        """The library's background work, in a group of its own that `close` cancels."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await library.start(tasks)
                started.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001 - a defect there must not end the daemon
            self._fail(f"the library failed, and needs a restart of the daemon: {error!r}", error)
            self._library, self._failed_at = None, math.inf  # it is not tried again
            if not started.done():
                started.set_exception(DataUnavailable(str(error), retry_after_s=RETRY_S))

    async def close(self) -> None:
        """Close everything that is open; wait for an opening that goes on. Idempotent."""
        self._closing = True
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._library is not None:
            await self._library.close()
        if self._own is not None:
            self._own.cancel()
            await asyncio.gather(self._own, return_exceptions=True)
        if self._extractor is not None:
            await asyncio.to_thread(self._extractor.close)
        if self.plane is not None:
            await self.plane.close()
        self._library = self.plane = self._extractor = None

    def status(self) -> dict[str, Any]:
        """The data plane's part of /acu/v1/status."""
        if self.plane is None:
            state = "failed" if self.failure else ("opening" if self._opening is not None else "not used yet")
            return {"state": state, "folder": str(self._folder), "why": self.failure}
        plane = self.plane.status()
        return {
            "state": "open" if plane.failed is None else "takes no writes",
            "folder": str(self._folder),
            "why": plane.failed or self.failure,
            "plane": msgspec.to_builtins(plane),
        }


def _why(error: BaseException) -> str:
    return f"{error} Or choose another data_plane.path." if isinstance(error, Locked) else str(error)


def _library_parts() -> tuple[type[Embedder], type[Extractor], type[Library]]:
    """The classes of the library, which bring everything heavy with them."""
    from agentflow.library.embedder import Embedder
    from agentflow.library.extraction import Extractor
    from agentflow.library.library import Library

    return Embedder, Extractor, Library


def _data_plane() -> type[DataPlane]:
    # It tells of each build of itself that it does not find.
    logging.getLogger("faiss.loader").setLevel(logging.WARNING)
    from dataplane import DataPlane
    from dataplane.tuning import tune_process

    tune_process()
    return DataPlane
