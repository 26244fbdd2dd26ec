"""acu.process.sockets: what is bound, what is refused, and what is left."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from acu.config import AcuConfig, NetworkConfig
from acu.errors import AddressInUse, SocketInUse, StartRefused
from acu.process import sockets
from acu.process.sockets import Listener, bind_tcp, bind_unix, open_listeners
from acu.process.systemd import Handover
from tests.acu.running import ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a unix socket may lie."""
    return tmp_path / "acu.sock"


@pytest.fixture
def closing() -> Iterator[list[Listener]]:
    """Listeners to close at the end."""
    listeners: list[Listener] = []
    yield listeners
    sockets.close_all(listeners)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666, 0o777])
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_the_mode_is_exactly_the_configured_one_whatever_the_umask(path: Path, mode: int, umask: int) -> None:
    old = os.umask(umask)
    try:
        listener = bind_unix(path, mode)
        assert os.umask(umask) == umask, "the umask is as it was"
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    listener.close()
    assert not path.exists()


def test_a_stale_socket_is_replaced(path: Path, closing: list[Listener]) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    closing.append(bind_unix(path, 0o600))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_live_socket_is_refused_and_left_alone(path: Path, closing: list[Listener]) -> None:
    closing.append(bind_unix(path, 0o600))
    with pytest.raises(SocketInUse, match="another daemon already serves"):
        bind_unix(path, 0o600)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_live_socket_whose_backlog_is_full_is_still_live(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as waiting:
        server.bind(str(path))
        server.listen(0)
        waiting.setblocking(False)
        waiting.connect(str(path))
        with pytest.raises(SocketInUse, match="another daemon"):
            bind_unix(path, 0o600)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "fifo"])
def test_what_is_no_socket_is_never_removed(path: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "precious"
    target.write_text("keep")
    if kind == "file":
        path.write_text("keep")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    before = path.lstat().st_ino
    with pytest.raises(SocketInUse, match="exists and is not a socket"):
        bind_unix(path, 0o600)
    assert path.lstat().st_ino == before
    assert target.read_text() == "keep"


def test_closing_does_not_remove_the_socket_of_a_successor(path: Path, closing: list[Listener]) -> None:
    first = bind_unix(path, 0o600)
    path.unlink()
    closing.append(bind_unix(path, 0o600))
    first.close()
    assert path.exists()


def test_a_folder_that_somebody_else_holds_is_told_and_refused_after_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sockets, "LOCK_TIMEOUT_S", 0.3)
    monkeypatch.setattr(sockets, "SLOW_S", 0.01)
    fd = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(SocketInUse, match="holds a lock on"):
        bind_unix(path, 0o600)
    os.close(fd)
    assert not path.exists()
    assert capsys.readouterr().err == (
        f"acu: network.unix_socket: {path} cannot be made for 0.01 s now; is its disk frozen, or out of reach?\n"
    )


def test_a_missing_folder_is_made_for_its_owner_alone(tmp_path: Path, closing: list[Listener]) -> None:
    closing.append(bind_unix(tmp_path / "new" / "acu.sock", 0o600))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_the_folders_that_were_made_go_with_the_socket(tmp_path: Path) -> None:
    listener = bind_unix(tmp_path / "a" / "b" / "acu.sock", 0o600)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    listener.close()
    listener.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays_and_so_does_one_in_which_something_lies(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    bind_unix(tmp_path / "old" / "acu.sock", 0o600).close()
    assert (tmp_path / "old").is_dir()
    listener = bind_unix(tmp_path / "new" / "inner" / "acu.sock", 0o600)
    (tmp_path / "new" / "log").write_text("keep")
    listener.close()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["log"]


def test_the_folder_of_two_daemons_stays_while_one_lives(tmp_path: Path, closing: list[Listener]) -> None:
    first = bind_unix(tmp_path / "run" / "one.sock", 0o600)
    closing.append(bind_unix(tmp_path / "run" / "two.sock", 0o600))
    first.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "run" / "two.sock"))


def test_a_start_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="cannot listen on"):
        bind_unix(tmp_path / "new" / "inner" / ("x" * 100) / "acu.sock", 0o600)
    for name in ("x" * 300, "inner\0"):
        with pytest.raises((StartRefused, ValueError)):
            bind_unix(tmp_path / "new" / name / "acu.sock", 0o600)
    assert list(tmp_path.iterdir()) == []


