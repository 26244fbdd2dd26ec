"""What docs/agents.md shows is run here as it stands: its files in a folder, its agent in a daemon, its commands against it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from agentflow.tools.function import ToolOptions
from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, acu, until

PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```\w+ title=([\w.]+)\n(.*?)```", PAGE, re.DOTALL))
SCRIPT = {
    "rules": [
        {"match": "status of billing", "answer": '{"service": "billing"}'},
        {"match": "restart billing", "answer": '{"service": "billing"}'},
        {"match": "letters", "answer": '{"word": "daemon"}'},
        {"match": "stock", "answer": '{"item": "bolts"}'},
    ]
}


class Place:
    """The page's files in a folder, its addresses replaced by the test's own."""

    def __init__(self, folder: Path, environ: dict[str, str], port: int) -> None:
        self.folder = folder
        self.environ = environ | {"PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}
        self.url = ""
        for name, text in FILES.items():
            (folder / name).write_text(text.replace("8300", str(port)), encoding="utf-8")

    def run(self, program: str, name: str) -> str:
        """What a file of the page prints."""
        code = FILES[name]
        assert "http://127.0.0.1:8228" in code
        done = subprocess.run(
            [program, "-c", code.replace("http://127.0.0.1:8228", self.url)],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def place(tmp_path: Path, clean_environ: dict[str, str]) -> Iterator[Place]:
    """The page's folder, with its HTTP API running."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Place(tmp_path, clean_environ, port)
    api = subprocess.Popen([sys.executable, "stock.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        until(lambda: bool(psutil.Process(api.pid).net_connections("tcp")), "the API listens")
        yield made
    finally:
        api.kill()
        api.wait()


@pytest.fixture
def running(place: Place, daemon: DaemonFactory) -> RunningDaemon:
    """A daemon with the page's configuration."""
    document: dict[str, Any] = yaml.safe_load((place.folder / "acu.yaml").read_text(encoding="utf-8"))
    data = {"path": str(place.folder / "data"), "hot_layer_mem_mb": 64}
    running = daemon(document | {"data_plane": data}, script=SCRIPT, environ={"PATH": place.environ["PATH"]})
    place.url = running.url
    return running


def ask(running: RunningDaemon, text: str) -> subprocess.CompletedProcess[str]:
    return acu("chat", "--socket", str(running.socket), "--agent", "ops", "--once", text, environ=running.environ)


def test_its_configuration_passes_the_check_as_it_stands(place: Place) -> None:
    models = {"models": {"large": {"model": "scripted", "engine": "scripted"}}}  # of which none is pulled here
    with (place.folder / "acu.yaml").open("a") as file:
        file.write(yaml.safe_dump(models))
    done = acu("config", "check", str(place.folder / "acu.yaml"), environ=place.environ)
    assert done.returncode == 0, done.stderr
    told = "agents.ops.tools: not checked, may come from MCP server letters: count_letters"
    assert done.stderr == f"acu: {told} ({place.folder / 'acu.yaml'}:10)\n"


def test_tools_of_all_three_kinds_answer(place: Place, running: RunningDaemon) -> None:
    answer = json.loads(place.run("bash", "ask.sh"))
    assert answer["choices"][0]["message"]["content"] == "billing: release 3.2, deployed on Monday."
    # Once the MCP server has come, the router knows all tools: the form is filled in for each.
    counted, stocked = "daemon has 6 letters.", "There are 12 of bolts in stock."
    until(lambda: counted in ask(running, "Count the letters of daemon").stdout, "the MCP server has come and answers")
    until(lambda: stocked in ask(running, "How many bolts are in stock?").stdout, "the HTTP API answers")


def test_a_call_that_waits_is_allowed_by_curl_and_by_a_response(place: Place, running: RunningDaemon) -> None:
    said: list[str] = []
    chat = threading.Thread(target=lambda: said.append(ask(running, "Please restart billing").stdout))
    chat.start()
    waiting = ("runs", "list", "--socket", str(running.socket), "--status", "waiting")
    until(lambda: "ops" in acu(*waiting, environ=running.environ).stdout, "the call waits")
    assert json.loads(place.run("bash", "approve.sh"))["agent"] == "ops"
    chat.join(30)
    assert said == ["billing was restarted.\n"]
    assert place.run(sys.executable, "responses.py").splitlines() == [
        'restart_service {"service": "billing"} waits for you',
        "billing was restarted.",
    ]


def test_every_option_of_a_tool_is_in_the_table_and_every_file_is_run() -> None:
    table = re.findall(r"^\| (`.*?) \|", PAGE.partition("| option of `@tool`")[2].partition("\n\n")[0], re.MULTILINE)
    assert {name for row in table for name in re.findall(r"`(\w+)`", row)} == set(ToolOptions.__annotations__)
    assert set(FILES) == {
        *("tools.py", "letters.py", "stock.yaml", "stock.py", "acu.yaml", "ask.sh", "approve.sh", "responses.py")
    }
    assert PAGE.count("```") == 2 * len(FILES)
