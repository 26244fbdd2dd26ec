"""acu chat, against the real daemon: once, through a pipe, and on a real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from acu.commands.chat import loading_stage, loading_text
from acu.errors import UnknownAnswer
from acu.terminal.chat import Conversation, Printer, Result, activity_of, visible
from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, acu, until

PROMPT = "\x1b[?2004h"  # bracketed paste is switched on: the line editor listens
SCRIPT = {
    "rules": [
        {"match": "^slow$", "answer": "tick " * 2000, "tokens_per_s": 100.0},
        {"match": "^long$", "answer": "x" * 3000},
        {"match": "be brief", "within": "prompt", "answer": "ok."},
        {"match": "two\nlines", "answer": "both arrived"},
        {"match": "first(.|\n)*You said: first(.|\n)*second", "within": "prompt", "answer": "I remember"},
    ]
}


@pytest.fixture(scope="module")
def running(shared_daemon: DaemonFactory) -> RunningDaemon:
    """A daemon with this module's script, which all its tests talk to."""
    return shared_daemon(script=SCRIPT)


@pytest.fixture(scope="module")
def with_agents(shared_daemon: DaemonFactory, tmp_path_factory: pytest.TempPathFactory) -> RunningDaemon:
    """One with an agent, and data of its own."""
    return shared_daemon({**AGENTS, "data_plane": {"path": str(tmp_path_factory.mktemp("data"))}}, script=AGENT_SCRIPT)


