"""The x-ratelimit headers: what the scheduler still takes, in the words that OpenAI's clients pace themselves by. Pure."""

from __future__ import annotations

import math

from agentflow.status import Capacity

HEADERS = {
    "x-ratelimit-limit-requests": "Requests of the model that may run and wait at a time.",
    "x-ratelimit-limit-tokens": "Prompt tokens that may wait at a time.",
    "x-ratelimit-remaining-requests": "Requests that would still be taken now: 0 while the server takes none at all.",
    "x-ratelimit-remaining-tokens": "Prompt tokens that may still wait now.",
    "x-ratelimit-reset-requests": (
        "When all will have run, by the scheduler's estimate and if nothing else comes: 6m0s, 1.5s, 120ms. "
        "While the server takes none at all: when to come again."
    ),
    "x-ratelimit-reset-tokens": "When nothing will wait any more, in the same form.",
}
"""What each header says."""


def ratelimit_headers(capacity: Capacity) -> dict[str, str]:
    """The headers for an answer that goes out now."""
    return {
        "x-ratelimit-limit-requests": str(capacity.requests),
        "x-ratelimit-limit-tokens": str(capacity.tokens),
        "x-ratelimit-remaining-requests": str(capacity.requests_free),
        "x-ratelimit-remaining-tokens": str(capacity.tokens_free),
        "x-ratelimit-reset-requests": duration(capacity.requests_reset_s),
        "x-ratelimit-reset-tokens": duration(capacity.tokens_reset_s),
    }


def duration(seconds: float) -> str:
    """Seconds in OpenAI's form (`1h0m0s`, `6m0s`, `1.5s`, `120ms`), rounded up to what it shows."""
    if seconds <= 0:
        return "0s"
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
