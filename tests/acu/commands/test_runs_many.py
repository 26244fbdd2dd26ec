"""`acu runs` over many runs at once, against the real daemon with an agent whose calls wait for a person."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import httpx2
import pytest

from acu.commands import runmany
from tests.acu.commands.test_chat_approvals import MODULE, SCRIPT
from tests.acu.commands.test_runs import Commands
from tests.acu.running import DaemonFactory, RunningDaemon, acu, until


@pytest.fixture
def running(daemon: DaemonFactory, tmp_path: Path) -> RunningDaemon:
    (tmp_path / "ops.py").write_text(MODULE)
    config = {
        "data_plane": {"path": str(tmp_path / "data"), "hot_layer_mem_mb": 64},
        "tools": {"python": {"ops": {"module": str(tmp_path / "ops.py"), "warm": 1}}, "installed": False},
        "agents": {name: {"tools": ["restart"], "routing": False} for name in ("ops", "other")},
    }
    return daemon(config, script=SCRIPT)


@pytest.fixture
def runs(running: RunningDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(runmany, "PAGE", 2)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return Commands(running, capsys)


def wait_for_a_person(running: RunningDaemon, agent: str, count: int) -> list[str]:
    """Begin so many runs, whose calls wait. The newest first."""
    for _ in range(count):
        body = {"model": f"agent/{agent}", "input": "restart"}
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
    assert lines[-1] == "3 of 3 runs"
    for each in ids:
        until(lambda each=each: state(runs, each)["status"] == "completed", "it goes on without the call")
        assert "not on a Friday" in json.dumps(state(runs, each))
    (last,) = wait_for_a_person(running, "ops", 1)
    assert ", allowed: " in runs("approve", "--status", "waiting", "--yes").stdout
    until(lambda: state(runs, last)["status"] == "completed", "it goes on with the call")
    assert "restarted billing" in json.dumps(state(runs, last))


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
    assert first in runs.ids(), "nothing is done where an id is wrong"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cancel",), "name runs by ID or by --status"),
        (("cancel", "last", "--status", "waiting"), "name runs by ID or by --status, not both"),
        (("cancel", "last", "--yes"), "--agent and --yes go with --status"),
        (("rm", "--status", "running"), "invalid choice: 'running'"),
        (("deny", "--status", "running"), "invalid choice: 'running'"),
        (("approve",), "name runs by ID or by --status"),
    ],
)
def test_it_is_clear_which_runs_are_meant_or_nothing_is_done(
    words: tuple[str, ...], told: str, clean_environ: dict[str, str]
) -> None:
    done = acu("runs", *words, environ=clean_environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
