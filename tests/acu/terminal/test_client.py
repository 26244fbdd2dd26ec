"""acu.terminal.client and its commands, against whoever listens where a daemon should."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from acu.cli import main
from acu.commands import chat, status
from acu.errors import AcuError, DaemonUnreachable
from acu.terminal.client import Client, Target, split_url

Listen = Callable[[bytes | None], Path]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    """Serves one body to every request, or (None) accepts and says nothing. Gives the socket's path."""
    path = tmp_path / "s.sock"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    kept: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def work(body: bytes | None) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            kept.append(connection)
            if body is not None:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    def start(body: bytes | None) -> Path:
        server.bind(str(path))
        server.listen()
        threads.append(threading.Thread(target=work, args=(body,)))
        threads[0].start()
        return path

    yield start
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for thread in threads:
        thread.join()
    for connection in kept:
        connection.close()


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["status", "--watch"], ["chat", "--once", "x"]])
@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"{}", b"[" * 100_000, b"\xff", b'{"service": 1, "ready": false, "models": 1}']
)
def test_an_answer_that_no_acu_gives_is_one_line_and_exit_code_1(
    listen: Listen, body: bytes, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if body == b"{}" and command == ["status", "--watch"]:
        command = ["status"]
    code = main([*command, "--socket", str(listen(body))])
    told = capsys.readouterr()
    assert (code, told.out) == (1, "")
    assert told.err.startswith("acu: the ")
    assert "ACU" in told.err
    assert told.err.count("\n") == 1


def test_silence_is_called_a_time_out(listen: Listen) -> None:
    client = Client(Target(sockets=(listen(None),)), timeout_s=0.05)
    with pytest.raises(DaemonUnreachable, match=r"timed out: nothing came from it for 0\.05 s"):
        client.get("/readyz")


@pytest.fixture
def drips(tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """Serves an answer that begins as it is told and goes on for ever, a byte now and then. Gives the socket's path."""
    path, over = tmp_path / "drips.sock", threading.Event()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    threads: list[threading.Thread] = []

    def work(beginning: bytes) -> None:
        while not over.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.sendall(beginning)
                while not over.wait(0.02):
                    connection.sendall(b" ")

    def start(beginning: bytes) -> Path:
        server.bind(str(path))
        server.listen()
        threads.append(threading.Thread(target=work, args=(beginning,)))
        threads[0].start()
        return path

    yield start
    over.set()
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["status", "--watch"]])
@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n\r\n{"])
def test_an_answer_that_comes_byte_by_byte_ends_at_its_deadline(
    drips: Callable[[bytes], Path],
    beginning: bytes,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(status, "TOTAL_S", 0.3)
    path = drips(beginning)
    assert main([*words, "--socket", str(path)]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"acu: the daemon at {path} timed out: it gave no whole answer in 0.3 s; is it stuck, or is it no ACU?\n"
    )


def test_a_daemon_that_accepts_and_says_nothing_has_the_same_deadline(
    listen: Listen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "TOTAL_S", 0.3)
    assert main(["status", "--socket", str(listen(None))]) == 3
    assert "timed out: it gave no whole answer in 0.3 s" in capsys.readouterr().err


def test_chat_does_not_wait_forever_for_a_listener_that_says_nothing(
    listen: Listen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat, "READY_TIMEOUT_S", 0.05)
    assert main(["chat", "--once", "x", "--socket", str(listen(None))]) == 3
    assert "timed out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://[::1", "box", "ftp://box", "http://"]
)
def test_what_is_no_url_is_refused_in_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url]) == 1
    told = capsys.readouterr().err
    assert "is no URL; expected" in told
    assert told.count("\n") == 1


def test_a_url_has_the_port_of_its_scheme() -> None:
    assert split_url("http://box") == ("box", 80, False)
    assert split_url("https://[::1]") == ("::1", 443, True)
    assert split_url("http://127.0.0.1:8228") == ("127.0.0.1", 8228, False)


def test_a_certificate_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AcuError, match="--ca-file: .*none.pem: No such file"):
        Client(Target(url="https://127.0.0.1:1", ca_file=tmp_path / "none.pem")).get("/readyz")


def test_a_configuration_cannot_drive_the_terminal_through_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "acu.yaml").write_text('"a\\e[2Jb": 1\n')
    assert main(["config", "check", str(tmp_path / "acu.yaml")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("acu: a\\x1b[2Jb: unknown key")
    assert "\x1b" not in told
