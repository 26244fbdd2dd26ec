"""The daemon keeps responses and conversations over ends and kills, and finishes what it had begun."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import APIConnectionError, OpenAI

from tests.acu.running import DaemonFactory, RunningDaemon, until

SCRIPT = {
    "rules": [
        {"match": "name is Ann", "answer": "Hello, Ann."},
        {"within": "prompt", "match": "(?s)name is Ann.*Who am I", "answer": "You are Ann."},
        {"match": "count", "answer": "0123456789" * 30, "tokens_per_s": 150},
    ]
}
Clients = Callable[..., OpenAI]


@pytest.fixture
def client() -> Iterator[Clients]:
    """Makes the client of a daemon; all are closed at the end."""
    with contextlib.ExitStack() as opened:

        def make(running: RunningDaemon) -> OpenAI:
            return opened.enter_context(OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=60))

        yield make


def killed(running: RunningDaemon) -> None:
    running.signal(signal.SIGKILL)
    running.process.wait(10)
    running.checked = True
    running.socket.unlink(missing_ok=True)


def test_a_conversation_goes_on_after_a_restart(daemon: DaemonFactory, client: Clients) -> None:
    running = daemon(script=SCRIPT)
    api = client(running)
    first = api.responses.create(model="large", input="My name is Ann")
    kept = api.conversations.create()
    api.responses.create(model="large", input="My name is Ann", conversation=kept.id)
    running.stop()
    api = client(daemon(script=SCRIPT))
    assert api.responses.retrieve(first.id).to_dict() == first.to_dict()
    second = api.responses.create(model="large", input="Who am I?", previous_response_id=first.id)
    assert second.output_text == "You are Ann."
    third = api.responses.create(model="large", input="Who am I?", conversation=kept.id)
    assert third.output_text == "You are Ann."
    assert len(api.conversations.items.list(kept.id).data) == 4


def test_a_response_in_mid_stream_survives_a_kill_and_its_stream_goes_on_where_it_was(
    daemon: DaemonFactory, client: Clients
) -> None:
    running = daemon(script=SCRIPT)
    seen: list[Any] = []
    with pytest.raises(APIConnectionError):  # the connection dies with the daemon
        for event in client(running).responses.create(model="large", input="count", stream=True):
            seen.append(event)
            if len(seen) == 20:
                killed(running)
    assert len(seen) >= 20
    response_id = seen[0].response.id
    again = daemon(script=SCRIPT)
    api = client(again)
    last = seen[-1].sequence_number
    until(lambda: api.responses.retrieve(response_id).status != "in_progress", "the response is finished")
    rest = list(api.responses.retrieve(response_id, stream=True, starting_after=last))
    numbers = [event.sequence_number for event in (*seen, *rest)]
    assert numbers == list(range(len(numbers)))
    text = "".join(event.delta for event in (*seen, *rest) if event.type == "response.output_text.delta")
    assert text == "0123456789" * 30
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == text
    whole = list(api.responses.retrieve(response_id, stream=True))
    assert [event.to_dict() for event in whole[: last + 1]] == [event.to_dict() for event in seen]
