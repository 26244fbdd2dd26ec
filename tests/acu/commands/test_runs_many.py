"""`acu runs` over many runs at once, against the real daemon with an agent whose calls wait for a person."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from acu.commands import runmany
from tests.acu.commands.test_chat_approvals import CALL, MODULE, SCRIPT
from tests.acu.commands.test_runs import Commands
from tests.acu.running import DaemonFactory, RunningDaemon, acu, until

BOTH = {"match": "both", "answer": CALL + CALL.replace("billing", "search")}


@pytest.fixture
def running(daemon: DaemonFactory, tmp_path: Path) -> RunningDaemon:
    (tmp_path / "ops.py").write_text(MODULE)
    config = {
        "data_plane": {"path": str(tmp_path / "data"), "hot_layer_mem_mb": 64},
        "tools": {"python": {"ops": {"module": str(tmp_path / "ops.py"), "warm": 1}}, "installed": False},
        "agents": {name: {"tools": ["restart"], "routing": False} for name in ("ops", "other")},
    }
    return daemon(config, script={"rules": [*SCRIPT["rules"][:2], BOTH, *SCRIPT["rules"][2:]]})


@pytest.fixture
def runs(running: RunningDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(runmany, "PAGE", 2)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return Commands(running, capsys)


class Person(io.StringIO):
    """A terminal at which somebody says yes, and something happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__("y\n")
        self._meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        self._meanwhile()
        return super().readline(size)


def wait_for_a_person(running: RunningDaemon, agent: str, count: int, text: str = "restart") -> list[str]:
    """Begin so many runs, whose calls wait. The newest first."""
    for _ in range(count):
        body = {"model": f"agent/{agent}", "input": text}
        httpx2.post(f"{running.url}/v1/responses", json=body, timeout=60).raise_for_status()
    path = f"{running.url}/acu/v1/runs?status=waiting&agent={agent}"

    def waiting() -> list[str]:
        return [run["id"] for run in httpx2.get(path).json()["data"]]

    until(lambda: len(waiting()) == count, "the calls wait")
    return waiting()


