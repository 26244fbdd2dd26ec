"""acu-up and acu-down: real daemons, side by side, in a machine of their own, and that no trace of them stays."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scripts.box import ROOT, SCRIPTS, Box, Saboteur, groups, made_box, needs_a_box

ACU = ROOT / ".venv" / "bin" / "acu"
UP, DOWN, NETNS = SCRIPTS / "acu-up", SCRIPTS / "acu-down", SCRIPTS / "netns.sh"
ONE, TWO = 230, 231
COUNT = "0123456789 " * 15

pytestmark = needs_a_box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """With a configuration of each ACU where acu-up looks for it."""
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps({"rules": [{"match": "count", "answer": COUNT, "tokens_per_s": 100}]}))
    model = {"model": "scripted", "engine": "scripted", "script": str(script)}
    with made_box(ONE, TWO) as box:
        for number in (ONE, TWO):
            config = tmp_path / f"{number}.yaml"
            config.write_text(
                json.dumps(
                    {
                        "models": {"large": model},
                        "gpu": {"compute_mode": "keep", "model_cache_dir": str(tmp_path / "models")},
                        "data_plane": {"path": str(tmp_path / f"data-{number}")},
                    }
                )
            )
            box.run("install", "-D", config, f"/etc/acu/{number}.yaml")
        yield box


def socket(number: int) -> str:
    return f"/run/acu/{number}/acu.sock"


def ask(box: Box, number: int, question: str) -> str:
    return box.run(ACU, "chat", "--socket", socket(number), "--once", question)


def asked(box: Box, number: int, question: str) -> subprocess.Popen[str]:
    """A chat whose answer has begun."""
    chat = box.start(ACU, "chat", "--socket", socket(number), "--once", question)
    assert chat.stdout
    assert chat.stdout.read(3)
    return chat


def daemons(box: Box, number: int) -> list[int]:
    return [int(pid) for pid in box.run("ip", "netns", "pids", f"acu{number}").split()]


def kill(box: Box, name: str, *pids: int) -> None:
    box.run("bash", "-c", f"kill -{name} {' '.join(map(str, pids))}")


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
    for number in (ONE, TWO):
        box.run(UP, str(number))
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


def test_down_kills_what_does_not_end_and_says_so(box: Box) -> None:
    before = box.snapshot()
    box.run(UP, str(ONE))
    (pid,) = daemons(box, ONE)
    kill(box, "STOP", pid)
    with box.start(NETNS, "exec", str(ONE), "sleep", "600"):
        said = box.run(DOWN, str(ONE), "--wait", "1")
    assert f"process {pid} has not ended within 1 s: it is killed" in said
    assert "sleep" in said
    assert box.snapshot() == before


def test_a_daemon_that_does_not_start_takes_all_with_it_and_its_last_words_are_told(box: Box) -> None:
    before = box.snapshot()
    code, said = box.tries(UP, str(ONE), "--log", "/nowhere/daemon.log")
    assert code != 0
    assert said.splitlines()[-1].startswith("error: the daemon ended at once")
    assert "/nowhere/daemon.log" in said.splitlines()[-1]
    assert box.snapshot() == before


def test_a_daemon_that_failed_to_come_back_leaves_what_earlier_calls_made(box: Box) -> None:
    box.run(UP, str(ONE))
    kill(box, "KILL", *daemons(box, ONE))
    while daemons(box, ONE):
        time.sleep(0.05)
    code, _ = box.tries(UP, str(ONE), "--log", "/nowhere/daemon.log")
    assert code != 0
    box.run(NETNS, "status", str(ONE))
    assert groups(ONE)


def test_whichever_step_fails_everything_is_as_before(box: Box, tmp_path: Path) -> None:
    """Of the network's commands each fails in test_netns.py, so here one; then every third, and the last."""
    saboteur = Saboteur(tmp_path / "spoilt")
    before = box.snapshot()
    saboteur.spoil(0)
    box.run(UP, str(ONE), env=saboteur.env)
    calls = saboteur.calls()
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before
    after_network = max(number for number, call in enumerate(calls, 1) if "/etc/netns" in call)
    assert calls[-1].startswith("setsid ")
    for call in [after_network // 2, *range(after_network + 1, len(calls), 3), len(calls)]:
        saboteur.spoil(call)
        code, said = box.tries(UP, str(ONE), env=saboteur.env)
        if code == 0:
            box.run(DOWN, str(ONE))
        else:
            assert said.splitlines()[-1].startswith("error: "), said
        assert box.snapshot() == before, calls[call - 1]


@pytest.mark.parametrize(("name", "code", "call"), [("TERM", 143, "nft table"), ("INT", 130, "setsid")])
def test_interrupted_everything_is_as_before(box: Box, tmp_path: Path, name: str, code: int, call: str) -> None:
    saboteur = Saboteur(tmp_path / "spoilt")
    before = box.snapshot()
    saboteur.spoil(call, f"kill -{name} $(pgrep -o -f 'acu-up {ONE}')")
    ended, said = box.tries(UP, str(ONE), env=saboteur.env)
    assert (ended, said.splitlines()[-1]) == (code, "error: interrupted")
    assert box.snapshot() == before


@pytest.mark.parametrize(("call", "then"), [("nft table", "down"), ("install -d", "up"), ("setsid", "down")])
def test_killed_in_the_middle_up_and_down_still_work(box: Box, tmp_path: Path, call: str, then: str) -> None:
    saboteur = Saboteur(tmp_path / "spoilt")
    before = box.snapshot()
    saboteur.spoil(call, "kill -9 0")
    assert box.tries(UP, str(ONE), env=saboteur.env)[0] != 0
    if then == "up":
        box.run(UP, str(ONE))
        assert "You said: hello" in ask(box, ONE, "hello")
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


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


def test_a_dry_run_needs_no_root(box: Box) -> None:
    code, said = box.tries("setpriv", "--reuid=nobody", "--clear-groups", UP, str(ONE), "--dry-run")
    if "Permission denied" in said:
        pytest.skip("ACU lies where only root may look")
    assert code == 0, said
    assert f"ip netns add acu{ONE}" in said


def until(holds: Callable[[], bool]) -> None:
    for _ in range(200):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to hold")


def comparable(shot: dict[str, list[str]]) -> dict[str, list[str]]:
    """Without what is another each time: addresses of devices and their numbers; and without locks, which only scripts hold,
    and the GPU, which a dry run assumes."""
    texts = {
        name: [re.sub(r"(link/ether|brd) [0-9a-f:]+|^\d+: |@if\d+|link-netnsid \d+", "", line) for line in lines]
        for name, lines in shot.items()
    }
    texts["files"] = [file for file in texts["files"] if not re.search(r"\.lock$|/gpu|/engines$", file)]
    return {name: sorted(lines) for name, lines in texts.items()}


@pytest.mark.parametrize(
    "arguments", [[], ["300"], ["1", "--wait", "soon"], ["1", "--user", "nobody-at-all"], ["1", "-c", "/nowhere"]]
)
def test_wrong_usage_says_how(arguments: list[str]) -> None:
    process = subprocess.run([UP, *arguments], check=False, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr.startswith("error: ")
    assert "scripts/acu-up N" in process.stderr
