"""The history as event logs see it: there from the first event on, told when it is not well, and never the reason for more."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane.errors import Closed, Damaged, NotFound
from dataplane.state.forgetting import EVERYTHING, Note
from dataplane.state.logshards import LogEvent
from dataplane.state.oldevents import HistoryStatus, OldEvents


def events(*seqs: int, tenant: str = "t", payload: bytes = b"x") -> list[LogEvent]:
    return [LogEvent(tenant, "tok/s", seq, "e", seq, payload) for seq in seqs]


def status(old: OldEvents, trouble: str | None = None) -> HistoryStatus:
    return old.status(moved=0, forgotten=0, trouble=trouble)


def test_there_is_no_folder_before_there_is_an_event(tmp_path: Path) -> None:
    old = OldEvents(tmp_path / "history")
    old.open()
    assert old.forget([Note(b"", b"", "t")]) == old.tidy(5) == 0
    assert (old.count("t"), old.damaged(), old.is_there) == ((0, 0), {}, False)
    assert status(old) == HistoryStatus()
    linked: list[Path] = []
    old.link(linked.append)
    assert (linked, list(tmp_path.iterdir())) == ([], [])
    old.store(events(1, 2))
    assert old.is_there
    assert old.span("t", "tok/s", range(1, 3), 10, 1 << 20) == events(1, 2)
    old.link(linked.append)
    assert [path.name for path in linked] == ["log-00000001.parquet", "manifest.json"]
    told = status(old, "some trouble")
    assert (told.rows, told.shards, told.bytes) == (2, 1, linked[0].stat().st_size)
    assert told.problems == ("some trouble",)
    old.close()
    old.close()


def test_notes_are_done_by_log_and_by_tenant(tmp_path: Path) -> None:
    old = OldEvents(tmp_path / "history")
    for tenant in ("a", "b", "c"):
        old.store(events(*range(1, 11), tenant=tenant))
    notes = [Note(b"", b"", "a"), Note(b"", b"", "b", "tok/s", 4), Note(b"", b"", "c", "other/s", EVERYTHING)]
    assert old.forget(notes) == 14
    assert [old.count(tenant)[0] for tenant in ("a", "b", "c")] == [0, 6, 10]
    assert old.span("b", "tok/s", range(1, 11), 10, 1 << 20) == events(*range(5, 11), tenant="b")
    assert old.tidy(8) == 3 + 7
    assert (status(old).rows, status(old).shards) == (6, 2), "neither is worth rewriting for the other"
    old.close()


def test_what_is_stored_takes_the_place_of_what_was_another_s(tmp_path: Path) -> None:
    old = OldEvents(tmp_path / "history")
    old.store(events(*range(1, 21)))
    old.store(events(5, 6) + events(7, 8, payload=b"other"))
    assert old.span("t", "tok/s", range(1, 30), 100, 1 << 20) == events(*range(1, 7)) + events(7, 8, payload=b"other")
    old.close()


def test_a_history_that_cannot_be_opened_says_so_until_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    old = OldEvents(folder)
    old.store(events(1))
    old.close()
    good = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(b"{}")
    old = OldEvents(folder)
    old.open()
    assert old.problem is not None
    assert status(old).problems == (old.problem,)
    assert old.damaged() == {"": [old.problem]}
    for ask in (
        lambda: old.span("t", "tok/s", range(1, 2), 1, 1),
        lambda: old.store(events(2)),
        lambda: old.count("t"),
        lambda: old.tidy(None),
    ):
        with pytest.raises(Damaged, match=r"manifest\.json"):
            ask()
    linked: list[Path] = []
    old.link(linked.append)
    assert {path.name for path in linked} == {"manifest.json", "log-00000001.parquet"}
    (folder / "manifest.json").write_bytes(good)
    old.open()
    assert status(old).problems == ()
    assert old.span("t", "tok/s", range(1, 2), 1, 1) == events(1)
    old.close()
    with pytest.raises(Closed):
        old.count("t")


def test_a_shard_that_is_not_there_is_not_discarded(tmp_path: Path) -> None:
    old = OldEvents(tmp_path / "history")
    with pytest.raises(NotFound):
        old.discard("log-00000001.parquet")
    old.store(events(1))
    with pytest.raises(NotFound):
        old.discard("log-00000002.parquet")
    assert "none of its 1 events are lost" in old.discard("log-00000001.parquet")  # for it is well
    assert status(old).rows == 1
    (tmp_path / "history" / "log-00000002.parquet").write_bytes(b"")
    old.reload("log-00000002.parquet")
    assert "its 1 events are lost" in old.discard("log-00000002.parquet")
    assert status(old) == HistoryStatus()
    old.close()