COMER = """
    import socket, sys
    from pathlib import Path
    from acu.process.sockets import bind_unix
    path = Path(sys.argv[1])
    for _ in range(300):
        listener = bind_unix(path, 0o600)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        listener.close()
"""


def test_who_waits_for_a_folder_that_is_taken_away_makes_it_anew(tmp_path: Path) -> None:
    """Daemons that begin and end at once in one folder, which each would take away, never keep one another from it."""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", textwrap.dedent(COMER)]
    comers = [
        subprocess.Popen([*command, str(folder / f"{number}.sock")], stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for number in range(3)
    ]
    assert [comer.communicate()[1] for comer in comers] == ["", "", ""]
    assert [comer.returncode for comer in comers] == [0, 0, 0]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartRefused, match=r"network\.unix_socket: .*file"):
        bind_unix(tmp_path / "file" / "acu.sock", 0o600)


def test_an_occupied_port_is_refused_with_the_name_of_who_listens(closing: list[Listener]) -> None:
    closing.append(bind_tcp("127.0.0.1:0"))
    port = closing[0].sock.getsockname()[1]
    with pytest.raises(AddressInUse, match=rf"127\.0\.0\.1:{port} is in use by \S+ \(pid {os.getpid()}\); stop it, or"):
        bind_tcp(f"127.0.0.1:{port}")


def test_an_address_that_the_machine_lacks_is_refused() -> None:
    with pytest.raises(StartRefused, match=r"network\.bind_addr: cannot listen on 192\.0\.2\.1:0"):
        bind_tcp("192.0.2.1:0")


def test_when_one_socket_is_refused_the_others_are_not_left(path: Path, closing: list[Listener]) -> None:
    closing.append(bind_tcp("127.0.0.1:0"))
    port = closing[0].sock.getsockname()[1]
    config = AcuConfig(network=NetworkConfig(bind_addr=f"127.0.0.1:{port}", unix_socket=str(path)))
    with pytest.raises(AddressInUse):
        open_listeners(config, Handover())
    assert not path.exists()


def test_a_socket_from_systemd_replaces_the_configured_one_of_its_kind(path: Path, closing: list[Listener]) -> None:
    inherited = socket.create_server(("127.0.0.1", 0))
    config = AcuConfig(network=NetworkConfig(bind_addr="127.0.0.1:1", unix_socket=str(path)))
    closing += open_listeners(config, Handover(sockets=(("http", inherited),)))
    assert [listener.is_tcp for listener in closing] == [True, False]
    assert closing[0].label == f"127.0.0.1:{inherited.getsockname()[1]}"


def test_the_file_of_a_socket_from_systemd_is_left_to_systemd(path: Path) -> None:
    inherited = socket.socket(socket.AF_UNIX)
    inherited.bind(str(path))
    inherited.listen()
    config = AcuConfig(network=NetworkConfig(bind_addr=None, unix_socket="/nowhere"))
    sockets.close_all(open_listeners(config, Handover(sockets=(("s", inherited),))))
    assert path.exists()


def test_a_socket_from_systemd_beyond_loopback_needs_keys_and_tls_too() -> None:
    with socket.create_server(("0.0.0.0", 0)) as inherited:
        handover = Handover(sockets=(("http", inherited),))
        with pytest.raises(StartRefused, match="needs API keys and TLS"):
            open_listeners(AcuConfig(network=NetworkConfig(unix_socket=None)), handover)
        network = replace(NetworkConfig(unix_socket=None), api_keys_file="k", tls_cert_file="c", tls_key_file="t")
        assert len(open_listeners(AcuConfig(network=network), handover)) == 1


RACER = """
    import sys, time
    from pathlib import Path
    from acu.errors import SocketInUse
    from acu.process.sockets import bind_unix
    sys.stdout.write("here\\n"); sys.stdout.flush()
    sys.stdin.readline()
    try:
        kept = bind_unix(Path(sys.argv[1]), 0o600)
    except SocketInUse:
        print("refused")
    else:
        print("bound", flush=True)
        sys.stdin.readline()
"""


def test_of_many_processes_that_race_for_a_stale_socket_exactly_one_gets_it(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RACER), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "here\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outcomes = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
    for racer in racers:
        racer.communicate("end\n")
    assert sorted(outcomes) == ["bound", *["refused"] * 5]
