"""The tests of the face run on the loop that the daemon runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop: its transports differ from asyncio's in buffering and in how they close."""
    return {"uvloop": uvloop.new_event_loop}
