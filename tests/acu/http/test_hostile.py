"""Every hostile request gets its status and code, and after all of them the server still serves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.acu.http.hostile import BODY_TIMEOUT_S, CASES, HEADER_TIMEOUT_S, Case, chat, request
from tests.acu.http.raw import talk
from tests.acu.http.serving import Served, limits, serving

on_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    """One server for the whole table."""
    settings = limits(header_timeout_s=HEADER_TIMEOUT_S, body_timeout_s=BODY_TIMEOUT_S)
    async with serving(settings) as running:
        yield running


def test_the_table_has_at_least_sixty_requests_with_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 60


@on_one_loop
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_it_gets_its_status_and_code(served: Served, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    reply = await talk(served, iter(case.pieces), half_close=case.half_close)
    error = reply.error
    assert (reply.status, error.get("code")) == (case.status, case.code or error.get("code")), reply
    assert set(error) == {"message", "type", "param", "code"}
    if case.param is not None:
        assert error["param"] == case.param
    assert len(reply.body) < 1000
    assert b"Traceback" not in reply.body
    assert not caplog.records  # a stranger must not be able to fill the log with warnings
    # and it harmed nobody
    good = await talk(served, iter([request(chat())]))
    assert good.status == 200
    assert b'"content":"Hi there"' in good.body


@on_one_loop
async def test_afterwards_nothing_is_left_running(served: Served) -> None:
    await served.idle()
    assert not [record for record in served.records if record["status"] >= 500]
