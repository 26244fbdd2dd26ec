"""GET /acu/v1/status: what OpenAI has no word for, for administrators."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from acu.http.audit import Hooks
from acu.http.exchange import Exchange
from acu.http.route import Answer, Route
from agentflow.service import Service
from agentflow.status import ServiceStatus


class DaemonReport(Struct, frozen=True):
    """The orchestrator's snapshot, and what the daemon tells of itself and of the machine."""

    service: ServiceStatus
    daemon: dict[str, Any]


def routes(service: Service, hooks: Hooks) -> tuple[Route, ...]:
    """The endpoint's entry in the table."""

    async def status(exchange: Exchange) -> web.StreamResponse:
        report = DaemonReport(service.status(), hooks.daemon_status())
        return exchange.json(msgspec.json.encode(report))

    return (
        Route(
            method="GET",
            path="/acu/v1/status",
            endpoint=status,
            scope="admin",
            name="getStatus",
            summary="What runs, what waits, how the engines do and what was chosen for this machine.",
            answers={200: (Answer("The report.", body=DaemonReport),)},
        ),
    )
