"""acu.doctor.addresses: free, left behind, held by others, and held by an ACU, on real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from acu.config import AcuConfig, NetworkConfig
from acu.doctor.addresses import addresses_named, found_running, processes_told, read_address, read_tcp, read_unix
from acu.doctor.examination import Address
from tests.acu.certificates import make_certificate
from tests.acu.running import DaemonFactory

ME = f"(pid {os.getpid()})"
OK = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{"status":"ok"}'


@contextlib.contextmanager
def answering(sock: socket.socket, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Somebody who takes one connection."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            peer, _ = sock.accept()
            with peer:
                answer(peer)

    sock.listen(1)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        sock.close()


def say(text: bytes) -> Callable[[socket.socket], None]:
    def answer(peer: socket.socket) -> None:
        peer.recv(4096)
        peer.sendall(text)

    return answer


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_addresses_are_those_of_the_configuration() -> None:
    def named(unix: str | None, tcp: str | None) -> tuple[str, ...]:
        return addresses_named(AcuConfig(network=NetworkConfig(unix_socket=unix, bind_addr=tcp)))

    assert named("/run/acu.sock", "127.0.0.1:8228") == ("unix:/run/acu.sock", "127.0.0.1:8228")
    assert named(None, "127.0.0.1:0") == ()
    assert named(None, None) == ()
    assert addresses_named(AcuConfig(network=NetworkConfig(unix_socket="/a")), Path("/b"))[0] == "unix:/b"


def test_an_address_that_nobody_has_is_free(tmp_path: Path) -> None:
    assert read_unix(tmp_path / "no" / "acu.sock") == Address(f"unix:{tmp_path}/no/acu.sock")
    address = f"127.0.0.1:{free_port()}"
    assert read_tcp(address) == Address(address)
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_answers_on_both_and_is_named(daemon: DaemonFactory, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    running = daemon(config={"network": {"tls_cert_file": str(certificate), "tls_key_file": str(key)}})
    for address in (f"unix:{running.socket}", urlsplit(running.url).netloc):
        found = read_address(address, tls=True)
        assert (found.answers, found.full, found.detail) == (True, False, "")
        assert running.pid in found.pids
        assert (found.held_by or "").endswith(f"(pid {running.pid})")


def test_what_a_killed_daemon_left_is_free_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "acu.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    found = read_unix(path)
    assert (found.held_by, found.answers) == (None, False)
    assert "the next start removes it" in found.detail
    assert path.exists()


def test_a_file_that_is_no_socket_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "acu.sock").write_text("")
    found = read_unix(tmp_path / "acu.sock")
    assert (found.held_by, found.answers) == ("a file that is no socket", False)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no ACU's answer: "),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", "no ACU's answer: HTTP 404"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "no ACU's answer: "),
        (b"", "no ACU's answer: "),
    ],
)
def test_who_is_no_acu_is_named_with_what_it_said(text: bytes, detail: str, tmp_path: Path) -> None:
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "acu.sock"))
    with answering(unix, say(text)):
        found = read_unix(tmp_path / "acu.sock")
    assert found.held_by is not None
    assert found.held_by.endswith(ME)
    assert not found.answers
    assert found.detail.startswith(detail)
    tcp = socket.socket()
    tcp.bind(("127.0.0.1", 0))
    with answering(tcp, say(text)):
        found = read_tcp(f"127.0.0.1:{tcp.getsockname()[1]}")
    assert (found.held_by or "").endswith(ME)
    assert not found.answers


def test_who_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    done = threading.Event()
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "acu.sock"))
    with answering(unix, lambda _: done.wait(30)):  # type: ignore[arg-type]
        found = read_unix(tmp_path / "acu.sock")
        done.set()
    assert (found.answers, found.detail) == (False, "no answer within 0.5 s")


def test_who_takes_no_more_connections_holds_the_address_too(tmp_path: Path) -> None:
    with contextlib.ExitStack() as held:
        sock = held.enter_context(socket.socket(socket.AF_UNIX))
        sock.bind(str(tmp_path / "acu.sock"))
        sock.listen(0)
        full = held.enter_context(socket.socket(socket.AF_UNIX))
        full.connect(str(tmp_path / "acu.sock"))
        found = read_unix(tmp_path / "acu.sock")
    assert (found.held_by, found.answers) == ("another process", False)


def test_an_address_of_every_interface_is_asked_on_loopback() -> None:
    sock = socket.socket()
    sock.bind(("0.0.0.0", 0))
    with answering(sock, say(OK)):
        found = read_tcp(f"0.0.0.0:{sock.getsockname()[1]}")
    assert found.answers


def test_an_address_that_is_not_this_machines_is_told() -> None:
    found = read_tcp("255.255.255.255:80")
    assert (found.held_by, found.answers) == (None, False)
    assert found.detail != ""


def test_who_does_not_speak_tls_where_it_is_configured_is_no_acu() -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    with answering(sock, say(b"HTTP/1.1 400 Bad Request\r\n\r\n")):
        found = read_tcp(f"127.0.0.1:{sock.getsockname()[1]}", tls=True)
    assert (found.answers, found.detail) == (False, "it does not speak TLS")


FULL = b'{"error":{"message":"Too many connections.","type":"server_error","code":"too_many_connections","param":null}}'


def test_an_acu_that_has_no_room_for_us_is_an_acu(tmp_path: Path) -> None:
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "acu.sock"))
    answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (
        len(FULL),
        FULL,
    )
    with answering(unix, lambda peer: peer.sendall(answer)):  # before it is asked
        found = read_unix(tmp_path / "acu.sock")
    assert (found.answers, found.full, found.pids) == (True, True, (os.getpid(),))


def test_acus_that_run_elsewhere_are_found_and_who_is_none_is_not(daemon: DaemonFactory, tmp_path: Path) -> None:
    running = daemon()
    run = tmp_path / "run"
    (run / "3").mkdir(parents=True)
    (run / "3/acu.sock").hardlink_to(running.socket)
    (run / "x.sock").hardlink_to(running.socket)  # no unit's
    (run / "4.sock").touch()
    (found,) = found_running((), run)
    assert (found.address, found.answers) == (f"unix:{run}/3/acu.sock", True)
    assert running.pid in found.pids
    assert found_running((f"unix:{run}/3/acu.sock",), run) == ()
    assert found_running((), run / "nothing") == ()


def test_processes_are_the_daemons_and_its_engines_as_the_status_tells_them() -> None:
    engines = [{"info": {"pids": [7, 8]}}, {"info": None}, {"info": {}}]
    status = {"daemon": {"pid": 5}, "service": {"models": [{"engines": engines}, {"engines": []}]}}
    assert processes_told(status) == (5, 7, 8)
    others: tuple[Any, ...] = (
        {},
        [],
        None,
        {"daemon": {"pid": None}, "service": {"models": []}},
        {"error": {"code": "unauthorized"}},
    )
    for other in others:
        assert processes_told(other) == ()


def test_a_units_socket_is_not_asked_where_that_would_start_the_daemon(daemon: DaemonFactory, tmp_path: Path) -> None:
    running = daemon()
    run = tmp_path / "sockets"
    run.mkdir()
    (run / "20230.sock").hardlink_to(running.socket)
    (found,) = found_running((), run, tmp_path / "no-systemd")
    assert (found.address, found.answers) == (f"unix:{run}/20230.sock", True)
    assert found_running((), run, tmp_path) == ()  # there is systemd, and no such unit is active
