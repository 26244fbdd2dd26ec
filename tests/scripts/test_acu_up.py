"""acu-up and acu-down: real daemons, side by side, in a machine of their own, and that no trace of them stays."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripts import nvidia
from tests.scripts.box import SCRIPTS, Box, groups, needs_a_box, without
from tests.scripts.units import (
    ACU,
    COUNT,
    DOWN,
    ONE,
    TWO,
    UP,
    ask,
    asked,
    box_of_units,
    daemons,
    kill,
    open_root,
    socket,
    until,
)

pytestmark = needs_a_box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with box_of_units(tmp_path) as box:
        yield box


def test_an_acu_goes_up_answers_inside_its_own_network_and_leaves_no_trace(box: Box) -> None:
    before = box.snapshot()
    said = box.run(UP, str(ONE))
    assert f"acu status --socket {socket(ONE)}" in said
    assert f"scripts/acu-down {ONE}" in said
    assert "You said: hello" in ask(box, ONE, "hello")
    assert "127.0.0.1:8228" in box.run("ip", "netns", "exec", f"acu{ONE}", "ss", "-ltn")
    assert "8228" not in box.run("ss", "-ltn")
    (pid,) = daemons(box, ONE)
    assert f"/acu{ONE}\n" in box.run("cat", f"/proc/{pid}/cgroup")
    again = box.run(UP, str(ONE))
    assert f"runs already, as process {pid}" in again
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before
    box.run(DOWN, str(ONE))


def test_one_of_two_is_killed_while_the_other_streams_to_its_end(box: Box) -> None:
    before = box.snapshot()
    with box.start(UP, str(ONE)) as one, box.start(UP, str(TWO)) as two:
        for up in (one, two):
            said = up.communicate(timeout=60)[0]
            assert up.returncode == 0, said
    with asked(box, ONE, "count") as streaming, asked(box, TWO, "count") as broken:
        kill(box, "KILL", *daemons(box, TWO))
        assert COUNT.strip()[3:] in streaming.communicate(timeout=30)[0]
        assert streaming.returncode == 0
        assert COUNT.strip()[3:] not in broken.communicate(timeout=30)[0]
        assert broken.returncode != 0
    box.run(UP, str(TWO))  # which starts it again
    assert "You said: hello" in ask(box, TWO, "hello")
    box.run(DOWN, str(ONE))
    assert "You said: hello" in ask(box, TWO, "hello")
    box.run(DOWN, str(TWO))
    assert box.snapshot() == before


def test_down_lets_an_answer_finish_and_now_breaks_it_off(box: Box) -> None:
    box.run(UP, str(ONE))
    with asked(box, ONE, "count") as chat:
        box.run(DOWN, str(ONE))
        assert COUNT.strip()[3:] in chat.communicate(timeout=30)[0]
    box.run(UP, str(ONE))
    with asked(box, ONE, "count") as chat:
        box.run(DOWN, str(ONE), "--now")
        assert COUNT.strip()[3:] not in chat.communicate(timeout=30)[0]


def test_each_daemon_begins_a_log_and_the_former_one_stays_beside_it(box: Box) -> None:
    before = box.snapshot()
    box.run(UP, str(ONE))
    log = f"/run/acu/{ONE}/daemon.log"
    box.run("bash", "-c", f"echo the first >>{log}")
    kill(box, "KILL", *daemons(box, ONE))
    while daemons(box, ONE):
        time.sleep(0.05)
    box.run(UP, str(ONE))
    assert "the first\n" in box.run("cat", f"{log}.1")
    assert "the first\n" not in box.run("cat", log)
    (pid,) = daemons(box, ONE)
    bounding = [line for line in box.snapshot()["processes"] if f" acu-log {socket(ONE)} {log} " in line]
    assert [line.split()[-1] for line in bounding] == [str(pid)]
    kill(box, "KILL", -int(box.run("pgrep", "-f", f"acu-log {socket(ONE)}")))
    box.run(UP, str(ONE))
    assert box.run("pgrep", "-f", f"acu-log {socket(ONE)}")
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


def test_the_log_is_bounded_while_the_daemon_writes_and_its_end_stays(tmp_path: Path) -> None:
    """What acu-up starts, with a smaller bound and a writer in the daemon's place, who appends as the daemon does."""
    log = tmp_path / "230/daemon.log"
    log.parent.mkdir()
    start = """
        source "$0/acu.sh"
        number=230 own=$ACU_RUN_DIR/230 user=$(id -un) log=$own/daemon.log log_bytes=10000 log_every_s=0.05
        set_as_user
        set_bounding
        exec "${bounding[@]:1}" "$1"
    """
    env = os.environ | {"ACU_RUN_DIR": str(tmp_path)}
    with (
        subprocess.Popen(["sleep", "20"]) as daemon,
        subprocess.Popen(["bash", "-euc", start, SCRIPTS, str(daemon.pid)], env=env) as bounding,
        log.open("ab") as writes,
    ):
        for line in range(3000):
            writes.write(b"%099d\n" % line)
            writes.flush()
            if line % 500 == 499:
                until(lambda: log.stat().st_size <= 10000)
        assert bounding.poll() is None
        daemon.kill()
        daemon.wait()
        bounding.wait(timeout=30)
    kept = Path(f"{log}.1").read_bytes() + log.read_bytes()
    assert len(kept) <= 20000
    assert kept.endswith(b"%099d\n" % 2999)


