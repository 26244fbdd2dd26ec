"""GET /openapi.json: an OpenAPI 3.1 document of the route table, its schemas taken from the same structs that decode."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from aiohttp import web

from acu.http.errors import ErrorResponse
from acu.http.exchange import Exchange
from acu.http.ratelimit import HEADERS
from acu.http.route import Answer, Route

REF = "#/components/schemas/{name}"
STATUSES = {
    400: "The request is malformed, or a value in it cannot be served.",
    401: "An API key is needed, or the one given is not valid.",
    403: "The caller may not do this, or comes from a web page.",
    404: "There is no such model, path, or thing of that id that is the caller's.",
    405: "The path has no such method.",
    408: "The request did not arrive in time.",
    409: "Something else is being done that must end first.",
    413: "The body is too large, or has too many values.",
    415: "The body is not of the type that is wanted, or has a Content-Encoding.",
    417: "The expectation cannot be met.",
    429: "The queue is full: try again after the time given.",
    431: "The headers are too large.",
    500: "The server failed.",
    503: "The server cannot take the request now: try again after the time given.",
    504: "The deadline passed before the request could be taken.",
    507: "The disk is full.",
}

BEFORE_ADMISSION = {"401", "403", "405", "431"}  # refusals of those who may not call the route, or have not named it
RATELIMIT_HEADERS = {
    name: {"description": meaning, "schema": {"type": "string" if "-reset-" in name else "integer"}}
    for name, meaning in HEADERS.items()
}

NAME_RUNS = ("createChatCompletion", "createResponse")
RUN_HEADER = {
    "x-acu-run-id": {
        "description": "The run that answers, which /acu/v1/runs tells of; not with a plain model's chat completion.",
        "schema": {"type": "string", "pattern": "^run_[0-9a-f]{24}$"},
    }
}

ANY_REQUEST = (400, 405, 408, 431, 500, 503)  # what a request may meet wherever it goes


def routes(others: tuple[Route, ...]) -> tuple[Route, ...]:
    """The document's own entry in the table. It is put together when it is first asked for."""
    documents: list[bytes] = []

    async def openapi(exchange: Exchange) -> web.StreamResponse:
        if not documents:
            documents.append(msgspec.json.encode(document((*others, route))))
        return exchange.json(documents[0])

    route = Route(
        method="GET",
        path="/openapi.json",
        endpoint=openapi,
        scope="open",
        name="openapi",
        summary="This document.",
        answers={200: (Answer("The document.", body=dict[str, Any]),)},
    )
    return (route,)


def document(table: tuple[Route, ...]) -> dict[str, Any]:
    """The whole document."""
    types = _types(table)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ACU",
            "version": "1",
            "description": "The OpenAI API of one Agent Compute Unit, and what it adds under /acu/v1.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(table: tuple[Route, ...]) -> list[Any]:
    types: list[Any] = [ErrorResponse]
    for route in table:
        bodies = [answer.body for answers in route.answers.values() for answer in answers]
        types += [kind for kind in (route.body, route.form, *bodies) if kind is not None]
    return types


def _operation(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route, schemas),
    }
    for media_type, kind in (("application/json", route.body), ("multipart/form-data", route.form)):
        if kind is None:
            continue
        content = {media_type: {"schema": schemas[id(kind)]}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.scope != "open":
        operation["security"] = [{}, {"key": []}]  # {}: the unix socket's owner, or loopback while there are no keys
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.query is not None:
        parameters += map(_query_parameter, msgspec.structs.fields(route.query))
    parameters.append(
        {
            "name": "x-request-id",
            "in": "header",
            "description": "Comes back with the answer and stands in the log.",
            "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
        }
    )
    if route.rate_limited:
        parameters.append(
            {
                "name": "x-acu-deadline-ms",
                "in": "header",
                "description": "Milliseconds within which an engine must have taken the request; 504 if none did.",
                "schema": {"type": "integer", "minimum": 1, "maximum": 86_400_000},
            }
        )
    return parameters


def _query_parameter(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    schema = msgspec.json.schema(field.type)
    if field.default not in (msgspec.NODEFAULT, msgspec.UNSET):
        schema["default"] = field.default
    return {"name": field.encode_name, "in": "query", "required": field.required, "schema": schema}


def _responses(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, answers in route.answers.items():
        content = {answer.content_type: _schema(answer, schemas) for answer in answers}
        responses[str(status)] = {"description": " ".join(answer.description for answer in answers), "content": content}
    refusals = {*ANY_REQUEST, *route.refusals}
    if route.scope != "open":
        refusals |= {401, 403}
    error = {"application/json": {"schema": schemas[id(ErrorResponse)]}}
    for status in sorted(refusals):
        responses.setdefault(str(status), {"description": STATUSES[status], "content": error})
    if route.rate_limited:
        for told in responses.keys() - BEFORE_ADMISSION:
            responses[told]["headers"] = RATELIMIT_HEADERS
    if route.name in NAME_RUNS:
        for status in route.answers:
            responses[str(status)]["headers"] = {**responses[str(status)].get("headers", {}), **RUN_HEADER}
    return responses


def _schema(answer: Answer, schemas: dict[int, Any]) -> dict[str, Any]:
    if answer.content_type == "application/json":
        return {"schema": schemas[id(answer.body)]}
    if answer.content_type == "text/event-stream":
        # No type: a tool that knows such streams checks each event by it, and others the whole text.
        return {"schema": {"description": _lines(schemas[id(answer.body)])}}
    return {"schema": {"type": "string"} if answer.content_type.startswith("text/") else {}}


def _lines(event: dict[str, Any]) -> str:
    """The lines of a stream of events. Those of several types name their type, and the last of them is the end."""
    if "$ref" in event:
        return f"Lines `data: <{_name(event)}>`, each followed by an empty line; `data: [DONE]` at the end."
    names = ", ".join(map(_name, event["anyOf"]))
    return f"Lines `event: <its type>` and `data: <the event>`, then an empty line. Events are: {names}."


def _name(reference: dict[str, Any]) -> str:
    return str(reference["$ref"].rpartition("/")[2])
