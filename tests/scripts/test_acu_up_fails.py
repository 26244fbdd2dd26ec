"""What acu-up and acu-down make of steps that fail, of ends in the middle, and of what others did: all or nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripts.box import Box, Saboteur, groups, needs_a_box
from tests.scripts.units import DOWN, NETNS, ONE, UP, ask, box_of_units, daemons, kill

pytestmark = needs_a_box
FREEZER = Path("/sys/fs/cgroup/freezer")
needs_freezer = pytest.mark.skipif(not (FREEZER / "cgroup.procs").exists(), reason="what freezes here, a kill ends")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with box_of_units(tmp_path) as box:
        yield box


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


@pytest.mark.parametrize(
    ("name", "code", "call", "why"),
    [
        ("TERM", 143, "nft table", "interrupted"),
        ("INT", 130, "setsid", "interrupted"),
        ("HUP", 129, "setsid", "its terminal was closed"),
        ("QUIT", 131, "nft table", "interrupted"),
    ],
)
def test_interrupted_everything_is_as_before(
    box: Box, tmp_path: Path, name: str, code: int, call: str, why: str
) -> None:
    saboteur = Saboteur(tmp_path / "spoilt")
    before = box.snapshot()
    saboteur.spoil(call, f"kill -{name} $(pgrep -o -f 'acu-up {ONE}')")
    ended, said = box.tries(UP, str(ONE), env=saboteur.env)
    assert (ended, said.splitlines()[-1]) == (code, f"error: {why}")
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


def test_a_daemon_whose_network_somebody_removed_is_told_and_ends_all_the_same(box: Box) -> None:
    before = box.snapshot()
    box.run(UP, str(ONE))
    box.run("ip", "netns", "del", f"acu{ONE}")
    code, said = box.tries(UP, str(ONE))
    assert code == 1
    assert f"scripts/acu-down {ONE} && scripts/acu-up {ONE}" in said.splitlines()[-1]
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


@pytest.mark.parametrize("redirected", ["2>/run/box/said", "2>&1"], ids=["output", "output-and-messages"])
def test_a_reader_who_leaves_ends_a_dry_run_in_quiet_and_a_run_is_whole_or_undone(box: Box, redirected: str) -> None:
    box.run("touch", "/run/box/said")
    before = box.snapshot()
    for command in (UP, DOWN):
        codes = box.run(
            "bash", "-c", f"{{ sleep 0.2; {command} {ONE} --dry-run {redirected}; }} | true; echo ${{PIPESTATUS[0]}}"
        )
        assert codes == ("141\n" if command == UP else "0\n")  # nothing is to be taken down, and so nothing is printed
    assert "rror" not in box.run("cat", "/run/box/said")
    assert box.snapshot() == before
    ended = box.run("bash", "-c", f"{{ sleep 0.2; {UP} {ONE} {redirected}; }} | true; echo ${{PIPESTATUS[0]}}")
    if redirected == "2>&1":  # nobody can be told what it does
        assert ended == "141\n"
        assert box.snapshot() == before
    else:
        assert ended == "0\n"
        assert "You said: hello" in ask(box, ONE, "hello")
        code = box.run(
            "bash", "-c", f"{{ sleep 0.2; {DOWN} {ONE} --dry-run {redirected}; }} | true; echo ${{PIPESTATUS[0]}}"
        )
        assert (code, box.run("cat", "/run/box/said").count("rror")) == ("141\n", 0)
        box.run("bash", "-c", f"{DOWN} {ONE} 2>&1 | true")  # all of it, whoever reads
        assert box.snapshot() == before


def test_a_folder_that_somebody_else_made_is_refused_and_stays(box: Box) -> None:
    box.run("install", "-D", "/dev/null", f"/run/acu/{ONE}/theirs")
    before = box.snapshot()
    code, said = box.tries(UP, str(ONE))
    assert (code, f"rm -r /run/acu/{ONE}" in said.splitlines()[-1]) == (1, True)
    assert box.snapshot() == before
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


def test_where_nothing_can_be_remembered_the_folder_and_the_way_out_are_named(box: Box) -> None:
    box.run("mount", "-o", "remount,ro", "/run")
    code, said = box.tries(UP, str(ONE), env={"TMPDIR": "/tmp"})
    box.run("mount", "-o", "remount,rw", "/run")
    assert code == 1
    assert said.splitlines()[-1].startswith(
        "error: nothing can be remembered in /run/acu (Read-only file system). Make it writable for root, or name another"
    )


def test_down_kills_what_does_not_end_and_says_so(box: Box) -> None:
    before = box.snapshot()
    box.run(UP, str(ONE))
    (pid,) = daemons(box, ONE)
    kill(box, "STOP", pid)
    left, others = Path(f"/tmp/acu-engine-{pid}-{ONE}"), Path(f"/tmp/acu-engine-{pid}0-{ONE}")
    for folder in (left, others):
        box.run("mkdir", "-p", folder / "sockets")
    with box.start(NETNS, "exec", str(ONE), "sleep", "600"):
        said = box.run(DOWN, str(ONE), "--wait", "1")
    assert f"process {pid} has not ended within 1 s: it is killed" in said
    assert "sleep" in said
    assert box.snapshot() == before
    assert (left.exists(), others.exists()) == (False, True)
    box.run("rm", "-r", others)


def test_a_daemon_outside_of_its_control_group_is_told(box: Box) -> None:
    before = box.snapshot()
    box.run(UP, str(ONE))
    for group in groups(ONE):
        box.run(
            "bash",
            "-c",
            f"for p in $(cat {group}/cgroup.procs); do echo $p >{group.parent}/cgroup.procs; done; rmdir {group}",
        )
    code, said = box.tries(UP, str(ONE))
    assert code == 1
    assert f"runs outside of the control group acu{ONE}" in said.splitlines()[-1]
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


def test_a_daemon_whose_folder_somebody_removed_is_told_and_ends_all_the_same(box: Box) -> None:
    before = box.snapshot()
    box.run(UP, str(ONE))
    box.run("rm", "-r", f"/run/acu/{ONE}")
    code, said = box.tries(UP, str(ONE))
    assert code == 1
    assert f"its folder /run/acu/{ONE} was gone" in said.splitlines()[-1]
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


def test_where_all_that_was_remembered_is_gone_what_is_left_is_told_and_how_it_goes(box: Box) -> None:
    box.run(UP, str(ONE))
    box.run("rm", "-r", "/run/acu")
    told = box.run(DOWN, str(ONE)).splitlines()
    assert f"  ip netns del acu{ONE}" in told
    for command in told[told.index(f"  ip netns del acu{ONE}") :]:
        box.tries("bash", "-c", command)  # the device goes with its namespace
    assert box.run(DOWN, str(ONE)).splitlines()[-1] == f"acu{ONE}  nothing of it is left"


@needs_freezer
def test_a_daemon_that_not_even_a_kill_ends_is_told_and_all_that_it_holds_stays_known(box: Box) -> None:
    """A frozen one is in the state of one that waits for a broken device."""
    before = box.snapshot()
    box.run(UP, str(ONE))
    (pid,) = daemons(box, ONE)
    ice = FREEZER / f"acu-test-{ONE}"
    ice.mkdir()
    try:
        box.run("bash", "-c", f"echo {pid} >{ice}/cgroup.procs; echo FROZEN >{ice}/freezer.state")
        code, said = box.tries(DOWN, str(ONE), "--wait", "1")
        assert code == 1
        assert f"failed: process {pid} has not ended 10 s after it was killed: it waits in the kernel (D" in said
        assert f"acu{ONE} has processes inside, and stays" in said
        assert box.run("cat", f"/run/acu/{ONE}.was/fields")
        assert box.tries(UP, str(ONE))[0] == 1
    finally:
        (ice / "freezer.state").write_text("THAWED")
        while (ice / "cgroup.procs").read_text():
            time.sleep(0.05)
        ice.rmdir()
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before


def test_down_works_after_the_configuration_is_gone(box: Box) -> None:
    before = box.snapshot()
    box.run(UP, str(ONE))
    box.run("bash", "-c", f"echo broken: yes > /etc/acu/{ONE}.yaml")
    box.run(DOWN, str(ONE))
    assert box.snapshot() == before
    assert "warning" in box.run(DOWN, str(ONE))