def test_of_two_calls_at_once_the_second_finds_what_the_first_made(box: Box) -> None:
    before = box.snapshot()
    with box.start(UP, str(ONE)) as first, box.start(UP, str(ONE)) as second:
        said = sorted(each.communicate(timeout=60)[0] for each in (first, second))
        assert (first.returncode, second.returncode) == (0, 0), said
    assert sum("runs already" in text for text in said) == 1
    assert len(daemons(box, ONE)) == 1
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


def test_a_dry_run_changes_nothing_and_pasted_does_the_same(box: Box, tmp_path: Path) -> None:
    before = box.snapshot()
    printed = box.run("bash", "-c", f"{UP} {ONE} --dry-run 2>/dev/null")
    assert box.snapshot() == before
    box.run(UP, str(ONE))
    built = comparable(box.snapshot())
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before
    # A dry run assumes the GPU, which may not be here: its commands are then played.
    for name in ("nvidia-smi", "nvidia-modprobe", "nvidia-cuda-mps-control"):
        (tmp_path / name).symlink_to("/bin/true")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "up").write_text(printed)
    box.run("bash", "-e", tmp_path / "up", env=path)
    until(lambda: box.tries(ACU, "status", "--socket", socket(ONE))[0] == 0)
    assert comparable(box.snapshot()) == built
    (tmp_path / "down").write_text(box.run("bash", "-c", f"{DOWN} {ONE} --dry-run 2>/dev/null"))
    box.run("bash", "-e", tmp_path / "down", env=path)
    assert box.snapshot() == before


def test_through_a_link_from_elsewhere_and_with_a_closed_umask_it_goes_up_as_ever(box: Box) -> None:
    box.run("ln", "-s", UP, "/run/box/up")
    before = box.snapshot()
    box.run("bash", "-c", f"umask 077; cd /tmp && /run/box/up {ONE}")
    assert "You said: hello" in ask(box, ONE, "hello")
    assert box.run("stat", "-c", "%a", "/run/acu", f"/etc/netns/acu{ONE}", f"/run/acu/{ONE}/daemon.log").split() == [
        *("755", "755", "600")  # what is the daemon's is as closed as its caller wished
    ]
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


def test_without_root_it_says_so_before_it_reads_anything(box: Box) -> None:
    for script in (UP, DOWN):
        code, said = box.tries(
            "setpriv", "--reuid=nobody", "--clear-groups", script, str(ONE), "-c", "/etc/acu/230.yaml"
        )
        if "Permission denied" in said:
            pytest.skip("the scripts lie where only root may look")
        assert (code, said.startswith("error: this needs root: sudo ")) == (1, True), said


def test_a_command_that_is_not_on_the_path_is_named_before_anything_is_changed(box: Box, tmp_path: Path) -> None:
    before = box.snapshot()
    code, said = box.tries(UP, str(ONE), env={"PATH": without(tmp_path, "sysctl", "setpriv")})
    assert (code, said.startswith("error: not found: sysctl setpriv. ")) == (1, True), said
    assert box.snapshot() == before


def test_a_dry_run_needs_no_root(box: Box) -> None:
    open_root(box)
    box.run("install", "-m", "644", "/dev/null", f"/etc/acu/{ONE}.yaml")
    code, said = box.tries("setpriv", "--reuid=nobody", "--clear-groups", UP, str(ONE), "--dry-run")
    if "Permission denied" in said:
        pytest.skip("ACU lies where only root may look")
    assert code == 0, said
    assert f"ip netns add acu{ONE}" in said


def test_the_daemon_is_its_user_s_and_what_is_remembered_is_root_s(box: Box, tmp_path: Path) -> None:
    open_root(box)
    env = {"ACU_DATA_PLANE__PATH": "/run/box/nobody/data", "ACU_GPU__MODEL_CACHE_DIR": "/run/box/nobody/models"}
    box.run("install", "-d", "-o", "nobody", "/run/box/nobody")
    (tmp_path / "empty.yaml").write_text("")
    box.run("install", "-m", "644", tmp_path / "empty.yaml", "/etc/acu/open.yaml")
    before = box.snapshot()
    options = ("--user", "nobody", "--engine", "scripted", "-c", "/etc/acu/open.yaml")
    code, said = box.tries(UP, str(ONE), *options, env=env)
    if "Permission denied" in said:
        pytest.skip("ACU lies where only root may look")
    assert code == 0, said
    assert "You said: hello" in ask(box, ONE, "hello")
    (pid,) = daemons(box, ONE)
    for path, owner in (
        (f"/proc/{pid}", "nobody"),
        (f"/run/acu/{ONE}/acu.sock", "nobody"),
        (f"/run/acu/{ONE}/daemon.log", "nobody"),
        ("/run/acu", "root"),
        (f"/run/acu/{ONE}.was", "root"),
    ):
        assert box.run("stat", "-c", "%U", path) == f"{owner}\n"
    assert "CapEff:\t0000000000000000" in box.run("cat", f"/proc/{pid}/status")
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


