"""The daemon with its data plane: files and vector stores with the real client, over ends, kills and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from openai import OpenAI

from acu.data.folder import check_data_unused
from dataplane.config import DataPlaneConfig
from dataplane.store import opened
from tests.acu.running import DaemonFactory, RunningDaemon, acu, until
from tests.dataplane.damage import spoil_table

MARKDOWN = b"""# Opening hours

The library in the old town is open from nine to five, and closed on Mondays.

# Fees

A library card costs twelve euros a year. Children pay nothing.
"""
CHINESE = "上海明天的天气晴 最高二十度。".encode()


Clients = Callable[..., OpenAI]


@pytest.fixture
def client() -> Iterator[Clients]:
    """Makes the client of a daemon and a key; all are closed at the end."""
    with contextlib.ExitStack() as opened:

        def make(running: RunningDaemon, key: str = "none") -> OpenAI:
            return opened.enter_context(OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0, timeout=60))

        yield make


def filled_store(api: OpenAI) -> tuple[str, str]:
    """A vector store with two files, one of them Markdown with an attribute."""
    store = api.vector_stores.create(name="town")
    file = api.files.create(file=("library.md", MARKDOWN), purpose="assistants")
    done = api.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store.id, attributes={"topic": "library"}, poll_interval_ms=50
    )
    assert (done.status, done.last_error) == ("completed", None)
    other = api.files.create(file=("weather.txt", CHINESE), purpose="assistants")
    done = api.vector_stores.files.create_and_poll(
        other.id, vector_store_id=store.id, attributes={"topic": "weather"}, poll_interval_ms=50
    )
    assert done.status == "completed"
    return store.id, file.id


def found(api: OpenAI, store: str, query: str, **options: Any) -> list[str]:
    return [hit.filename for hit in api.vector_stores.search(store, query=query, **options).data]


def test_a_daemon_that_nobody_gives_anything_to_keep_makes_no_folder(
    daemon: DaemonFactory, client: Clients, tmp_path: Path
) -> None:
    running = daemon()
    data = running.status()["daemon"]["data"]
    assert (data["state"], data["why"]) == ("not used yet", None)
    assert not Path(data["folder"]).exists()
    assert client(running).models.list().data
    assert not Path(data["folder"]).exists()
    assert client(running).vector_stores.list().data == []
    assert running.status()["daemon"]["data"]["state"] == "open"
    assert Path(data["folder"]).is_relative_to(tmp_path)


def test_what_was_uploaded_is_found_by_words_and_attributes_and_after_a_restart(
    daemon: DaemonFactory, client: Clients
) -> None:
    running = daemon()
    store, file = filled_store(client(running))
    assert found(client(running), store, "What does a library card cost?", max_num_results=1) == ["library.md"]
    assert found(client(running), store, "上海明天天气怎么样", max_num_results=1) == ["weather.txt"]
    only = {"type": "eq", "key": "topic", "value": "weather"}
    assert found(client(running), store, "library card", filters=only) == ["weather.txt"]
    running.stop()
    again = daemon()
    until(lambda: again.status()["daemon"]["data"]["state"] == "open", "it is opened without being asked")
    assert found(client(again), store, "library card", max_num_results=1) == ["library.md"]
    assert client(again).files.content(file).read() == MARKDOWN
    client(again).files.delete(file)
    assert found(client(again), store, "library card") == ["weather.txt"]


def test_after_a_kill_everything_that_was_told_is_there(daemon: DaemonFactory, client: Clients) -> None:
    running = daemon()
    store, _ = filled_store(client(running))
    running.signal(signal.SIGKILL)
    running.process.wait(10)
    running.checked = True
    running.socket.unlink(missing_ok=True)
    again = daemon()
    assert found(client(again), store, "library card", max_num_results=1) == ["library.md"]
    assert client(again).vector_stores.retrieve(store).file_counts.completed == 2
    assert len(client(again).files.list().data) == 2


def test_a_second_key_sees_nothing_of_the_first(daemon: DaemonFactory, client: Clients, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    entries = [
        {"name": name, "key": f"sk-{name}-0123456789abcdef", "tenant": name, "scopes": ["inference"]}
        for name in ("ours", "theirs")
    ]
    keys.write_text(yaml.safe_dump(entries))
    keys.chmod(0o600)
    running = daemon({"network": {"api_keys_file": str(keys)}})
    ours, theirs = (client(running, f"sk-{name}-0123456789abcdef") for name in ("ours", "theirs"))
    store, file = filled_store(ours)
    assert theirs.files.list().data == []
    assert theirs.vector_stores.list().data == []
    for ask in (
        lambda: theirs.files.retrieve(file),
        lambda: theirs.files.content(file),
        lambda: theirs.files.delete(file),
        lambda: theirs.vector_stores.retrieve(store),
        lambda: theirs.vector_stores.search(store, query="library card"),
        lambda: theirs.vector_stores.files.list(store),
        lambda: theirs.vector_stores.delete(store),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    own = theirs.vector_stores.create(name="own")
    with pytest.raises(openai.NotFoundError):
        theirs.vector_stores.files.create(own.id, file_id=file)
    assert found(ours, store, "library card", max_num_results=1) == ["library.md"]


def test_a_second_daemon_on_a_folder_of_data_is_refused(daemon: DaemonFactory, client: Clients, tmp_path: Path) -> None:
    first = daemon()
    client(first).vector_stores.create(name="one")
    folder = first.status()["daemon"]["data"]["folder"]
    network = {"bind_addr": "127.0.0.1:0", "unix_socket": str(tmp_path / "second.sock")}
    models = {"large": {"model": "any", "engine": "scripted"}}
    second = tmp_path / "second.yaml"
    second.write_text(yaml.safe_dump({"network": network, "models": models, "data_plane": {"path": folder}}))
    done = acu("serve", "-c", str(second), environ=first.environ)
    who = Path(f"/proc/{first.pid}/comm").read_text().strip()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"acu: data_plane.path: {folder} is in use by {who} (pid {first.pid}); "
        f"stop it, or choose another path ({second}:2)\n"
    )
    assert not (tmp_path / "second.sock").exists()
    assert acu("config", "check", str(second), environ=first.environ).returncode == 0, "it is right, beside this"
    assert [store.name for store in client(first).vector_stores.list()] == ["one"]
    first.signal(signal.SIGKILL)
    first.process.wait()
    first.checked = True
    check_data_unused(folder)


def test_of_two_daemons_with_one_folder_of_data_that_is_not_used_yet_the_second_is_refused(
    daemon: DaemonFactory, tmp_path: Path
) -> None:
    first = daemon()
    folder = first.status()["daemon"]["data"]["folder"]
    assert not Path(folder).exists()
    second = tmp_path / "second.yaml"
    second.write_text(yaml.safe_dump({"network": {"bind_addr": None, "unix_socket": str(tmp_path / "second.sock")}}))
    done = acu("serve", "--engine", "scripted", "-c", str(second), environ=first.environ)
    who = Path(f"/proc/{first.pid}/comm").read_text().strip()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"acu: data_plane.path: {folder} is kept by {who} (pid {first.pid}), which has not stored anything yet; stop it, or "
        "choose another path\n"
    )
    assert not (tmp_path / "second.sock").exists()
    assert not Path(folder).exists()
    first.signal(signal.SIGKILL)
    first.process.wait()
    first.checked = True
    first.socket.unlink()
    assert daemon().status()["daemon"]["data"]["state"] == "not used yet"


async def worn(config: DataPlaneConfig) -> Path:
    """Make a data plane with a table file that is damaged, and that is rewritten as soon as it is opened again."""
    async with opened(config) as plane:
        table = await spoil_table(plane, 3)
        await plane.state.put("acme", "blob", "0", b"for a fourth table, made of the log")
    return table


def test_damage_that_stops_writes_is_told_and_refused_reads_go_on_and_the_end_is_orderly(
    daemon: DaemonFactory, client: Clients, tmp_path: Path
) -> None:
    kept = {"path": str(tmp_path / "data"), "hot_layer_mem_mb": 64, "archive_every_s": None}
    table = asyncio.run(worn(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64, archive_every_s=None)))
    running = daemon({"data_plane": kept})
    until(lambda: running.status()["daemon"]["data"]["state"] == "takes no writes", "it is told")
    report = running.client().get("/acu/v1/data/status")
    why = report["why"]
    assert why.startswith(
        f"the data plane takes no writes: its file {table.name} is damaged. Reads go on. Stop the daemon"
    )
    assert "`acu data restore --from-backup DIR`" in why
    assert report["plane"]["failed"] == why
    for _ in range(2):
        with pytest.raises(openai.InternalServerError) as refused:
            client(running).vector_stores.create(name="one")
        assert (refused.value.status_code, refused.value.code) == (503, "data_plane_unavailable")
        assert why in refused.value.message
    assert client(running).vector_stores.list().data == []
    shown = acu("data", "status", "-c", str(running.config), environ=running.environ)
    assert (shown.returncode, f"takes no writes: {why}" in " ".join(shown.stdout.split())) == (1, True)
    looked = acu("data", "verify", "--deep", "--json", "-c", str(running.config), environ=running.environ)
    found = json.loads(looked.stdout)["problems"]
    assert looked.returncode == 1
    assert [one["where"] for one in found] == ["database", "state"]
    assert all(table.name in one["what"] for one in found)
    running.stop()
    (told,) = [line for line in running.log_lines() if line["level"] == "error"]
    assert (told["event"], str(table) in told["why"]) == ("the data plane takes no writes", True)
    assert "acu data restore" in told["remedy"]

    def in_the_folder() -> bool:
        shown = acu("data", "status", "--json", "-c", str(running.config), environ=running.environ)
        report = json.loads(shown.stdout)
        return (shown.returncode, report["state"], report["why"]) == (1, "takes no writes", why)

    until(in_the_folder, "it is told without a daemon too")
