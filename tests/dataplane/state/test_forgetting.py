"""Notes of what the history must forget: written with the change, gone when it is done, kept when they say more by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane.errors import Damaged
from dataplane.state import forgetting
from dataplane.state.forgetting import EVERYTHING, Forgotten, noted
from dataplane.truth import keys
from tests.dataplane.logs import Logs, logs


def notes(box: Logs, limit: int = 100) -> list[tuple[str, str | None, int]]:
    """What is noted, without tokens."""
    return [(one.tenant, one.log and one.log.partition("/")[2], one.through) for one in noted(box.rocks, limit)]


async def test_only_what_may_be_in_the_history_is_noted(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s/t", 10)
        await box.fill("b", "s", 10)
        await box.state.trim("a", "s/t", 3)
        await box.state.drop_stream("b", "s")
        assert notes(box) == []
        await box.fill("b", "s", 10)
        await box.mover.round()
        await box.state.trim("a", "s/t", 2)
        assert notes(box) == []
        await box.state.trim("a", "s/t", 5)
        await box.state.trim("a", "s/t", 7)
        await box.state.drop_stream("b", "s")
        await box.state.drop_tenant("c")
        assert notes(box) == [("a", "s/t", 7), ("b", "s", EVERYTHING), ("c", None, EVERYTHING)]
        assert notes(box, 2) == [("a", "s/t", 7), ("b", "s", EVERYTHING)]
        await box.mover.forget()
        assert notes(box) == []


async def test_a_note_that_says_more_by_then_stays(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        await box.fill("a", "s", 10)
        await box.mover.round()
        await box.state.trim("a", "s", 3)
        before = noted(box.rocks, 10)
        await box.state.trim("a", "s", 6)
        for command in Forgotten.of(before):
            await box.writer.submit(command)
        assert notes(box) == [("a", "s", 6)]


async def test_notes_lie_where_no_record_does_and_no_tenant_sees_another_s(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        for tenant in ("a", "ab"):
            await box.fill(tenant, "s", 3)
        await box.mover.round()
        await box.state.drop_stream("a", "s")
        assert await box.state.scan("a", "s") == await box.state.scan("ab", "s") == []
        await box.mover.forget()
        assert (box.old.count("a"), box.old.count("ab")) == ((0, 3), (3, 3))


async def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    async with logs(tmp_path) as box:
        batch = box.rocks.batch()
        batch.put("state", keys.tenant_prefix("a") + b"\xff\x05\x00\x01\xffx", keys.number(3))
        box.rocks.write(batch)
        with pytest.raises(Damaged, match="what the history must forget"):
            noted(box.rocks, 10)


def test_a_log_s_name_in_the_history_is_no_other_s() -> None:
    names = {forgetting.log_name(stream, token) for stream in ("s", "t/s", "/s") for token in ("", "t", "ab")}
    assert len(names) == 9
