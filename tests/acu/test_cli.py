"""The `acu` command itself: help, exit codes, and which modules a command imports."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from acu.cli import COMMANDS, command_named
from acu.commands import exits
from tests.acu.running import ROOT, acu


def test_help_shows_every_command_the_exit_codes_and_where_the_configuration_lies(
    clean_environ: dict[str, str],
) -> None:
    done = acu("--help", environ=clean_environ)
    assert done.returncode == 0
    for word in (*COMMANDS, "exit codes:", "ACU_CONFIG", "/etc/acu/acu.yaml", "acu serve --pull"):
        assert word in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, clean_environ: dict[str, str]) -> None:
    done = acu(command, "--help", environ=clean_environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: acu {command}" in done.stdout


@pytest.mark.parametrize("words", [(), *((command,) for command in COMMANDS), ("models", "rm"), ("config", "check")])
def test_help_fits_80_columns(words: tuple[str, ...], clean_environ: dict[str, str]) -> None:
    done = acu(*words, "--help", environ={**clean_environ, "COLUMNS": "80"})
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    "words", [(), ("frobnicate",), ("serve", "--frobnicate"), ("config",), ("--bind", "x", "serve")]
)
def test_wrong_usage_is_exit_code_2_on_standard_error(words: tuple[str, ...], clean_environ: dict[str, str]) -> None:
    done = acu(*words, environ=clean_environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: acu" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "list", "--agent", "\udcff"),
        ("runs", "say", "last", "caf\udce9"),
        ("chat", "--once", "\udcff"),
        ("-c", "\udcff.yaml", "status"),
        ("\udcff",),
        ("runs", "list", "--\udcff"),
    ],
)
def test_an_argument_that_is_no_utf_8_is_wrong_usage(words: tuple[str, ...], clean_environ: dict[str, str]) -> None:
    done = acu(*words, environ=clean_environ)
    (word,) = [word for word in words if not word.isprintable()]
    shown = word.encode("ascii", "backslashreplace").decode()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"acu: the argument '{shown}' is not valid UTF-8\n"


def test_a_word_too_many_shows_the_usage_of_the_command(clean_environ: dict[str, str]) -> None:
    done = acu("chat", "hello", environ=clean_environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: acu chat ")
    assert "acu chat: error: unrecognized arguments: hello" in done.stderr


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("run", "list"), "'run' (did you mean runs? choose from serve, chat, "),
        (("runs", "ls"), "'ls' (did you mean list? choose from "),
        (("serve", "--log-level", "warn"), "'warn' (did you mean warning? choose from debug, info, warning, error)"),
        (("frobnicate",), "'frobnicate' (choose from serve, chat, "),
    ],
)
def test_a_word_that_is_none_is_told_the_nearest(
    words: tuple[str, ...], near: str, clean_environ: dict[str, str]
) -> None:
    done = acu(*words, environ=clean_environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"invalid choice: {near}" in done.stderr


def test_help_is_a_command_as_well(clean_environ: dict[str, str]) -> None:
    for words, usage in ((("help",), "usage: acu [-h]"), (("help", "serve"), "usage: acu serve ")):
        done = acu(*words, environ=clean_environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(usage)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_error(closed: str, clean_environ: dict[str, str]) -> None:
    done = run_in_bash(f"-m acu version {closed}", clean_environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_no_file_takes_the_place_of_a_closed_standard_stream(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    program, report = tmp_path / "program.py", tmp_path / "report"
    program.write_text(
        "import sys; from acu.__main__ import keep_standard_streams; keep_standard_streams()\n"
        "file = open(sys.argv[1], 'w')\n"
        "print('lost'); print('lost', file=sys.stderr); print(file.fileno() > 2, file=file)"
    )
    assert run_in_bash(f"{program} {report} <&- >&- 2>&-", clean_environ).returncode == 0
    assert report.read_text() == "True\n"


def run_in_bash(words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, in which a shell closes streams."""
    command = ["bash", "-c", f"exec {sys.executable} {words}"]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_version_names_the_parts(clean_environ: dict[str, str]) -> None:
    done = acu("version", environ=clean_environ)
    assert done.returncode == 0
    assert done.stdout.startswith("acu 0.")
    assert "aiohttp " in done.stdout


def test_version_as_json_has_the_same_versions(clean_environ: dict[str, str]) -> None:
    lines = acu("version", environ=clean_environ).stdout.splitlines()
    known = json.loads(acu("version", "--json", environ=clean_environ).stdout)
    assert lines[1] == f"python {known['python']} on {known.pop('machine')}"
    assert [line.split()[:2] for line in lines] == [[part, version] for part, version in known.items()]


@pytest.mark.parametrize("command", ["chat", "status"])
def test_without_a_daemon_a_client_command_says_how_to_start_one(command: str, clean_environ: dict[str, str]) -> None:
    done = acu(command, environ=clean_environ)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no daemon listens on" in done.stderr
    assert "acu serve" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_is_found_behind_the_configuration_option() -> None:
    assert command_named(["-c", "serve", "status"]) == "status"
    assert command_named(["--config=chat", "status", "chat"]) == "status"
    assert command_named(["-cchat", "status", "chat"]) == "status"
    assert command_named(["--help"]) is None
    assert command_named([]) is None


@pytest.mark.parametrize("option", ["-c{}", "-c {}", "--config={}", "--config {}"])
def test_the_configuration_is_named_before_the_command_in_every_form(
    option: str, tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    file = tmp_path / "acu.yaml"
    file.write_text("network: {max_connections: 77}\n")
    done = acu(*option.format(file).split(), "config", "get", "network.max_connections", environ=clean_environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "77\n", "")


@pytest.mark.parametrize("ignored", [True, False])
def test_ctrl_c_ends_a_command_unless_the_caller_has_it_ignored(
    ignored: bool, tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        command = [sys.executable, "-m", "acu", "status", "--socket", str(tmp_path / "s")]
        trap = "trap '' INT; " if ignored else ""
        child = subprocess.Popen(
            ["bash", "-c", f'{trap}exec "$@"', "bash", *command], cwd=ROOT, env=clean_environ, stderr=subprocess.DEVNULL
        )
        connection, _ = silent.accept()  # it runs, and waits for an answer
        with connection:
            child.send_signal(signal.SIGINT)
            if ignored:
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            assert child.wait(60) == (exits.FAILED if ignored else exits.INTERRUPTED)


def test_a_command_imports_no_other_command_and_no_heavy_library(clean_environ: dict[str, str]) -> None:
    program = (
        "import sys; from acu import cli; from acu.commands import status\n"
        "heavy = {'rich', 'structlog', 'aiohttp', 'uvloop', 'numpy', 'yaml', 'acu.daemon', 'acu.commands.chat'}\n"
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=clean_environ, check=True)


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    command = f"{sys.executable} -m acu config schema | head -c 1 > {tmp_path / 'out'}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=clean_environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