def chat(running: RunningDaemon, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run `acu chat` to its end."""
    return acu("chat", "--socket", str(running.socket), *words, environ=running.environ, stdin=stdin)


def test_once_answers_on_standard_output_and_nothing_else(running: RunningDaemon) -> None:
    done = chat(running, "--once", "hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: hello\n", "")


def test_once_reads_standard_input(running: RunningDaemon) -> None:
    assert chat(running, "--once", "-", stdin="from a pipe\n").stdout == "You said: from a pipe\n"
    done = chat(running, "--once", "-", stdin="  \n")
    assert done.returncode == 1
    assert "there is no text to answer" in done.stderr


def test_options_reach_the_model(running: RunningDaemon) -> None:
    assert chat(running, "--once", "abcdefgh", "--max-tokens", "5", "--temperature", "0").stdout == "You s\n"
    assert chat(running, "--once", "x", "--system", "be brief").stdout == "ok.\n"


def test_an_answer_that_is_cut_says_so_beside_it(running: RunningDaemon) -> None:
    done = chat(running, "--once", "abcdefgh", "--max-tokens", "5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You s\n", "cut at 5 tokens; --max-tokens allows more\n")
    done = chat(running, "--max-tokens", "5", stdin="x\n")
    assert (done.stdout, done.stderr) == ("You s\n", "cut at 5 tokens; --max-tokens allows more, or say: go on\n")


def test_without_a_limit_an_answer_ends_at_1024_tokens(running: RunningDaemon) -> None:
    done = chat(running, "--once", "long")
    assert (len(done.stdout), done.stderr) == (1024 + len("\n"), "cut at 1024 tokens; --max-tokens allows more\n")


def test_where_less_than_the_default_is_left_the_answer_has_just_that(daemon: DaemonFactory) -> None:
    small = daemon({"models": {"large": {"model": "any", "max_model_len": 256}}}, script=SCRIPT)
    assert chat(small, "--once", "hello").stdout == "You said: hello\n"
    done = chat(small, "--once", "long")
    assert 0 < len(done.stdout) < 256
    assert done.stderr == "cut where the model's context ends\n"
    assert "/clear begins anew" in chat(small, stdin="long\n").stderr
    done = chat(small, "--once", "hello", "--max-tokens", "1024")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has a context of 256" in done.stderr


def test_errors_of_the_api_are_one_line_and_exit_code_1(running: RunningDaemon) -> None:
    done = chat(running, "--once", "x", "--model", "no-such-model")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no-such-model" in done.stderr
    assert done.stderr.count("\n") == 1
    assert chat(running, "--once", "x", "--temperature", "9").returncode == 1


def test_a_pipe_is_a_conversation_of_a_line_each(running: RunningDaemon) -> None:
    done = chat(running, stdin="first\nsecond\n\n/model scripted-embed\nx\n")
    assert done.stdout == "You said: first\nI remember\n"
    assert "error: " in done.stderr
    assert done.returncode == 1


def test_a_model_that_is_not_served_is_refused_and_the_conversation_goes_on_with_the_old_one(
    running: RunningDaemon,
) -> None:
    done = chat(running, stdin="/model nosuch\nx\n")
    assert (done.returncode, done.stdout) == (1, "You said: x\n")
    assert done.stderr.startswith("nosuch is not served; served: scripted, large, ")
    assert done.stderr.endswith("; now: large\n")
    done = chat(running, stdin="/model scripted\nx\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: x\n", "talking to scripted\n")


def test_commands_change_the_conversation(running: RunningDaemon) -> None:
    done = chat(
        running, stdin="first\n/clear\nsecond\n/system be brief\nx\n/system\nx\n/model\n/what\n/help\n/quit\nno\n"
    )
    assert done.stdout == "You said: first\nYou said: second\nok.\nYou said: x\n"
    assert "scripted" in done.stderr
    assert "unknown command /what" in done.stderr
    assert "/system TEXT" in done.stderr
    assert done.returncode == 0


def test_a_loading_model_is_waited_for_with_progress(daemon: DaemonFactory) -> None:
    running = daemon(script={"start_s": 2.0}, ready=False)
    done = chat(running, "--once", "hello")
    assert done.stdout == "You said: hello\n"
    assert "loading scripted: " in done.stderr


def test_a_daemon_that_goes_away_in_an_answer_is_told(daemon: DaemonFactory) -> None:
    running = daemon(script=SCRIPT)
    command = [sys.executable, "-m", "acu", "chat", "--socket", str(running.socket), "--once", "slow"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=running.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == "tick"
    running.process.kill()
    running.process.wait()
    running.checked = True
    _, errors = process.communicate()
    assert process.returncode == 3
    assert "daemon" in errors
    assert errors.count("\n") == 1


CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'
AGENTS = {
    "agents": {
        "desk": {"tools": ["calculator"], "routing": False},
        "sums": {"tools": ["calculator"], "answer": "result"},
    }
}
AGENT_SCRIPT = {
    "rules": [
        {"match": "<tool_response>", "within": "prompt", "answer": "It is 42."},
        {"match": "^sum$", "answer": f"Let me see. {CALL}"},
        {"match": "^hello$", "answer": "Hi."},
        {"match": "calculate", "answer": '{"expression": "6*7"}'},
    ]
}


def test_an_agents_answer_is_on_standard_output_and_what_its_tools_do_is_beside_it(
    with_agents: RunningDaemon,
) -> None:
    done = chat(with_agents, "--agent", "desk", "--once", "sum")
    assert (done.returncode, done.stdout) == (0, "Let me see. \n\nIt is 42.\n")
    assert done.stderr == '-> calculator {"expression": "6*7"}\n<- 42\n'
    assert chat(with_agents, "--model", "agent/desk", "--once", "hello").stdout == "Hi.\n"
    done = chat(with_agents, stdin="/model agent/desk\nhello\n")
    assert (done.stdout, done.stderr) == ("Hi.\n", "talking to agent/desk\n")


def test_an_agent_that_is_not_there_is_told_with_those_that_are(
    with_agents: RunningDaemon, running: RunningDaemon
) -> None:
    done = chat(with_agents, "--agent", "desc", "--once", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("acu: There is no agent 'desc'.")
    assert "agent/desk" in done.stderr
    done = chat(running, "--agent", "desk", "--once", "x")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert chat(running, "--agent", "desk", "--model", "large", "--once", "x").returncode == 2


def test_what_an_agents_tool_does_is_one_line() -> None:
    begun = {"type": "tool.started", "call_id": "c", "name": "find", "arguments": '{"what":\n "x"}'}
    assert activity_of(begun) == '-> find {"what": "x"}'
    ended = {"type": "tool.ended", "call_id": "c", "name": "find", "output": "a\nb " + "c" * 1000}
    result = activity_of(ended)
    assert isinstance(result, Result)
    assert (result.told(), result.told(quoted=True)) == (f"<- a b {'c' * 196}\u2026", "")
    failed = activity_of(ended | {"output": "no such day", "is_error": True})
    assert isinstance(failed, Result)
    assert (failed.told(), failed.told(quoted=True)) == ("<- error: no such day", "<- error")
    malformed: tuple[object, ...] = (None, {}, [], "x", {"type": "tool.started"})
    for wrong in malformed:
        with pytest.raises(UnknownAnswer):
            activity_of(wrong)


@pytest.mark.parametrize(
    ("results", "pieces", "told"),
    [
        (["42 or so"], ["42 or so"], []),
        (["42 or so"], ["42", " or", " so"], []),
        (["one", "two"], ["one\n\ntwo"], []),
        (["42 or so"], ["42", " is it"], ["<- 42 or so"]),
        (["42 or so"], ["42"], ["<- 42 or so"]),
        (["42"], ["42 is it"], ["<- 42"]),
        (["one", "two"], ["one"], ["<- one", "<- two"]),
        (["42"], [], ["<- 42"]),
        ([""], ["so"], ["<- "]),
    ],
)
def test_a_result_that_is_the_answer_is_shown_once(
    results: list[str], pieces: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    beside: list[str] = []
    printer = Printer(beside.append, lambda _question: None)
    for output in results:
        printer.result(Result(output))
    for piece in pieces:
        printer.write(piece)
    printer.end()
    text = "".join(pieces)
    assert (printer.text, beside, capsys.readouterr().out) == (text, told, text and f"{text}\n")


def test_what_a_tool_does_is_told_in_the_order_in_which_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(print, lambda _question: None)
    printer.write("Let me see. ")
    printer.beside("-> find")
    printer.result(Result("a needle"))
    printer.beside("-> count")
    printer.result(Result("1"))
    printer.write("1")
    printer.result(Result("2", is_error=True))
    printer.write("2")
    printer.end()
    assert capsys.readouterr().out == "Let me see. -> find\n<- a needle\n-> count\n<- 1\n1<- error\n2\n"


def test_an_agent_whose_answer_is_the_result_says_it_once(with_agents: RunningDaemon) -> None:
    done = chat(with_agents, "--agent", "sums", "--once", "calculate 6*7")
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert done.stderr == '-> calculator {"expression": "6*7"}\n'


class Terminal:
    """`acu chat` on a pseudo-terminal, and the hands of its user."""

    def __init__(self, running: RunningDaemon, *more: str) -> None:
        self.screen = ""
        pid, self._fd = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            words = [sys.executable, "-m", "acu", "chat", "--socket", str(running.socket), *more]
            os.execve(sys.executable, words, {**running.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self.pid = pid

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, timeout_s: float = 30.0) -> None:
        """Read until `text` has appeared since the last wait."""
        give_up_at = time.monotonic() + timeout_s
        while text not in self.screen:
            assert time.monotonic() < give_up_at, f"{text!r} did not appear in {self.screen!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.screen += os.read(self._fd, 65_536).decode(errors="replace")
        self.screen = self.screen.partition(text)[2]

    def exit_code(self) -> int:
        """Wait for the end, reading what still comes."""
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            if select.select([self._fd], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    os.read(self._fd, 65_536)

    def close(self) -> None:
        """Hang up."""
        os.close(self._fd)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(running: RunningDaemon) -> Iterator[Terminal]:
    """A terminal whose prompt is there."""
    terminal = Terminal(running)
    terminal.wait_for(PROMPT)
    yield terminal
    terminal.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal, running: RunningDaemon) -> None:
    terminal.type("slow\r")
    terminal.wait_for("tick tick")
    assert running.running() == 1
    terminal.type("\x03")
    terminal.wait_for("(stopped)")
    until(lambda: running.running() == 0, "the run is aborted")
    terminal.wait_for(PROMPT)
    terminal.type("hello\r")
    terminal.wait_for("You said: hello")
    terminal.wait_for(PROMPT)
    terminal.type("\x04")
    assert terminal.exit_code() == 0


def test_ctrl_c_at_the_prompt_clears_the_line(terminal: Terminal) -> None:
    terminal.type("never sent\x03")
    terminal.wait_for(PROMPT)
    terminal.type("sent\r")
    terminal.wait_for("You said: sent")
    terminal.type("/quit\r")
    assert terminal.exit_code() == 0


def test_a_message_may_have_several_lines_and_history_is_private(terminal: Terminal, running: RunningDaemon) -> None:
    terminal.type("two\\\r")
    terminal.wait_for(PROMPT)
    terminal.type("lines\r")
    terminal.wait_for("both arrived")
    terminal.wait_for(PROMPT)
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    history = Path(running.environ["HOME"]) / ".local" / "state" / "acu" / "chat_history"
    assert "lines" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_models_escape_sequences_do_not_reach_the_terminal() -> None:
    assert visible("a\x1b[2Jb\x07\x9bc\n\td\u00e9") == "a[2Jbc\n\td\u00e9"


def test_a_conversation_keeps_only_answered_messages() -> None:
    conversation = Conversation("sys")
    conversation.with_user("lost")
    conversation.add("q", "a")
    assert [message["content"] for message in conversation.with_user("next")] == ["sys", "q", "a", "next"]
    conversation.restart(None)
    assert conversation.with_user("x") == [{"role": "user", "content": "x"}]


def test_loading_names_the_models_that_are_not_ready() -> None:
    models = [
        {"model": "a", "ready": True, "stage": "ready", "fraction": None},
        {"model": "b", "ready": False, "stage": "loading", "fraction": 0.5},
    ]
    assert loading_text({"ready": False, "reason": "b loads", "models": models}) == "loading b: loading 50%"
    assert loading_text({"ready": False, "reason": "draining", "models": []}) == "draining"
    reading = {"ready": False, "reason": "b loads", "models": models, "preloading": "reading b: 5% at 9 MB/s"}
    assert loading_text(reading) == "loading b: loading 50%; reading b: 5% at 9 MB/s"
    assert loading_stage({"ready": False, "reason": "b loads", "models": models}) == ("a: ready", "b: loading")
    assert loading_stage({"ready": False, "reason": "draining", "models": []}) == ("draining",)


def test_without_waiting_it_fails_while_the_model_loads_and_says_how_far_it_is(daemon: DaemonFactory) -> None:
    running = daemon(script={"start_s": 30.0}, ready=False)
    done = acu("chat", "--socket", str(running.socket), "--no-wait", "--once", "hi", environ=running.environ)
    assert done.returncode == 1
    assert done.stderr.startswith("acu: not ready: loading scripted")