def test_all_runs_that_wait_are_cancelled_over_pages_after_a_yes(
    running: RunningDaemon, runs: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = wait_for_a_person(running, "ops", 5)
    other = wait_for_a_person(running, "other", 1)
    words = ("cancel", "--status", "waiting", "--agent", "ops")
    asked = runs(*words)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == "acu: nobody is there to be asked about 5 waiting runs: add --yes\n"
    for typed, code in (("\n", 1), ("yes\n", 0)):
        stdin = io.StringIO(typed)
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", stdin)
        done = runs(*words)
        assert (done.returncode, done.stderr) == (code, "cancel 5 waiting runs? [y/N] ")
        assert done.stdout == ("" if code else "".join(f"{each}: cancelled\n" for each in ids) + "5 of 5 runs\n")
    assert runs(*words, "--yes").stdout == "no runs\n"
    assert json.loads(runs("show", other[0], "--json").stdout)["status"] == "waiting"
    removed = json.loads(runs("rm", "--status", "cancelled", "--yes", "--json").stdout)
    assert ([each["id"] for each in removed["data"]], removed["failed"]) == (ids, [])
    assert runs.ids() == other


def test_all_calls_that_wait_are_denied_or_allowed(running: RunningDaemon, runs: Commands) -> None:
    ids = wait_for_a_person(running, "ops", 3)
    denied = runs("deny", "--status", "waiting", "--yes", "--why", "not on a Friday")
    assert denied.returncode == 0
    lines = denied.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ids
    assert all(", denied: " in line and line.endswith('restart {"service": "billing"}') for line in lines[:-1])
    assert lines[-1] == "3 of 3 calls"
    for each in ids:
        until(lambda each=each: state(runs, each)["status"] == "completed", "it goes on without the call")
        assert "not on a Friday" in json.dumps(state(runs, each))
    (last,) = wait_for_a_person(running, "ops", 1)
    assert ", allowed: " in runs("approve", "--status", "waiting", "--yes").stdout
    until(lambda: state(runs, last)["status"] == "completed", "it goes on with the call")
    assert "restarted billing" in json.dumps(state(runs, last))


def test_a_run_that_is_otherwise_when_its_turn_comes_is_left_alone(
    running: RunningDaemon, runs: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, paused, waiting = wait_for_a_person(running, "ops", 3)

    def meanwhile() -> None:
        api = f"{running.url}/acu/v1/runs"
        for way in (f"{gone}/cancel", f"{paused}/pause"):
            httpx2.post(f"{api}/{way}", json={}).raise_for_status()
        httpx2.delete(f"{api}/{gone}").raise_for_status()

    monkeypatch.setattr(sys, "stdin", Person(meanwhile))
    done = runs("cancel", "--status", "waiting")
    assert (done.returncode, done.stdout) == (1, f"{waiting}: cancelled\n1 of 3 runs\n")
    assert done.stderr.partition("? [y/N] ")[2].splitlines() == [
        f"acu: There is no run '{gone}', or it is not kept any more.",
        f"acu: The run {paused} is paused now.",
    ]
    assert state(runs, paused)["status"] == "paused"


def test_those_calls_alone_are_answered_that_were_shown_and_wait_still(
    running: RunningDaemon, runs: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (halted,) = wait_for_a_person(running, "ops", 1, "both")
    (half,) = wait_for_a_person(running, "other", 1, "both")
    until(lambda: len(asked(runs, half)) == len(asked(runs, halted)) == 2, "both calls wait")
    billing, search = asked(runs, half)
    paused, later = asked(runs, halted), []
    assert runs("approve", half, search).returncode == 0

    def meanwhile() -> None:
        httpx2.post(f"{running.url}/acu/v1/runs/{halted}/pause", json={}).raise_for_status()
        later.extend(wait_for_a_person(running, "ops", 1))

    monkeypatch.setattr(sys, "stdin", Person(meanwhile))
    done = runs("deny", "--status", "waiting")
    call = f'{billing} restart {{"service": "billing"}}'
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"{half}: {call}",
        f'{halted}: {paused[0]} restart {{"service": "billing"}}',
        f'{halted}: {paused[1]} restart {{"service": "search"}}',
        f"deny 3 waiting calls? [y/N] acu: The run {halted} is paused now.",
        f"acu: The run {halted} is paused now.",
    ]
    told, summary = done.stdout.splitlines()
    assert told.startswith(f"{half}: ")
    assert told.endswith(f", denied: {call}")
    assert summary == "1 of 3 calls"
    assert approvals(runs, half) == {billing: "refused", search: "allowed"}
    assert asked(runs, halted) == paused
    assert len(asked(runs, later[0])) == 1


def test_a_call_that_somebody_answered_meanwhile_keeps_no_other_from_its_answer(
    running: RunningDaemon, runs: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = wait_for_a_person(running, "ops", 1, "both")
    until(lambda: len(asked(runs, run)) == 2, "both calls wait")
    billing, search = asked(runs, run)

    def meanwhile() -> None:
        way = f"{running.url}/acu/v1/runs/{run}/calls/{billing}/approval"
        httpx2.post(way, json={"approve": False}).raise_for_status()

    monkeypatch.setattr(sys, "stdin", Person(meanwhile))
    done = runs("approve", "--status", "waiting", "--json")
    assert done.returncode == 1
    says = f"The call {billing} of the run {run} does not wait any more."
    assert done.stderr.endswith(f"? [y/N] acu: {says}\n")
    told = json.loads(done.stdout)
    assert [(each["id"], each["call"]) for each in told["data"]] == [(run, search)]
    assert told["failed"] == [{"id": run, "call": billing, "error": says}]
    assert told["not_tried"] == []
    assert approvals(runs, run) == {billing: "refused", search: "allowed"}
    assert runs("approve", "--status", "waiting", "--yes").stdout == "no calls\n"


def test_an_agent_that_is_not_there_has_no_runs_and_is_told(running: RunningDaemon, runs: Commands) -> None:
    done = runs("cancel", "--status", "waiting", "--agent", "opps", "--yes")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "acu: no runs, and no agent 'opps'; agents: ops, other\n"


def approvals(runs: Commands, run: str) -> dict[str, str]:
    """What was said of a run's calls, by their ids."""
    steps: Any = state(runs, run)["steps"]
    return {call["id"]: call["approval"] for step in steps for call in step["calls"]}


def asked(runs: Commands, run: str) -> list[str]:
    """The ids of a run's calls that wait."""
    return [call for call, word in approvals(runs, run).items() if word == "asked"]


def state(runs: Commands, run: str) -> dict[str, object]:
    return json.loads(runs("show", run, "--json").stdout)  # type: ignore[no-any-return]


def test_several_that_are_named_are_each_told_and_one_that_is_over_stops_no_other(
    running: RunningDaemon, runs: Commands
) -> None:
    first, second, third = wait_for_a_person(running, "ops", 3)
    assert ", allowed: " in runs("approve", second).stdout
    until(lambda: state(runs, second)["status"] == "completed", "it ends")
    done = runs("cancel", first, second, third, first)
    assert done.returncode == 1
    assert done.stdout == f"{first}: cancelled\n{third}: cancelled\n2 of 3 runs\n"
    assert done.stderr == f"acu: The run {second} is over: completed. Begin another.\n"
    unknown = runs("rm", first, "zzz")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr == "acu: no run's id begins with 'zzz': `acu runs list` shows them; nothing was done\n"
    assert first in runs.ids(), "nothing is done where an id is wrong"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("", "the call's id is empty"),
        ("run_1", "'run_1' is a run's id: one run is named, or with --status waiting all that wait"),
        ("last", "'last' is a run's id: one run is named, or with --status waiting all that wait"),
    ],
)
def test_what_is_no_call_is_not_answered(running: RunningDaemon, runs: Commands, call: str, told: str) -> None:
    (run,) = wait_for_a_person(running, "ops", 1)
    done = runs("approve", run, call)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"acu: {told}\n")
    assert state(runs, run)["status"] == "waiting"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cancel",), "name runs by ID or by --status"),
        (("cancel", "last", "--status", "waiting"), "name runs by ID or by --status, not both"),
        (("cancel", "last", "--yes"), "--agent and --yes go with --status"),
        (("rm", "--status", "running"), "invalid choice: 'running'"),
        (("deny", "--status", "running"), "invalid choice: 'running'"),
        (("approve",), "name runs by ID or by --status"),
        (("approve", "", "--status", "waiting"), "name runs by ID or by --status, not both"),
        (("cancel", "", "--status", "waiting"), "name runs by ID or by --status, not both"),
    ],
)
def test_it_is_clear_which_runs_are_meant_or_nothing_is_done(
    words: tuple[str, ...], told: str, clean_environ: dict[str, str]
) -> None:
    done = acu("runs", *words, environ=clean_environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
