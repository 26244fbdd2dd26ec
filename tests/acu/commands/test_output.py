"""What a command does where nobody can read what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from acu.commands import exits
from tests.acu.running import ROOT

RUNS = [f"run_{number:024x}" for number in range(3)]
OVER = RUNS[1]


class Server(ThreadingHTTPServer):
    """Cancels every run but OVER, and has what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": run} for run in RUNS], "has_more": False})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        run = self.path.split("/")[-2]
        self.server.asked.append(run)
        if run == OVER:
            self._answer(409, {"error": {"message": "It is over.", "type": "x", "param": None, "code": "run_over"}})
        else:
            self._answer(200, {"id": run, "status": "cancelled"})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def unread(environ: dict[str, str], server: Server, *words: str, errors: bool) -> int:
    """The exit code of `acu runs` where nobody reads its output; with `errors` neither what it says of these."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "acu", "runs", *words, "--url", f"http://127.0.0.1:{server.server_port}"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, stdout=writer, stderr=writer if errors else subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert b"Traceback" not in (done.stderr or b"")
    return done.returncode


@pytest.mark.parametrize("errors", [False, True])
@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(("runs", "code"), [(RUNS, exits.FAILED), (RUNS[::2], exits.OK), (RUNS[:1], exits.OK)])
def test_what_acts_is_done_to_its_end_and_has_its_exit_code_though_nobody_reads_what_it_says(
    runs: list[str], code: int, form: tuple[str, ...], errors: bool, server: Server, clean_environ: dict[str, str]
) -> None:
    assert unread(clean_environ, server, "cancel", *runs, *form, errors=errors) == code
    assert server.asked == runs


def test_what_acts_is_done_to_its_end_on_a_full_disk_and_then_says_that_it_could_not_be_told(
    server: Server, clean_environ: dict[str, str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "acu",
        "runs",
        "cancel",
        *RUNS[::2],
        "--url",
        f"http://127.0.0.1:{server.server_port}",
    ]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=ROOT, env=clean_environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "acu: the output cannot be written: No space left on device\n")
    assert server.asked == RUNS[::2]


def test_what_only_reads_ends_where_nobody_reads_it(server: Server, clean_environ: dict[str, str]) -> None:
    assert unread(clean_environ, server, "list", "--json", errors=False) == exits.OK
