"""`acu runs` over many runs at once where one of them, or the daemon, fails in the middle: what was done is told."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from acu.cli import main
from acu.commands import runmany

RUNS = [f"run_{number:024x}" for number in (3, 2, 1)]
FIRST, MIDDLE, LAST = RUNS
WORDS = "The run cannot be had."


class Daemon(http.server.ThreadingHTTPServer):
    """Three runs, of which each waits with one call. `failing`: (method, end of the path) to the status that answers it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failing: dict[tuple[str, str], int] = {}
        self.changed: list[str] = []

    def answer(self, method: str, path: str) -> tuple[int, object]:
        for (failing, end), status in self.failing.items():
            if method == failing and path.endswith(end):
                return status, {"error": {"message": WORDS, "type": "x", "param": None, "code": "data_damaged"}}
        if "?" in path:
            return 200, {"data": [{"id": each} for each in RUNS], "has_more": False, "last_id": LAST}
        run = path.split("/")[4]
        if method != "GET":
            self.changed.append(run)
        call = {"id": "call_1", "name": "pay", "arguments": "{}", "approval": "asked"}
        return 200, {"id": run, "status": "waiting", "steps": [{"calls": [call]}]}


class Handler(http.server.BaseHTTPRequestHandler):
    """One request; a status of 0 is a connection that is closed without an answer."""

    server: Daemon

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        status, told = self.server.answer(self.command, self.path)
        if not status:
            return
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _answer  # noqa: N815


@pytest.fixture
def fake() -> Iterator[Daemon]:
    with Daemon() as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def runs(fake: Daemon, *words: str) -> int:
    return main(["runs", *words, "--yes", "--url", f"http://127.0.0.1:{fake.server_port}"])


def words_of(status: int) -> str:
    return WORDS if status else "closed the connection"


@pytest.mark.parametrize("status", [400, 404, 409, 429, 500, 507])
def test_what_one_run_refuses_is_its_own_and_the_others_go_on(
    status: int, fake: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.failing["DELETE", MIDDLE] = status
    assert runs(fake, "rm", "--status", "completed") == 1
    assert capsys.readouterr() == (f"{FIRST}: removed\n{LAST}: removed\n2 of 3 runs\n", f"acu: {WORDS}\n")
    assert fake.changed == [FIRST, LAST]


@pytest.mark.parametrize(("status", "code"), [(401, 1), (403, 1), (503, 1), (0, 3)])
def test_what_all_would_get_ends_it_and_is_told_behind_what_was_done(
    status: int, code: int, fake: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.failing["POST", f"{MIDDLE}/cancel"] = status
    assert runs(fake, "cancel", "--status", "waiting") == code
    out, err = capsys.readouterr()
    assert out == f"{FIRST}: waiting\n1 of 3 runs, 1 not tried\n"
    assert words_of(status) in err
    assert err.count("\n") == 1
    assert runs(fake, "cancel", "--status", "waiting", "--json") == code
    told = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in told["data"]] == [FIRST]
    ((run, error),) = [tuple(each.values()) for each in told["failed"]]
    assert run == MIDDLE
    assert words_of(status) in error
    assert told["not_tried"] == [{"id": LAST}]
    assert fake.changed == [FIRST, FIRST]


def test_a_run_that_cannot_be_read_hides_no_call_of_others(fake: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    fake.failing["GET", MIDDLE] = 500
    fake.failing["POST", f"{FIRST}/calls/call_1/approval"] = 409
    assert runs(fake, "approve", "--status", "waiting", "--json") == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [(each["id"], each["call"]) for each in told["data"]] == [(LAST, "call_1")]
    assert told["failed"] == [{"id": MIDDLE, "error": WORDS}, {"id": FIRST, "call": "call_1", "error": WORDS}]
    assert err == f"acu: {WORDS}\n" * 2
    fake.failing["GET", MIDDLE] = 503
    assert runs(fake, "approve", "--status", "waiting") == 1
    assert capsys.readouterr() == ("", f"acu: {WORDS}\n")
    assert fake.changed == [LAST]


def test_who_interrupts_is_told_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    def act(meant: runmany.Meant) -> tuple[str, str]:
        if meant.run == MIDDLE:
            raise KeyboardInterrupt
        return meant.run, meant.run

    every = [runmany.Meant(run) for run in RUNS]
    with pytest.raises(KeyboardInterrupt):
        runmany.each("run", every, act, as_json=False)
    assert capsys.readouterr().out == f"{FIRST}\n1 of 3 runs, 1 not tried\n"
    with pytest.raises(KeyboardInterrupt):
        runmany.each("run", every, act, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] == [{"id": MIDDLE, "error": "interrupted: it may be done"}]
