"""GET /healthz, /readyz and /metrics."""

from __future__ import annotations

import msgspec
from aiohttp import web
from msgspec import Struct

from acu.http.audit import Hooks
from acu.http.errors import retry_headers
from acu.http.exchange import Exchange
from acu.http.route import Answer, Route
from agentflow.service import Service
from agentflow.status import ModelStatus

METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
POLL_S = 1.0  # how soon it is worth asking again whether a model is ready


class Health(Struct, frozen=True):
    """The daemon is alive: its event loop answered."""

    status: str


class ModelReadiness(Struct, frozen=True):
    """How far a model is. `fraction`, 0.0 to 1.0, is null where it is not known."""

    model: str
    ready: bool
    stage: str
    fraction: float | None


class Readiness(Struct, frozen=True):
    """Whether requests are served now, and if not why. `preloading` tells how far the weights are read from the disk."""

    ready: bool
    reason: str | None
    models: list[ModelReadiness]
    preloading: str | None


def routes(service: Service, hooks: Hooks) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""

    async def healthz(exchange: Exchange) -> web.StreamResponse:
        return exchange.json(msgspec.json.encode(Health("ok")))

    async def readyz(exchange: Exchange) -> web.StreamResponse:
        status = service.status()
        models = [_readiness(model) for model in status.models]
        body = Readiness(status.ready, status.reason, models, hooks.preloading() or None)
        if status.ready:
            return exchange.json(msgspec.json.encode(body))
        return exchange.json(msgspec.json.encode(body), status=503, headers=retry_headers(POLL_S))

    async def metrics(exchange: Exchange) -> web.StreamResponse:
        return exchange.answer(hooks.render_metrics(exchange.caller.admin), METRICS_TYPE)

    return (
        Route(
            method="GET",
            path="/healthz",
            endpoint=healthz,
            scope="open",
            name="healthz",
            summary="Whether the daemon is alive.",
            answers={200: (Answer("It is.", body=Health),)},
        ),
        Route(
            method="GET",
            path="/readyz",
            endpoint=readyz,
            scope="open",
            name="readyz",
            summary="Whether every model takes work.",
            answers={200: (Answer("All do.", body=Readiness),), 503: (Answer("Not yet.", body=Readiness),)},
        ),
        Route(
            method="GET",
            path="/metrics",
            endpoint=metrics,
            scope="loopback",
            name="metrics",
            summary="Prometheus metrics: the basic families, or all of them for administrators.",
            answers={200: (Answer("The exposition text.", METRICS_TYPE),)},
        ),
    )


def _readiness(model: ModelStatus) -> ModelReadiness:
    """A model that is not ready is as far as the engine that is farthest."""
    if model.ready or not model.engines:
        return ModelReadiness(model.name, model.ready, "ready" if model.ready else "waiting", None)
    best = max(model.engines, key=lambda engine: engine.fraction or 0.0)
    if best.state == "ready":  # it has failed, and its supervisor has not seen it yet
        return ModelReadiness(model.name, ready=False, stage="restarting", fraction=None)
    return ModelReadiness(model.name, ready=False, stage=best.stage or best.state, fraction=best.fraction)
