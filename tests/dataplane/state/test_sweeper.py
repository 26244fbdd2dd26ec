"""Expired state leaves by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dataplane.state import sweeper
from dataplane.store import opened
from tests.dataplane.planes import TENANT, config


async def test_what_has_expired_is_removed_in_time_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "EVERY_S", 0.05)
    async with opened(config(tmp_path / "data")) as plane:
        for number in range(20):
            await plane.state.put(TENANT, "session", f"s{number}", b"x", ttl_s=0.001 if number < 15 else None)
        async with asyncio.timeout(20):
            while plane.status().state.swept < 15:
                await asyncio.sleep(0.02)
        assert len(await plane.state.scan(TENANT, "session")) == 5
        assert plane.status().state.swept == 15
