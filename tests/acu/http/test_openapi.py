"""The document is complete, and the server keeps to it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acu.http.openapi import document
from acu.http.route import Route
from tests.acu.http.hostile import request
from tests.acu.http.library_serving import serving_library
from tests.acu.http.raw import talk
from tests.acu.http.serving import serving


async def fetch() -> dict[str, Any]:
    async with serving() as served:
        reply = await talk(served, iter([request(method="GET", path="/openapi.json")]))
    assert reply.status == 200
    return msgspec.json.decode(reply.body)  # type: ignore[no-any-return]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


async def test_every_route_is_documented_with_its_body_and_its_refusals() -> None:
    served = await fetch()
    assert served["openapi"] == "3.1.0"
    assert set(served["paths"]) == {
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/models/{model}", "/healthz",
        "/readyz", "/metrics", "/acu/v1/status", "/openapi.json", "/v1/files", "/v1/files/{file_id}",
        "/v1/files/{file_id}/content", "/v1/vector_stores", "/v1/vector_stores/{vector_store_id}",
        "/v1/vector_stores/{vector_store_id}/search", "/v1/vector_stores/{vector_store_id}/files",
        "/v1/vector_stores/{vector_store_id}/files/{file_id}",
        "/v1/vector_stores/{vector_store_id}/files/{file_id}/content",
        "/v1/vector_stores/{vector_store_id}/file_batches",
        "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}",
        "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel",
        "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files", "/acu/v1/data/status",
        "/acu/v1/data/verify", "/acu/v1/data/backup", "/acu/v1/data/archive", "/acu/v1/data/erase",
        "/acu/v1/data/jobs/{job_id}", "/acu/v1/runs", "/acu/v1/runs/{run_id}", "/acu/v1/runs/{run_id}/events",
        "/acu/v1/runs/{run_id}/cancel", "/acu/v1/runs/{run_id}/pause", "/acu/v1/runs/{run_id}/resume",
        "/acu/v1/runs/{run_id}/step", "/acu/v1/runs/{run_id}/messages",
        "/acu/v1/runs/{run_id}/calls/{call_id}/approval",
        "/v1/responses", "/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items",
        "/v1/responses/{response_id}/cancel", "/v1/conversations", "/v1/conversations/{conversation_id}",
        "/v1/conversations/{conversation_id}/items", "/v1/conversations/{conversation_id}/items/{item_id}",
    }  # fmt: skip
    chat = served["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatBody"}
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    wanted = {"200", "400", "401", "403", "404", "405", "408", "413", "415", "417", "429", "431", "500", "503", "504"}
    assert set(chat["responses"]) == wanted
    error = {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}
    assert all(chat["responses"][status]["content"]["application/json"] == error for status in wanted - {"200"})


async def test_the_headers_that_clients_pace_themselves_by_are_documented() -> None:
    served = await fetch()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        responses = served["paths"][path]["post"]["responses"]
        for response in (responses[status] for status in ("200", "400", "413", "429", "503")):
            assert response["headers"]["x-ratelimit-remaining-requests"]["schema"] == {"type": "integer"}
            assert response["headers"]["x-ratelimit-reset-tokens"]["schema"] == {"type": "string"}
    assert "headers" not in served["paths"]["/v1/models"]["get"]["responses"]["200"]


async def test_parameters_and_forms_are_documented_by_what_reads_them() -> None:
    paths = (await fetch())["paths"]
    listed = paths["/v1/vector_stores/{vector_store_id}/files"]["get"]["parameters"]
    told = {(parameter["in"], parameter["name"]): parameter for parameter in listed}
    assert told["path", "vector_store_id"]["required"] is True
    assert told["query", "limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
    assert told["query", "after"] == {
        "name": "after",
        "in": "query",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": 128},
    }
    assert set(told["query", "filter"]["schema"]["enum"]) == {"in_progress", "completed", "failed", "cancelled"}
    both = paths["/v1/vector_stores/{vector_store_id}/files/{file_id}"]["get"]["parameters"]
    assert [parameter["name"] for parameter in both[:2]] == ["vector_store_id", "file_id"]
    upload = paths["/v1/files"]["post"]
    assert upload["requestBody"]["content"] == {
        "multipart/form-data": {"schema": {"$ref": "#/components/schemas/FileForm"}}
    }
    assert {"408", "413", "415", "503", "507"} <= set(upload["responses"])
    form = (await fetch())["components"]["schemas"]["FileForm"]
    assert form["properties"]["file"]["format"] == "binary"
    assert set(form["properties"]) == {"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"}
    assert set(form["required"]) == {"file", "purpose"}


async def test_every_reference_leads_somewhere() -> None:
    served = await fetch()
    found = set(references(served))
    assert found
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in served["components"]["schemas"]


async def test_answers_that_runs_give_have_a_header_for_their_names() -> None:
    paths = (await fetch())["paths"]
    for path, named in (("/v1/chat/completions", True), ("/v1/responses", True), ("/v1/completions", False)):
        headers = paths[path]["post"]["responses"]["200"]["headers"]
        assert ("x-acu-run-id" in headers) == named
        assert len(headers) > named


async def test_unknown_fields_are_refused_in_the_document_too() -> None:
    served = await fetch()
    assert served["components"]["schemas"]["ChatBody"]["additionalProperties"] is False
    assert set(served["components"]["schemas"]["ChatBody"]["required"]) == {"model", "messages"}


def test_a_status_that_nobody_explained_cannot_be_documented() -> None:
    async def endpoint(_: Any) -> Any: ...

    route = Route(
        method="GET", path="/x", endpoint=endpoint, scope="open", name="x", summary="x", answers={}, refusals=(418,)
    )
    with pytest.raises(KeyError):
        document((route,))


async def test_schemathesis_finds_no_server_error_and_nothing_undocumented(tmp_path: Path) -> None:
    """Left out is `positive_data_acceptance`: that a tool's message needs its call's id is no matter of types."""
    file = tmp_path / "openapi.json"
    async with serving_library(tmp_path) as served:
        reply = await talk(served, iter([request(method="GET", path="/openapi.json")]))
        told = msgspec.json.decode(reply.body)
        # Names of models that are served, or every valid request would end with 404.
        for body in ("ChatBody", "CompletionBody", "EmbeddingBody", "ResponseBody"):
            model = "embed" if body == "EmbeddingBody" else "scripted"
            told["components"]["schemas"][body]["properties"]["model"] = {"enum": [model]}
        # A number in a header is text on the wire, which the tool takes for an error where the rest is right.
        search = told["paths"]["/v1/vector_stores/{vector_store_id}/search"]["post"]
        search["parameters"] = [known for known in search["parameters"] if known["name"] != "x-acu-deadline-ms"]
        file.write_text(json.dumps(told))
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).parent / "schemathesis"), "run", str(file), "--url", served.url),
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
            *("--max-examples", "5", "--phases", "coverage,fuzzing", "--request-timeout", "10", "--seed", "1"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        await served.idle()
    text = output.decode(errors="replace")
    print(text[-800:])
    assert process.returncode == 0, text[-4000:]
    assert len(served.records) > 500
    assert {record["status"] for record in served.records} >= {200, 400, 405, 415}
    assert not [record for record in served.records if record["status"] in range(500, 600)]
