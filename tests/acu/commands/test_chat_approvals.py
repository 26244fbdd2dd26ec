"""acu chat with an agent whose call waits for a person, and `acu runs` about it: without a terminal, and on a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import pytest

from tests.acu.commands.test_chat import PROMPT, Terminal, chat
from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, acu, until

CALL = '<tool_call>{"name": "restart", "arguments": {"service": "billing"}}</tool_call>'
SCRIPT = {
    "rules": [
        {"match": "restarted billing", "within": "prompt", "answer": "Done."},
        {"match": "not allowed", "within": "prompt", "answer": "Then not."},
        {"match": "restart", "answer": CALL},
    ]
}
MODULE = '''
from agentflow.tools.function import tool


@tool(approval=True)
def restart(service: str) -> str:
    """Restart a service."""
    return f"restarted {service}"
'''


@pytest.fixture(scope="module")
def running(shared_daemon: DaemonFactory, tmp_path_factory: pytest.TempPathFactory) -> RunningDaemon:
    """A daemon with the agent. The last test ends it."""
    folder = tmp_path_factory.mktemp("ops")
    (folder / "ops.py").write_text(MODULE)
    config = {
        "data_plane": {"path": str(folder / "data"), "hot_layer_mem_mb": 64},
        "tools": {"python": {"ops": {"module": str(folder / "ops.py"), "warm": 1}}, "installed": False},
        "agents": {"ops": {"tools": ["restart"], "routing": False}},
    }
    return shared_daemon(config, script=SCRIPT)


def runs(running: RunningDaemon, *words: str) -> str:
    done = acu("runs", *words, "--socket", str(running.socket), environ=running.environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def chatting(running: RunningDaemon, *words: str, stdin: int) -> subprocess.Popen[str]:
    """`acu chat` with the agent, and no terminal."""
    command = [sys.executable, "-m", "acu", "chat", "--socket", str(running.socket), "--agent", "ops", *words]
    return subprocess.Popen(command, cwd=ROOT, env=running.environ, stdin=stdin, stdout=-1, stderr=-1, text=True)


def test_without_a_terminal_a_line_names_the_call_and_the_command_that_allows_it(running: RunningDaemon) -> None:
    with chatting(running, "--once", "restart", stdin=subprocess.DEVNULL) as asking:
        assert asking.stderr is not None
        line = asking.stderr.readline()
        (run,) = json.loads(runs(running, "list", "--status", "waiting", "--json"))["data"]
        (call,) = json.loads(runs(running, "show", run["id"], "--json"))["steps"][0]["calls"]
        wanted = 'restart {"service": "billing"}'
        commands = f"acu runs approve {run['id']} {call['id']}, or acu runs deny {run['id']} {call['id']}"
        assert line == f"{wanted} waits for a person: {commands}\n"
        assert "waiting" in runs(running, "list")
        status = acu("status", "--socket", str(running.socket), environ=running.environ).stdout
        assert "1 of them waiting for a person" in " ".join(status.split())
        told = runs(running, "approve", "last")
        assert told.endswith(f", allowed: {call['id']} {wanted}\n")
        output, errors = asking.communicate(timeout=60)
    assert (output, errors) == ("Done.\n", f"-> {wanted}\n<- restarted billing\n")
    assert runs(running, "list", "--agent", "opps") == "no runs, and no agent 'opps'; agents: ops\n"
    done = chat(running, "--model", "ops", "--once", "hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Did you mean 'agent/ops'?" in done.stderr


def test_on_a_terminal_the_person_is_asked(running: RunningDaemon) -> None:
    with closing(Terminal(running, "--agent", "ops")) as terminal:
        for word, answer in (("y", "Done."), ("no", "Then not.")):
            terminal.wait_for(PROMPT)
            terminal.type("/clear\r")
            terminal.wait_for(PROMPT)
            terminal.type("restart\r")
            terminal.wait_for('allow restart {"service": "billing"}? [y/n] ')
            terminal.type("what\r")
            terminal.wait_for("[y/n] ")
            terminal.type(f"{word}\r")
            terminal.wait_for(answer)
    with closing(Terminal(running, "--agent", "ops", "--once", "restart")) as terminal:
        terminal.wait_for("? [y/n] ")
        terminal.type("\x04")  # which leaves the call to others
        terminal.wait_for("waits for a person: acu runs approve ")
        runs(running, "deny", "last")
        terminal.wait_for("Then not.")
        assert terminal.exit_code() == 0


def test_lines_of_a_pipe_are_no_answer_and_a_daemon_that_stops_waits_for_none(running: RunningDaemon) -> None:
    with chatting(running, stdin=subprocess.PIPE) as asking:
        assert asking.stdin is not None
        asking.stdin.write("restart\ny\n")
        asking.stdin.flush()
        until(lambda: "waiting" in runs(running, "list"), "the run waits")
        assert "denied: call_" in runs(running, "deny", "last", "--why", "at night")
        output, errors = asking.communicate(timeout=60)
    assert output.startswith("Then not.\n")
    assert "waits for a person" in errors
    with chatting(running, "--once", "restart", stdin=subprocess.DEVNULL) as asking:
        assert asking.stderr is not None
        assert "waits for a person" in asking.stderr.readline()
        running.process.terminate()
        running.process.wait(30)  # of the 60 s that a drain may take
        assert "shutting down" in asking.communicate(timeout=30)[1]
    running.checked = True
