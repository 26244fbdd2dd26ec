"""acu data, against the real daemon and against a folder that no daemon has open."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from acu.models.progress import human
from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, acu, isolated_environ, until

TEXT = "The lighthouse of Ushant was lit by hand until 1984. " * 20


def upload(running: RunningDaemon, name: str = "lighthouse.txt", text: str = TEXT) -> str:
    """Put a file into a new vector store, and return the store's id once it is in."""
    with httpx2.Client(base_url=running.url, timeout=30) as client:
        file = client.post("/v1/files", files={"file": (name, text)}, data={"purpose": "assistants"}).json()
        store = client.post("/v1/vector_stores", json={"name": "notes", "file_ids": [file["id"]]}).json()
        until(
            lambda: client.get(f"/v1/vector_stores/{store['id']}").json()["status"] == "completed",
            "the file is in the store",
        )
    return str(store["id"])


def passages(running: RunningDaemon, store: str) -> list[tuple[str, float]]:
    """What a search of the store finds."""
    with httpx2.Client(base_url=running.url, timeout=30) as client:
        found = client.post(f"/v1/vector_stores/{store}/search", json={"query": "lighthouse"}).json()["data"]
    return [(hit["content"][0]["text"], round(hit["score"], 5)) for hit in found]


def contents(running: RunningDaemon) -> dict[str, str]:
    """All files that were uploaded, by name, as they are downloaded."""
    with httpx2.Client(base_url=running.url, timeout=30) as client:
        listed = client.get("/v1/files").json()["data"]
        return {file["filename"]: client.get(f"/v1/files/{file['id']}/content").text for file in listed}


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    """A configuration whose data lie in the test's folder."""
    return {"data_plane": {"path": str(tmp_path / "data"), "hot_layer_mem_mb": 64, "archive_every_s": None}}


