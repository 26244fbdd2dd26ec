"""acu.process.systemd: the protocols of sd_listen_fds(3) and sd_notify(3)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from acu.process.systemd import Handover, Notifier, take_over
from tests.acu.running import ROOT


@pytest.fixture(params=["path", "abstract"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A notification socket as systemd has it: its address, and what receives."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@acu-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + address[1:] if address.startswith("@") else address)
        receiver.setblocking(False)
        yield address, receiver


def test_what_is_notified_arrives_as_systemd_reads_it(listening: tuple[str, socket.socket]) -> None:
    address, receiver = listening
    notifier = Notifier(address)
    notifier.ready("here")
    assert receiver.recv(4096).decode() == f"READY=1\nSTATUS=here\nMAINPID={os.getpid()}"
    notifier.status("loading")
    assert receiver.recv(4096) == b"STATUS=loading"
    notifier.status("loading")
    notifier.alive()
    assert receiver.recv(4096) == b"WATCHDOG=1", "an unchanged status is not sent again"
    notifier.reloading(12)
    assert receiver.recv(4096) == b"RELOADING=1\nMONOTONIC_USEC=12"
    notifier.stopping("bye", 1.5)
    assert receiver.recv(4096) == b"STOPPING=1\nSTATUS=bye\nEXTEND_TIMEOUT_USEC=1500000"
    notifier.close()
    notifier.alive()
    with pytest.raises(BlockingIOError):
        receiver.recv(4096)


def test_a_text_that_utf8_cannot_carry_is_told_escaped(listening: tuple[str, socket.socket]) -> None:
    address, receiver = listening
    notifier = Notifier(address)
    notifier.status("half \ud800 of a pair")
    assert receiver.recv(4096) == b"STATUS=half \\ud800 of a pair"
    notifier.close()


@pytest.mark.parametrize("address", [None, "", "/nowhere/notify", "vsock:1:2"])
def test_without_a_reachable_address_nothing_happens(address: str | None) -> None:
    notifier = Notifier(address)
    notifier.ready("here")
    notifier.alive()
    notifier.close()


def test_a_full_notification_socket_never_blocks(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        notifier = Notifier(address)
        for _ in range(5000):
            notifier.alive()
        notifier.close()
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            for _ in range(5000):
                assert receiver.recv(4096) == b"WATCHDOG=1"


def test_what_was_meant_for_another_process_is_not_taken_and_nothing_stays_for_children() -> None:
    environ = {
        "LISTEN_FDS": "1",
        "LISTEN_PID": str(os.getpid() + 1),
        "WATCHDOG_USEC": "1000000",
        "WATCHDOG_PID": str(os.getpid() + 1),
        "NOTIFY_SOCKET": "/run/x",
        "OTHER": "stays",
    }
    assert take_over(environ) == Handover(notify_address="/run/x")
    assert environ == {"OTHER": "stays"}


def test_the_watchdogs_time_is_seconds() -> None:
    assert take_over({"WATCHDOG_USEC": "30000000"}).watchdog_s == 30.0
    assert take_over({"WATCHDOG_USEC": "0"}).watchdog_s is None
    assert take_over({"INVOCATION_ID": "x"}).under_systemd


RECEIVER = """
    import os, sys
    from acu.errors import StartRefused
    from acu.process.systemd import take_over
    os.dup2(int(sys.argv[1]), 3)
    os.set_inheritable(3, True)
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http"}
    try:
        ((name, sock),) = take_over(environ).sockets
        print(name, sock.getsockname()[1], os.get_inheritable(3))
    except StartRefused as error:
        print(error)
"""


def receive(fd: int) -> str:
    """What a process makes of a descriptor that systemd hands it."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RECEIVER), str(fd)],
        cwd=ROOT,
        pass_fds=[fd],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_listening_socket_is_taken_by_name_and_not_inherited_by_children() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert receive(server.fileno()) == f"http {server.getsockname()[1]} False"


def test_descriptors_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert "descriptor 3 (http) is no socket" in receive(file.fileno())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        assert "is no listening stream socket" in receive(datagrams.fileno())
    with socket.socket() as idle:
        assert "is no listening stream socket" in receive(idle.fileno())
