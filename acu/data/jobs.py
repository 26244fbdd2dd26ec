"""DataJobs: jobs on the whole data plane, which administrators begin over HTTP. One at a time; it outlives its client.

What is kept of a job is in memory only: after a restart of the daemon nobody knows it any more, and nothing of it goes on. Each
may be begun again. Used on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from acu.http.data import JobRunning
from acu.http.exchange import new_id
from acu.http.library import LibrarySource
from acu.http.wire.data import DataJob, DataWork, VerifyBody, kind_of
from agentflow.errors import AgentFlowError
from dataplane.errors import DataPlaneError

if TYPE_CHECKING:
    from agentflow.agents.runs import Runs
    from dataplane.store import DataPlane

KEPT = 16
COUNTED_S = 5.0
"""So long is the count of uploaded files told again: each count reads the records of all of them."""

log = logging.getLogger("acu.data")


class DataJobs:
    """`plane` and `library` open them if they are not open, and raise DataUnavailable; `status` tells how it is, open or not.
    `runs` are the daemon's, which end where their tenant is erased.

    Damaged files that only reading them shows are told of as jobs have found them, until a deep verify finds others.

    Uploaded files are counted when somebody asks, but not twice in `counted_s` seconds, unless a job has ended in between.
    """

    def __init__(
        self,
        plane: Callable[[], Awaitable[DataPlane]],
        status: Callable[[], dict[str, Any]],
        library: LibrarySource | None = None,
        counted_s: float = COUNTED_S,
        *,
        runs: Runs | None = None,
    ) -> None:
        self._plane = plane
        self._runs = runs
        self._library = library
        self._status = status
        self._counted_s = counted_s
        self._counted: tuple[float, dict[str, int] | None] | None = None  # when, on the monotonic clock, and what
        self._damaged = 0  # files, by the last job that looked
        self._jobs: dict[str, DataJob] = {}
        self._task: asyncio.Task[None] | None = None
        self._running = ""

    async def status(self) -> dict[str, Any]:
        """How the data plane is, and what was uploaded if it is open. Raises DataUnavailable."""
        report = self._status()
        if "plane" in report:
            report["uploads"] = await self._uploads()
        return report

    async def _uploads(self) -> dict[str, int] | None:
        from acu.data.work import uploads  # as below

        plane, now = await self._plane(), time.monotonic()
        if self._counted is None or now - self._counted[0] >= self._counted_s:
            counts = await uploads(plane)
            if counts is not None:
                counts["damaged_files"] = max(counts["damaged_files"], self._damaged)
            self._counted = now, counts
        return self._counted[1]

    def job(self, job_id: str) -> DataJob | None:
        """A job, if it is one of the last few."""
        return self._jobs.get(job_id)

    async def begin(self, work: DataWork) -> DataJob:
        """Begin a job. Raises JobRunning, DataUnavailable."""
        plane = await self._plane()
        if self._task is not None and not self._task.done():
            raise JobRunning(self._jobs[self._running])
        job = DataJob(id=new_id("datajob-"), kind=kind_of(work), state="running", created_at=time.time())
        while len(self._jobs) >= KEPT:
            del self._jobs[next(iter(self._jobs))]
        self._jobs[job.id] = job
        self._running = job.id
        self._task = asyncio.get_running_loop().create_task(self._run(job.id, plane, work))
        return job

    async def close(self) -> None:
        """Break off what runs. Before the data plane is closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, job_id: str, plane: DataPlane, work: DataWork) -> None:
        kind = kind_of(work)
        log.info("job begun", extra={"job": job_id, "kind": kind})

        def told(stage: str, done: int, total: int) -> None:  # from any thread: a swap of one value
            self._jobs[job_id] = replace(self._jobs[job_id], stage=stage, done=done, total=total)

        try:
            from acu.data.work import damaged_in, perform  # the archive and Parquet with it, only when there is a job

            result = await perform(plane, work, told, self._library, self._runs)
        except (DataPlaneError, AgentFlowError) as error:
            self._end(job_id, error=str(error))
        except asyncio.CancelledError:
            self._end(job_id, error="The daemon was stopped.")
            raise
        except Exception:  # a defect there must not end the daemon
            log.exception("job failed", extra={"job": job_id})
            self._end(job_id, error="It failed for a reason that is none of the data plane's own: see the log.")
        else:
            found = damaged_in(result) if kind in ("verify", "archive") else []
            if found or (isinstance(work, VerifyBody) and work.deep):  # others read no file whole
                self._damaged = len(found)
            self._end(job_id, result=result)

    def _end(self, job_id: str, *, result: dict[str, Any] | None = None, error: str | None = None) -> None:
        self._counted = None
        job = self._jobs[job_id] = replace(
            self._jobs[job_id],
            state="failed" if error is not None else "done",
            ended_at=time.time(),
            result=result,
            error=error,
        )
        log.info("job ended", extra={"job": job_id, "kind": job.kind, "state": job.state, "why": error})
