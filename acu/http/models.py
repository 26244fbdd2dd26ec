"""GET /v1/models and GET /v1/models/{model}."""

from __future__ import annotations

import msgspec
from aiohttp import web
from msgspec.structs import replace

from acu.http.exchange import Exchange
from acu.http.route import Answer, Route
from acu.http.wire.responses import Model, ModelList
from agentflow.agents.agency import PREFIX
from agentflow.errors import UnknownModel
from agentflow.service import Service
from agentflow.status import ModelStatus


def routes(service: Service) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""

    async def list_models(exchange: Exchange) -> web.StreamResponse:
        return exchange.json(msgspec.json.encode(ModelList(data=_served(service))))

    async def retrieve_model(exchange: Exchange) -> web.StreamResponse:
        wanted = exchange.path_arguments["model"]
        for entry in _served(service):
            if entry.id == wanted:
                return exchange.json(msgspec.json.encode(entry))
        raise UnknownModel(f"The model '{wanted[:128]}' is not served here.")

    return (
        Route(
            method="GET",
            path="/v1/models",
            endpoint=list_models,
            scope="inference",
            name="listModels",
            summary="The served models, under all their names, and the agents.",
            answers={200: (Answer("The models.", body=ModelList),)},
        ),
        Route(
            method="GET",
            path="/v1/models/{model}",
            endpoint=retrieve_model,
            scope="inference",
            name="retrieveModel",
            summary="One served model.",
            answers={200: (Answer("The model.", body=Model),)},
            refusals=(404,),
            takes_rest=True,
        ),
    )


def _served(service: Service) -> list[Model]:
    """Every model under each of its names, then the agents, which are as ready as the models that they speak with."""
    models = [entry for model in service.status().models for entry in _entries(model)]
    named = {entry.id: entry for entry in models}
    try:
        agents = service.agents.agents
    except UnknownModel:
        return models
    speaking = [(f"{PREFIX}{name}", named[agent.model]) for name, agent in agents.items() if agent.model in named]
    return [*models, *(replace(model, id=name) for name, model in speaking)]


def _entries(model: ModelStatus) -> list[Model]:
    """A model under each of its names; `root` is the first."""
    return [
        Model(id=name, created=model.created, root=model.name, max_model_len=model.max_model_len, ready=model.ready)
        for name in (model.name, *model.aliases)
    ]