@pytest.mark.parametrize("small", [True, False], ids=["two-engines", "one"])
def test_the_daemon_and_so_its_engines_find_the_mps_of_their_gpu(box: Box, tmp_path: Path, *, small: bool) -> None:
    models = {"large": {"model": "qwen2.5-7b-instruct-awq", "engine": "vllm"}}
    if small:
        models["small"] = {"model": "qwen2.5-0.5b-instruct", "engine": "vllm"}
    paths = {"gpu": {"model_cache_dir": str(tmp_path / "models")}, "data_plane": {"path": str(tmp_path / "data")}}
    (tmp_path / "acu.yaml").write_text(json.dumps({"models": models} | paths))
    (tmp_path / "state.json").write_text(
        json.dumps({"gpus": [nvidia.A10G | {"processes": []}], "fails": {}, "mps": None, "done": []})
    )
    (tmp_path / "dev").mkdir()
    programs = nvidia.install(tmp_path / "programs", "nvidia-smi", "nvidia-modprobe", "nvidia-cuda-mps-control")
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NVIDIA_STATE": str(tmp_path / "state.json"),
        "ACU_DEV_ROOT": str(tmp_path / "dev"),
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "theirs"),
    }
    options = (str(ONE), "--engine", "scripted", "-c", str(tmp_path / "acu.yaml"))
    before = box.snapshot()
    setting = "CUDA_MPS_PIPE_DIRECTORY=/run/acu/host/mps"
    assert setting in box.run(UP, *options, "--dry-run", env=env)
    box.run(UP, *options, env=env)
    assert (json.loads((tmp_path / "state.json").read_text())["mps"] is not None) == small
    (pid,) = daemons(box, ONE)
    assert setting in box.run("cat", f"/proc/{pid}/environ").split("\0")
    box.run(DOWN, str(ONE), env=env)
    assert box.snapshot() == before


def test_up_and_down_at_once_end_in_all_or_nothing(box: Box) -> None:
    before = box.snapshot()
    for order in ((UP, DOWN), (DOWN, UP)):
        with box.start(order[0], str(ONE)) as first, box.start(order[1], str(ONE)) as second:
            said = [each.communicate(timeout=60)[0] for each in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0), said
        if daemons(box, ONE) if groups(ONE) else []:
            assert "You said: hello" in ask(box, ONE, "hello")
            box.run(DOWN, str(ONE))
        assert box.snapshot() == before


def test_one_that_systemd_runs_is_refused(box: Box, tmp_path: Path) -> None:
    (tmp_path / "systemctl").write_text('#!/bin/sh\necho "$@" | grep -q acu@230')
    (tmp_path / "systemctl").chmod(0o755)
    box.run("mkdir", "-p", "/run/systemd/system", f"/run/acu/{ONE}")
    before = box.snapshot()
    for command in (UP, DOWN):
        code, said = box.tries(command, str(ONE), env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
        assert (code, "systemctl stop acu@230" in said) == (1, True)
    assert box.snapshot() == before


def comparable(shot: dict[str, list[str]]) -> dict[str, list[str]]:
    """Without what is another each time: addresses of devices and their numbers, of processes
    too; and without locks, which only scripts hold, the
    GPU, which a dry run assumes, and what is only a memory of the configuration and of the daemon's process."""
    texts = {
        name: [re.sub(r"(link/ether|brd) [0-9a-f:]+|^\d+: |@if\d+|link-netnsid \d+| \d+$", "", line) for line in lines]
        for name, lines in shot.items()
    }
    texts["files"] = [
        file for file in texts["files"] if not re.search(r"\.lock$|/gpu|/(engines|fields|daemons)$", file)
    ]
    return {name: sorted(lines) for name, lines in texts.items()}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["300"],
        ["1", "--wait", "soon"],
        ["1", "--wait="],
        ["1", "--user", "nobody-at-all"],
        ["1", "--user=nobody-at-all"],
        ["1", "-c", "/nowhere"],
        ["1", "--config=/nowhere"],
        ["1", "--dry-run=yes"],
        ["1", "--help=yes"],
    ],
)
def test_wrong_usage_says_how(arguments: list[str]) -> None:
    process = subprocess.run([UP, *arguments], check=False, capture_output=True, text=True)
    assert process.returncode == 2
    first, usage, *_ = process.stderr.splitlines()
    assert first.startswith("error: ")
    assert usage.startswith("  scripts/acu-up N")