def data(running: RunningDaemon, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `acu data` with the daemon's configuration."""
    return acu("data", *words, "-c", str(running.config), environ=running.environ)


def test_the_status_of_a_running_daemon_is_told_by_it(daemon: DaemonFactory, place: dict[str, Any]) -> None:
    running = daemon(place)
    done = data(running, "status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "not used yet" in done.stdout
    upload(running)
    done = data(running, "status", "--json")
    report = json.loads(done.stdout)
    assert (report["state"], report["plane"]["memory_cap_bytes"]) == ("open", 64 << 20)
    assert report["plane"]["cold"]["backlog_rows"] > 0
    size = len(TEXT)
    assert report["uploads"] == {
        "files": 1,
        "bytes": size,
        "damaged_files": 0,
        "waiting_files": 1,
        "waiting_bytes": size,
    }
    shown = data(running, "status").stdout
    for word in (
        "TIER",
        "database",
        "changes of rows (",
        f"uploads   1 file ({human(len(TEXT))})",
        f", 1 file ({human(len(TEXT))})",
        "unknown until it was looked at",
        "open",
        "0 old events, 0 B in 0 files",
    ):
        assert word in shown
    for word in ("HEAT", "keeper", "?", "shards"):
        assert word not in shown
    (name,) = {one["name"] for one in report["plane"]["collections"]}
    assert len(name) > 20
    assert f"default/{name} " in shown  # whole, into a pipe
    assert data(running, "archive").returncode == 0
    running.stop()
    report = json.loads(data(running, "status", "--json").stdout)  # the folder itself
    assert report["uploads"] == {"files": 1, "bytes": size, "damaged_files": 0, "waiting_files": 0, "waiting_bytes": 0}


def test_backup_of_a_running_daemon_and_its_restore_give_the_same_answers(
    daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path
) -> None:
    running = daemon(place)
    store = upload(running)
    before = passages(running, store)
    assert before
    done = data(running, "backup", str(tmp_path / "backup"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'backup'}: ")
    done = data(running, "verify", "--backup", str(tmp_path / "backup"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'backup'}: nothing is wrong\n")
    cut = max((tmp_path / "backup" / "rocks").iterdir(), key=lambda path: path.stat().st_size)
    shutil.copytree(tmp_path / "backup", tmp_path / "torn")
    (tmp_path / "torn" / cut.relative_to(tmp_path / "backup")).write_bytes(cut.read_bytes()[:-1])
    done = data(running, "verify", "--backup", str(tmp_path / "torn"))
    assert done.returncode == 1
    assert done.stdout.startswith(f"wrong: {cut.relative_to(tmp_path / 'backup')} has ")
    assert data(running, "verify", "--backup", str(tmp_path / "none")).returncode == 1
    done = data(running, "restore", "--from-backup", str(tmp_path / "backup"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Stop the daemon that uses it" in done.stderr
    running.stop()
    shutil.rmtree(tmp_path / "data")
    done = data(running, "restore", "--from-backup", str(tmp_path / "backup"))
    assert done.returncode == 0, done.stderr
    again = daemon(place)
    assert passages(again, store) == before
    done = data(again, "verify", "--deep")
    assert (done.returncode, done.stdout.endswith("nothing is wrong\n")) == (0, True), done


def test_archive_wipe_restore_and_verify(daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path) -> None:
    running = daemon(place)
    store = upload(running)
    before = passages(running, store)
    assert contents(running) == {"lighthouse.txt": TEXT}
    done = data(running, "archive")
    assert done.returncode == 0, done.stderr
    assert ", 1 files and " in done.stdout
    assert done.stdout.startswith(f"folder {tmp_path / 'data-cold'}: manifest 1, ")
    assert "has everything already" in data(running, "archive").stdout
    running.stop()
    shutil.rmtree(tmp_path / "data")
    done = data(running, "restore", "--from-bucket")
    assert done.returncode == 0, done.stderr
    assert "what came later is not in it" in done.stdout
    done = data(running, "verify", "--deep")  # no daemon: the folder itself
    assert (done.returncode, "nothing is wrong" in done.stdout) == (0, True), done
    done = data(running, "restore", "--from-bucket")
    assert done.returncode == 1
    assert "not empty" in done.stderr
    again = daemon(place)
    assert passages(again, store) == before
    assert contents(again) == {"lighthouse.txt": TEXT}


def test_nothing_is_restored_into_the_folder_of_a_running_daemon_that_has_no_data_yet(
    daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path
) -> None:
    running = daemon(place)
    upload(running)
    assert data(running, "archive").returncode == 0
    assert data(running, "backup", str(tmp_path / "backup")).returncode == 0
    running.stop()
    shutil.rmtree(tmp_path / "data")
    again = daemon(place)
    for source in (["--from-bucket"], ["--from-backup", str(tmp_path / "backup")]):
        done = data(again, "restore", *source)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"a running daemon keeps its data in {tmp_path / 'data'}, or will" in done.stderr
        assert "Stop the daemon that uses it" in done.stderr
        assert not (tmp_path / "data").exists()
    again.stop()
    done = data(again, "restore", "--from-bucket")
    assert done.returncode == 0, done.stderr
    assert contents(daemon(place)) == {"lighthouse.txt": TEXT}


def test_an_archive_run_that_meets_a_damaged_file_fails_and_archives_the_rest(
    daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path
) -> None:
    running = daemon(place)
    upload(running)
    (file,) = (path for path in (tmp_path / "data" / "library" / "files").rglob("file-*") if path.is_file())
    file.write_text("short")
    upload(running, "whole.txt", "The whole one.")
    for _ in range(2):
        done = data(running, "archive")
        assert done.returncode == 1, done
        assert f"/{file.name} has 5 bytes, and was uploaded with {len(TEXT):,}" in done.stdout
        assert done.stdout.endswith(
            "1 file is damaged; all else is archived. Repair or delete what is named, then run `acu data archive` "
            "again.\n"
        )
    assert json.loads(data(running, "archive", "--json").stdout)["damaged"] != []
    with httpx2.Client(base_url=running.url, timeout=30) as client:
        assert client.delete(f"/v1/files/{file.name}").status_code == 200
    running.stop()
    assert data(running, "archive").returncode == 0
    shutil.rmtree(tmp_path / "data")
    assert data(running, "restore", "--from-bucket").returncode == 0
    assert contents(daemon(place)) == {"whole.txt": "The whole one."}


def test_a_tenant_is_erased_without_a_daemon_with_its_files_on_disk_and_in_the_archive(
    daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path
) -> None:
    running = daemon(place)
    upload(running)
    data(running, "archive")
    running.stop()
    assert files_with(b"Ushant", tmp_path / "data" / "library") != []
    assert files_with(b"Ushant", tmp_path / "data-cold" / "acu" / "attachments") != []
    done = data(running, "erase", "--tenant", "default", "--yes", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["left"], found["archive"]["left"], found["searched"]["files"]) == (0, [], [], 0)
    assert [name for name in found["archive"]["removed"] if name.startswith("attachments/")] != []
    assert files_with(b"Ushant", tmp_path) == []
    again = daemon(place)
    assert contents(again) == {}


def test_without_a_daemon_the_folder_is_opened_unless_one_was_named(
    daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path
) -> None:
    running = daemon(place)
    upload(running)
    running.stop()
    assert json.loads(data(running, "status", "--json").stdout)["state"] == "open"
    done = data(running, "backup", str(tmp_path / "backup"), "--json")
    assert json.loads(done.stdout)["files"] > 0
    done = data(running, "archive", "--json")
    assert json.loads(done.stdout)["manifest"] == 1
    done = data(running, "verify", "--socket", str(tmp_path / "nobody"))
    assert (done.returncode, done.stdout) == (3, "")
    shutil.rmtree(tmp_path / "data")
    done = data(running, "status")
    assert done.returncode == 1
    assert "there is no data plane in" in done.stderr


def test_a_folder_that_a_daemon_elsewhere_uses_is_left_alone(daemon: DaemonFactory, place: dict[str, Any]) -> None:
    running = daemon(place)
    upload(running)
    aside = running.socket.rename(running.socket.with_name("elsewhere"))
    done = data(running, "verify")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is open in another process: stop the daemon" in done.stderr
    assert "--socket PATH" in done.stderr
    aside.rename(running.socket)


def test_erase_asks_prints_a_receipt_and_leaves_nothing(
    daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path
) -> None:
    running = daemon(place)
    upload(running)
    data(running, "archive")
    done = data(running, "erase", "--tenant", "default")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--yes" in done.stderr
    (name,) = {one["name"] for one in json.loads(data(running, "status", "--json").stdout)["plane"]["collections"]}
    done = data(running, "erase", "--tenant", "default", "--collection", name, "--yes")
    assert done.returncode == 0, done
    for line in ("left: nothing", "archive: the folder", "note: Backups"):
        assert line in done.stdout
    assert json.loads(data(running, "status", "--json").stdout)["plane"]["collections"] == []
    assert json.loads(data(running, "verify", "--deep", "--json").stdout)["problems"] == []
    assert data(running, "erase", "--tenant", "default", "--id", "x", "--yes").returncode == 1


def test_a_vector_stores_file_is_told_with_less_once_rows_of_it_are_erased(
    daemon: DaemonFactory, place: dict[str, Any]
) -> None:
    running = daemon(place)
    store = upload(running, "long.txt", " ".join(f"word{n}" for n in range(1500)))
    full = _store_file(running, store)
    rows = [f"{full['id']}#{number}" for number in range(_rows(running))]
    assert (full["status"], len(rows) > 2) == ("completed", True)
    where = ("--tenant", "default", "--collection", store, "--yes")
    done = data(running, "erase", *where, "--id", rows[0])  # by the daemon, whose library is open
    assert done.returncode == 0, done
    assert "note: Of files in this vector store these chunks are gone" in done.stdout
    less = _store_file(running, store)
    assert (less["status"], less["last_error"]) == ("completed", None)
    assert 0 < less["usage_bytes"] < full["usage_bytes"]
    running.stop()
    words = [word for row in rows for word in ("--id", row)]
    done = data(running, "erase", *where, *words, "--json")  # in the folder
    assert (done.returncode, json.loads(done.stdout)["left"]) == (0, []), done
    gone = _store_file(daemon(place), store)
    assert (gone["status"], gone["usage_bytes"], gone["last_error"]["code"]) == ("failed", 0, "server_error")
    assert gone["last_error"]["message"].startswith("erased: ")


def _store_file(running: RunningDaemon, store: str) -> dict[str, Any]:
    """The only file of a vector store."""
    with httpx2.Client(base_url=running.url, timeout=30) as client:
        (file,) = client.get(f"/v1/vector_stores/{store}/files").json()["data"]
    return dict(file)


def _rows(running: RunningDaemon) -> int:
    (one,) = json.loads(data(running, "status", "--json").stdout)["plane"]["collections"]
    return int(one["rows"])


def test_a_tenant_leaves_no_file_and_no_word_behind_and_may_come_back(
    daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path
) -> None:
    running = daemon(place)
    upload(running)
    data(running, "archive")
    assert files_with(b"Ushant", tmp_path / "data") != []
    (stored,) = (one["rows"] for one in json.loads(data(running, "status", "--json").stdout)["plane"]["collections"])
    assert stored > 0
    done = data(running, "erase", "--tenant", "default", "--yes", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["left"], found["archive"]["left"]) == (0, [], [])
    assert (found["rows"], found["files"], found["collections"]) == (stored, 1, 1)
    assert files_with(b"Ushant", tmp_path / "data") == []
    done = data(running, "erase", "--tenant", "default", "--yes")
    assert (done.returncode, "there is no tenant 'default'" in done.stderr) == (1, True), done
    assert not list((tmp_path / "data" / "library" / "files").glob("*/*"))
    with httpx2.Client(base_url=running.url, timeout=30) as client:
        assert client.get("/v1/files").json()["data"] == []
        assert client.get("/v1/vector_stores").json()["data"] == []
    store = upload(running)
    assert passages(running, store)
    running.stop()
    again = daemon(place)
    assert passages(again, store)


def files_with(word: bytes, folder: Path) -> list[str]:
    """The files below a folder that hold a word as it is."""
    return [path.name for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


def test_a_job_goes_on_when_its_client_leaves_and_another_waits(
    daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path
) -> None:
    running = daemon(place)
    upload(running)
    client = running.client()
    job = client.post("/acu/v1/data/backup", {"folder": str(tmp_path / "backup")}, accept=(202,))
    until(lambda: client.get(f"/acu/v1/data/jobs/{job['id']}")["state"] == "done", "the backup ends without its client")
    assert (tmp_path / "backup" / "MANIFEST").is_file()
    answer = client.get("/acu/v1/data/jobs/nobody", accept=(404,))
    assert answer["error"]["code"] == "unknown_job"


def test_what_is_wrong_is_named_and_repaired(daemon: DaemonFactory, place: dict[str, Any], tmp_path: Path) -> None:
    running = daemon(place)
    upload(running)
    data(running, "archive")
    segment = max((tmp_path / "data-cold").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    done = data(running, "verify", "--deep")
    assert done.returncode == 1
    assert f"wrong: archive: segments/{segment.name}" in done.stdout
    done = data(running, "verify", "--deep", "--repair")
    assert done.returncode == 0, done
    assert "nothing is wrong any more" in done.stdout


def test_watch_through_a_pipe_ends_with_the_pipe(daemon: DaemonFactory, place: dict[str, Any]) -> None:
    running = daemon(place)
    command = f"{sys.executable} -m acu data status --watch -c {running.config} | head -n 6; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=running.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("not used yet") > 1


def test_a_restore_without_an_archive_ends_the_same_way_each_time_and_makes_nothing(tmp_path: Path) -> None:
    settings = tmp_path / "acu.yaml"
    settings.write_text(f"data_plane: {{path: {tmp_path / 'data'}}}\n")
    done = acu("data", "restore", "--from-bucket", "-c", str(settings), environ=isolated_environ(tmp_path))
    assert (done.returncode, "data-cold has no archive" in done.stderr) == (1, True), done
    assert not list(tmp_path.glob("data*"))
    (tmp_path / "data-cold" / "acu").mkdir(parents=True)
    (tmp_path / "data-cold" / "acu" / "stray").touch()
    done = acu("data", "restore", "--from-bucket", "-c", str(settings), environ=isolated_environ(tmp_path))
    assert (done.returncode, "has no archive" in done.stderr) == (1, True), done
    (tmp_path / "data" / "history").mkdir(parents=True)
    (tmp_path / "data" / "history" / "manifest.json").touch()
    done = acu("data", "verify", "-c", str(settings), environ=isolated_environ(tmp_path))
    assert (done.returncode, "Move the folder" in done.stderr) == (1, True), done


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("backup", "relative", "--url", "http://127.0.0.1:9"), "DIR must be absolute with --url"),
        (("verify", "--repair", "--backup", "/nowhere"), "not allowed with argument"),
    ],
)
def test_a_mistake_in_the_words_is_told_before_anything_is_asked(
    words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    done = acu("data", *words, environ=isolated_environ(tmp_path))
    assert (done.returncode, told in done.stderr) == (2, True), done
