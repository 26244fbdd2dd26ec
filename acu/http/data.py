"""/acu/v1/data: how the data plane is, and jobs on all of it, for administrators.

A job goes on when its client leaves; who wants to know how it ends asks for it by its id. One runs at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from acu.errors import AcuError
from acu.http.errors import HttpError
from acu.http.exchange import Exchange
from acu.http.route import Answer, Route
from acu.http.wire.data import (
    ARCHIVE_DECODER,
    BACKUP_DECODER,
    ERASE_DECODER,
    VERIFY_DECODER,
    ArchiveBody,
    BackupBody,
    DataJob,
    DataWork,
    EraseBody,
    VerifyBody,
    checked,
)
from acu.http.wire.decode import BodyDecoder
from agentflow.library.refusals import DataUnavailable

BODY_REFUSALS = (408, 409, 413, 415, 417)


class JobRunning(AcuError):
    """Another job runs. `job` is that one."""

    def __init__(self, job: DataJob) -> None:
        super().__init__(job.id)
        self.job = job


class DataDoor(Protocol):
    """What the daemon gives this face of its data plane."""

    async def status(self) -> dict[str, Any]:
        """How it is, also while it is not open. Raises DataUnavailable."""

    async def begin(self, work: DataWork) -> DataJob:
        """Begin a job. Raises JobRunning, DataUnavailable."""

    def job(self, job_id: str) -> DataJob | None:
        """A job of late, or None."""


DataSource = Callable[[], DataDoor]


def no_data() -> DataDoor:
    """The source of a daemon without a data plane."""
    raise DataUnavailable("This daemon runs without a data plane.", retry_after_s=math.inf)


def routes(data: DataSource) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""

    async def status(exchange: Exchange) -> web.StreamResponse:
        return exchange.json(msgspec.json.encode(await data().status()))

    async def job(exchange: Exchange) -> web.StreamResponse:
        found = data().job(exchange.path_arguments["job_id"])
        if found is None:
            raise HttpError(404, "There is no such job; the daemon forgets them when it ends.", code="unknown_job")
        return exchange.json(msgspec.json.encode(found))

    return (
        Route(
            method="GET",
            path="/acu/v1/data/status",
            endpoint=status,
            scope="admin",
            name="getDataStatus",
            summary="The data plane: uploaded files, rows and bytes by tier, memory against its cap, backlogs, what failed.",
            answers={200: (Answer("The report.", body=dict[str, Any]),)},
        ),
        Route(
            method="GET",
            path="/acu/v1/data/jobs/{job_id}",
            endpoint=job,
            scope="admin",
            name="getDataJob",
            summary="How far a job is, and what came of it.",
            answers={200: (Answer("The job.", body=DataJob),)},
            refusals=(404,),
        ),
        _job_route(data, "verify", VERIFY_DECODER, "Look for what is wrong, and repair it if asked."),
        _job_route(data, "backup", BACKUP_DECODER, "Back everything up while it runs."),
        _job_route(data, "archive", ARCHIVE_DECODER, "Bring the archive up to date."),
        _job_route(data, "erase", ERASE_DECODER, "Erase a tenant, a collection or rows, everywhere."),
    )


def _job_route(data: DataSource, kind: str, decoder: BodyDecoder[Any], summary: str) -> Route:
    async def begin(exchange: Exchange) -> web.StreamResponse:
        work: VerifyBody | BackupBody | ArchiveBody | EraseBody = decoder.decode(exchange.take_body())
        try:
            job = await data().begin(checked(work))
        except JobRunning as error:
            raise HttpError(
                409, f"A job runs already: {error.job.kind}, {error.job.id}. Wait for its end.", code="job_running"
            ) from None
        return exchange.json(msgspec.json.encode(job), status=202)

    return Route(
        method="POST",
        path=f"/acu/v1/data/{kind}",
        endpoint=begin,
        scope="admin",
        name=f"begin{kind.capitalize()}",
        summary=summary,
        body=decoder.body_type,
        answers={202: (Answer("The job that has begun.", body=DataJob),)},
        refusals=BODY_REFUSALS,
    )
