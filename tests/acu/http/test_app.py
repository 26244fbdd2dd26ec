"""The face's answers to paths that it does not have."""

from __future__ import annotations

import pytest

from tests.acu.http.hostile import request
from tests.acu.http.raw import talk
from tests.acu.http.serving import serving


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", ". Did you mean /v1/chat/completions?"),
        ("/v1/v1/models", ". Did you mean /v1/models?"),
        ("/v1/healthz", ". Did you mean /healthz?"),
        ("/v1/none", ""),
        ("/none", ""),
        ("/v1", ""),
    ],
)
async def test_an_unknown_path_is_told_the_one_that_a_wrong_base_url_has_missed(path: str, hint: str) -> None:
    async with serving() as served:
        reply = await talk(served, iter([request(method="GET", path=path, content_type=None)]))
    assert (reply.status, reply.error["code"]) == (404, "unknown_path")
    assert reply.error["message"] == f"Unknown path: {path}{hint}"


async def test_a_long_unknown_path_is_cut_and_has_no_hint() -> None:
    async with serving() as served:
        reply = await talk(served, iter([request(method="GET", path="/models/" + "x" * 500, content_type=None)]))
    assert reply.error["message"] == "Unknown path: /models/" + "x" * 120
