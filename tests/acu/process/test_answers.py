"""acu.process.answers: a file system that does not answer is named, refused, and waited for by nobody who cannot end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from acu.config import AcuConfig
from acu.errors import StartRefused
from acu.process import touch
from acu.process.answers import Remote, named_places, remote_mounts, wait_for_answers
from tests.acu.process.silentmount import silent_mount
from tests.acu.running import ROOT, isolated_environ, until

HERE = (Remote("/mnt", "nfs4", "server:/x"),)  # some mount, so that there is something to find out


def told_nothing(text: str) -> None:
    pytest.fail(f"told: {text}")


def children_at(path: Path) -> list[int]:
    """Processes that look at a path for somebody."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if touch.__file__ in words and any(word.startswith(str(path)) for word in words):
            found.append(process.pid)
    return found


@pytest.mark.parametrize("deaf", [True, False])
def test_a_place_that_does_not_answer_is_told_and_then_refused(tmp_path: Path, deaf: bool) -> None:
    told: list[str] = []
    with silent_mount(tmp_path / "mnt", deaf=deaf) as mount:
        places = [("a.good", str(tmp_path)), ("data_plane.path", f"{mount}/data"), ("b", str(tmp_path))]
        with pytest.raises(StartRefused) as refused:
            wait_for_answers(places, told.append, told_s=0.2, refused_s=1.0)
        named = f"data_plane.path: {mount}/data does not answer"
        if told[0].startswith("a.good"):  # which holds the mount, and so was the first to find it
            named = f"a.good: {mount} does not answer"
        where = f"its file system (fuse of silent on {mount})"
        assert told == [f"{named}; waiting for {where}"]
        assert str(refused.value) == (
            f"{named}: nothing came from {where} for 1 s; look at that mount, or name another place"
        )
    until(lambda: not children_at(tmp_path), "the child is gone")


def test_what_answers_is_passed_in_silence_whatever_it_says(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").write_text("x")
    (tmp_path / "closed").mkdir(mode=0)
    names = ["fifo", "circle", "file", "file/below", "closed", "none", "x" * 300, "line\nbreak", ""]
    places = [("field", str(tmp_path / name)) for name in names]
    wait_for_answers([*places, ("field", "/"), ("field", "/proc/self")], told_nothing, HERE)
    assert children_at(tmp_path) == []


def test_without_a_mount_that_may_not_answer_nobody_looks(tmp_path: Path) -> None:
    with silent_mount(tmp_path / "mnt") as mount:
        wait_for_answers([("field", f"{mount}/x")], told_nothing, (), told_s=0, refused_s=0)


def test_without_a_child_nothing_is_found_out_and_nothing_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    before = psutil.Process().num_fds()
    wait_for_answers([("field", str(tmp_path))], told_nothing, HERE)
    assert psutil.Process().num_fds() == before


def test_the_mounts_that_may_not_answer_are_known_by_their_kind(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /mnt/a\\040b rw shared:2 master:1 - nfs4 box:/x rw\n"
        "24 22 0:6 / /home/u/ssh rw - fuse.sshfs u@box: rw\n"
        "25 22 0:7 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n"
        "26 22 0:8 / /sys/fs/fuse/connections rw - fusectl fusectl rw\n"
        "27 22 0:9 / /odd rw - fuse\n"
    )
    assert remote_mounts(table) == (
        Remote("/mnt/a b", "nfs4", "box:/x"),
        Remote("/home/u/ssh", "fuse.sshfs", "u@box:"),
        Remote("/odd", "fuse", ""),
    )
    assert remote_mounts(tmp_path / "none") == ()


def test_every_path_of_the_configuration_is_named() -> None:
    named = dict(named_places(AcuConfig()))
    assert all(path.startswith("/") for path in named.values())


@pytest.mark.parametrize(("number", "deaf"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_start_on_a_disk_that_does_not_answer_says_so_and_ends_at_a_signal(
    tmp_path: Path, number: signal.Signals, deaf: bool
) -> None:
    environ = isolated_environ(tmp_path)
    log = tmp_path / "log"
    with silent_mount(tmp_path / "mnt", deaf=deaf) as mount, log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "acu", "serve", "--engine", "scripted", "--no-tcp", "--socket", str(tmp_path / "s")],
            cwd=ROOT,
            env=environ | {"ACU_DATA_PLANE__PATH": f"{mount}/data"},
            stderr=output,
        )
        until(lambda: b"\n" in log.read_bytes(), "it says what does not answer")
        process.send_signal(number)
        assert process.wait(20) == -number
    assert log.read_text() == (
        f"acu: data_plane.path: {mount}/data does not answer; waiting for its file system (fuse of silent on {mount})\n"
    )
    until(lambda: not children_at(tmp_path), "the child is gone")


@pytest.mark.parametrize(
    ("words", "variable", "field"),
    [
        (["models", "list"], "ACU_GPU__MODEL_CACHE_DIR", "gpu.model_cache_dir"),
        (["config", "check", "--no-tools"], "ACU_DAEMON__AUDIT_LOG", "daemon.audit_log"),
        (["serve"], "ACU_CONFIG", "configuration"),
    ],
)
def test_commands_that_look_at_files_say_so_as_well(
    tmp_path: Path, words: list[str], variable: str, field: str
) -> None:
    environ = isolated_environ(tmp_path)
    with silent_mount(tmp_path / "mnt", deaf=False) as mount:
        command = [sys.executable, "-m", "acu", *words]
        environ[variable] = f"{mount}/x"
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"acu: {field}: {mount}/x does not answer; waiting")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in {130, -signal.SIGINT}
        process.stderr.close()


IMPATIENT = """
import functools, sys
from acu import cli
from acu.commands import options
options.wait_for_answers = functools.partial(options.wait_for_answers, told_s=0.3, refused_s=1.0)
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_command_ends_by_itself_with_one_more_line(tmp_path: Path) -> None:
    with silent_mount(tmp_path / "mnt", deaf=False) as mount:
        done = subprocess.run(
            [sys.executable, "-c", IMPATIENT, "models", "list"],
            cwd=ROOT,
            env=isolated_environ(tmp_path) | {"ACU_GPU__MODEL_CACHE_DIR": f"{mount}/x"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    start = f"acu: gpu.model_cache_dir: {mount}/x does not answer"
    said, refused = done.stderr.splitlines()
    assert said.startswith(f"{start}; waiting for its file system (fuse of ")
    assert refused.startswith(f"{start}: nothing came from its file system (fuse of ")
