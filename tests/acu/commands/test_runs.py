"""acu runs, against the real daemon with an agent and a scripted model."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from acu.cli import main
from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, acu, until

CALL = '{"name": "calculator", "arguments": {"expression": "6*7"}}'
SCRIPT = {
    "rules": [
        {"match": "42", "answer": "It is \x1b[31m42."},
        {"match": "sum", "answer": f"Let me see. <tool_call>{CALL}</tool_call>"},
        {"match": "slow", "answer": "s" * 100_000, "tokens_per_s": 50},
    ]
}  # fmt: skip


@pytest.fixture
def running(daemon: DaemonFactory, tmp_path: Path) -> RunningDaemon:
    config = {
        "data_plane": {"path": str(tmp_path / "data"), "hot_layer_mem_mb": 64},
        "agents": {"desk": {"tools": ["calculator", "current_time"], "routing": False}},
    }
    return daemon(config, script=SCRIPT)


def ask(running: RunningDaemon, text: str) -> dict[str, Any]:
    """The whole answer of the agent."""
    body = {"model": "agent/desk", "messages": [{"role": "user", "content": text}]}
    return httpx2.post(f"{running.url}/v1/chat/completions", json=body, timeout=60).json()  # type: ignore[no-any-return]


class Done(NamedTuple):
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


class Commands:
    """`acu runs` of one daemon, in this process."""

    def __init__(self, running: RunningDaemon, capsys: pytest.CaptureFixture[str]) -> None:
        self.running = running
        self._capsys = capsys

    def __call__(self, *words: str) -> Done:
        code = main(["runs", *words, "--socket", str(self.running.socket)])
        return Done(code, *self._capsys.readouterr())

    def ids(self) -> list[str]:
        return [run["id"] for run in json.loads(self("list", "--json").stdout)["data"]]


@pytest.fixture
def runs(running: RunningDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(running, capsys)


def test_runs_that_are_over_are_listed_shown_followed_and_removed(running: RunningDaemon, runs: Commands) -> None:
    assert runs("list").stdout == "no runs\n"
    missing = runs("show", "last")
    assert (missing.returncode, missing.stderr) == (1, "acu: there is no run yet\n")
    assert ask(running, "the sum")["choices"][0]["message"]["content"] == "Let me see. \n\nIt is \x1b[31m42."
    ask(running, "hello")
    newest, sum_ = runs.ids()
    listed = runs("list", "--limit", "1").stdout.splitlines()
    assert listed[1].split()[:3] == [newest, "desk", "completed"]
    assert listed[2] == "there are more: --limit N shows them"
    assert runs("list", "--status", "failed").stdout == "no runs\n"

    shown = runs("show", sum_)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0] == f"run     {sum_}"
    assert max(map(len, lines)) <= 80
    assert '    {"expression": "6*7"} -> 42' in lines
    assert "  It is \\x1b[31m42." in lines
    assert [line.split()[0] for line in lines[6:] if line[:1].isdigit()] == ["1", "2"]
    assert runs("show", newest[4:]).stdout == runs("show", "last").stdout
    account = json.loads(runs("show", sum_, "--json").stdout)
    assert account["steps"][0]["calls"][0]["result"] == "42"

    events = [json.loads(line) for line in runs("events", sum_, "--json").stdout.splitlines()]
    assert [event["sequence_number"] for event in events] == list(range(1, account["last"] + 1))
    followed = runs("events", sum_, "--json", "--follow", "--after", "3")
    assert [json.loads(line) for line in followed.stdout.splitlines()] == events[3:]
    text = runs("events", sum_).stdout
    assert 'call_started  calculator {"expression": "6*7"}' in text
    assert "\x1b" not in text
    assert text.splitlines()[-1].endswith("ended         completed: stop")

    over = runs("cancel", sum_)
    assert (over.returncode, over.stderr) == (1, f"acu: The run {sum_} is over: completed. Begin another.\n")
    ambiguous = runs("show", sum_[:6])
    assert ambiguous.returncode == 1
    assert f"more than one run's id begins with '{sum_[:6]}'" in ambiguous.stderr
    unknown = runs("show", "zzz")
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "acu: no run's id begins with 'zzz': `acu runs list` shows them\n",
    )
    assert runs("rm", sum_).stdout == f"{sum_}: removed\n"
    assert runs.ids() == [newest]


def test_a_run_that_goes_on_is_followed_and_steered(running: RunningDaemon, runs: Commands) -> None:
    asking = threading.Thread(target=ask, args=(running, "slow"))
    asking.start()
    until(lambda: runs.ids() != [], "the run is listed")
    (run_id,) = runs.ids()
    words = [sys.executable, "-m", "acu", "runs", "events", "last", "--follow", "--socket", str(running.socket)]
    with subprocess.Popen(words, cwd=ROOT, env=running.environ, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline().split()[2:5] == ["began", "desk", "on"]
        assert runs("pause", "last").stdout == f"{run_id}: paused\n"
        assert "status  paused" in runs("show", run_id).stdout
        assert runs("say", run_id, "faster").stdout == f"{run_id}: paused\n"
        assert json.loads(runs("step", run_id, "--json").stdout)["id"] == run_id
        assert runs("pause", run_id).returncode == 0
        assert runs("resume", run_id).stdout == f"{run_id}: running\n"
        refused = runs("rm", run_id)
        assert (refused.returncode, refused.stderr) == (1, f"acu: The run {run_id} goes on. Cancel it first.\n")
        assert runs("cancel", run_id).stdout == f"{run_id}: cancelled\n"
        told = follower.stdout.read().splitlines()
        assert follower.wait(30) == 0
    asking.join()
    kinds = [line.split()[2] for line in told]
    assert [kind for kind in kinds if kind not in ("said", "resumed")] == [
        "step_began", "paused", "added", "unpaused", "paused", "unpaused", "ended"
    ]  # fmt: skip
    assert told[-1].endswith("cancelled: cancelled")
    assert json.loads(runs("list", "--json").stdout)["data"][0]["status"] == "cancelled"


@pytest.mark.parametrize("words", [("list", "--limit", "101"), ("events", "last", "--after", "-1"), ("say", "last")])
def test_wrong_usage_is_told(words: tuple[str, ...], clean_environ: dict[str, str]) -> None:
    done = acu("runs", *words, environ=clean_environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: acu runs" in done.stderr


def test_without_a_daemon_it_says_so(clean_environ: dict[str, str], tmp_path: Path) -> None:
    done = acu("runs", "list", "--socket", str(tmp_path / "none.sock"), environ=clean_environ)
    assert done.returncode == 3
    assert "no daemon listens on" in done.stderr
