"""The x-ratelimit headers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from acu.http.auth import Keys
from acu.http.ratelimit import HEADERS, duration, ratelimit_headers
from agentflow.status import Capacity
from tests.acu.http.hostile import CHAT, COMPLETIONS, EMBEDDINGS, chat, request
from tests.acu.http.raw import Reply, talk
from tests.acu.http.serving import serving

PREFIX = "x-ratelimit-"


def told(reply: Reply) -> dict[str, str]:
    return {name.removeprefix(PREFIX): value for name, value in reply.headers.items() if name.startswith(PREFIX)}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (361.2, "6m2s"),
        (3599.5, "1h0m0s"),
        (7325, "2h2m5s"),
    ],
)
def test_a_duration_is_written_as_openai_does(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_the_headers_say_what_the_capacity_is() -> None:
    assert ratelimit_headers(Capacity(100, 40, 2.5, 4000, 0, 90)) == {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "40",
        "x-ratelimit-reset-requests": "2.5s",
        "x-ratelimit-limit-tokens": "4000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m30s",
    }
    assert set(ratelimit_headers(Capacity(1, 1, 0, 1, 1, 0))) == HEADERS.keys()


async def test_every_answer_of_the_three_endpoints_carries_them_and_no_other_does() -> None:
    completion = json.dumps({"model": "scripted", "prompt": "hello"}).encode()
    embedding = json.dumps({"model": "embed", "input": "hello"}).encode()
    async with serving() as served:
        for body, path, status in (
            (chat(), CHAT, 200),
            (chat(stream=True), CHAT, 200),
            (chat(model="gpt-17"), CHAT, 404),
            (b"{", CHAT, 400),
            (completion, COMPLETIONS, 200),
            (embedding, EMBEDDINGS, 200),
            (b"{}", EMBEDDINGS, 400),
        ):
            reply = await talk(served, iter([request(body, path=path)]))
            assert reply.status == status
            assert {PREFIX + name for name in told(reply)} == HEADERS.keys()
        assert not told(await talk(served, iter([request(method="GET", path="/v1/models")])))


async def test_who_may_not_come_in_is_not_told_how_busy_it_is(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("[{name: ops, key: an-operators-key, scopes: [admin]}]")
    path.chmod(0o600)
    async with serving(keys=Keys(path)) as served:
        for extra, status in (
            ("Origin: https://evil.example\r\n", 403),
            ("", 401),
            ("Authorization: Bearer wrong\r\n", 401),
            ("Authorization: Bearer an-operators-key\r\n", 403),
        ):
            reply = await talk(served, iter([request(chat(), extra=extra)]))
            assert (reply.status, told(reply)) == (status, {})


async def test_a_server_that_drains_has_nothing_left_to_give() -> None:
    async with serving() as served:
        await served.service.drain(1)
        reply = await talk(served, iter([request(chat())]))
    left = told(reply)
    assert reply.status == 503
    assert (left["remaining-requests"], left["remaining-tokens"], left["reset-requests"]) == ("0", "0", "5s")


async def test_the_capacity_shrinks_as_requests_run_and_wait_and_is_none_where_one_is_refused() -> None:
    async with serving(max_running=1, queue_limit=1, queue_tokens=1000) as served:
        before = told(await talk(served, iter([request(b"{")])))
        slow = request(chat(messages=[{"role": "user", "content": "slow"}]))
        writers = []
        for waiting in range(2):
            _, writer = await served.connect()
            writer.write(slow)
            writers.append(writer)
            async with asyncio.timeout(5):
                while served.service.status().queued < waiting or not served.service.status().running:
                    await asyncio.sleep(0.005)
        refused = await talk(served, iter([slow]))
        waiting_tokens = served.service.status().queued_tokens
        for writer in writers:
            writer.transport.abort()
        await served.idle()
        after = told(await talk(served, iter([request(chat())])))
    assert before["remaining-requests"] == before["limit-requests"]
    assert (before["reset-requests"], before["reset-tokens"]) == ("0s", "0s")
    assert refused.status == 429
    full = told(refused)
    assert (full["limit-requests"], full["remaining-requests"]) == ("2", "0")
    assert (full["limit-tokens"], full["remaining-tokens"]) == ("1000", str(1000 - waiting_tokens))
    assert full["reset-requests"] == full["reset-tokens"] == "1s"  # nothing has ended yet to learn from
    assert after["remaining-requests"] == after["limit-requests"] == "2"
