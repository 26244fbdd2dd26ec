"""The daemon's addresses: who has each, and whether an ACU answers there, and with which processes.

Besides those that the configuration names there are those of scripts/acu-up and of the units: their daemons have another
socket than their configuration says. Connects and asks for /healthz and the status; makes and removes nothing, and does not
connect to a socket of systemd's whose daemon does not run, which would start it.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import socket
import ssl
import stat
import struct
import subprocess
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from acu.config import AcuConfig, split_address
from acu.doctor.examination import Address
from acu.process.sockets import process_name, who_listens

CONNECT_S = 0.3
ANSWER_S = 0.5
MOST_STATUS = 4 << 20
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
RUN = Path("/run/acu")
SYSTEMD = Path("/run/systemd/system")
HELD_BY = re.compile(r"\(pid (\d+)\)$")


def addresses_named(config: AcuConfig, own: Path | None = None) -> tuple[str, ...]:
    """The addresses that the configuration names, with `own` in place of its unix socket; port 0 is none that could be asked."""
    named = []
    unix = config.network.unix_socket if own is None else own
    if unix is not None:
        named.append(f"unix:{unix}")
    if config.network.bind_addr is not None and split_address(config.network.bind_addr)[1] != 0:
        named.append(config.network.bind_addr)
    return tuple(named)


def found_running(named: tuple[str, ...], run: Path = RUN, systemd: Path = SYSTEMD) -> tuple[Address, ...]:
    """The ACUs, but those named, that answer on the sockets of scripts/acu-up (RUN/N/acu.sock) and of the units (RUN/N.sock)."""
    known = {Path(address.removeprefix("unix:")).resolve() for address in named}
    of_units = [path for path in sorted(run.glob("*.sock")) if path.stem.isdecimal() and _may_be_asked(path, systemd)]
    sockets = [path for path in (*sorted(run.glob("*/acu.sock")), *of_units) if path.resolve() not in known]
    return tuple(found for path in sockets if (found := read_unix(path)).answers)


def _may_be_asked(path: Path, systemd: Path) -> bool:
    """Whether nobody would be started by it."""
    if not systemd.is_dir():
        return True
    command = ["systemctl", "is-active", "--quiet", f"acu@{path.stem}.service"]
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=ANSWER_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False  # it may sleep: better unseen than woken


def read_address(address: str, *, tls: bool) -> Address:
    """One address. Raises OSError for what the kernel has against it."""
    if address.startswith("unix:"):
        return read_unix(Path(address.removeprefix("unix:")))
    return read_tcp(address, tls=tls)


def read_unix(path: Path) -> Address:
    """A unix socket: nothing there, something else, left behind by a daemon that was killed, or alive."""
    address = f"unix:{path}"
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Address(address)
    if not stat.S_ISSOCK(mode):
        return Address(
            address, held_by="a file that is no socket", detail="the daemon leaves it alone, and does not start"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_S)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return Address(address, detail="left by a daemon that was killed; the next start removes it")
        except PermissionError:
            return Address(
                address, held_by=f"a process of uid {path.lstat().st_uid}", detail="this user may not connect"
            )
        except (TimeoutError, BlockingIOError):
            return Address(address, held_by="another process", detail="it takes no more connections")
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        return ask(sock, Address(address, held_by=process_name(pid) if pid else "a process outside"))


def read_tcp(address: str, *, tls: bool = False) -> Address:
    """A TCP address."""
    host, port = split_address(address)
    host = ANYWHERE.get(host, host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as held:
        sock = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
        sock.settimeout(CONNECT_S)
        outcome = sock.connect_ex((host, port))
        if outcome == errno.ECONNREFUSED:
            return Address(address)
        if outcome != 0:
            silent = outcome in {errno.EAGAIN, errno.ETIMEDOUT}
            return Address(
                address,
                held_by=who_listens(port) if silent else None,
                detail="it takes no connections" if silent else os.strerror(outcome),
            )
        there = Address(address, held_by=who_listens(port))
        try:
            return ask(held.enter_context(_unverified().wrap_socket(sock)) if tls else sock, there)
        except OSError:
            return replace(there, detail="it does not speak TLS")


def _unverified() -> ssl.SSLContext:
    """TLS that takes any certificate: nothing is sent but a question whether somebody is there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def ask(sock: socket.socket, there: Address) -> Address:
    """What is at the other end: whether it is an ACU, and which processes are its own; else what was wrong."""
    sock.settimeout(ANSWER_S)
    try:
        status, found = _asked(sock, "/healthz")
    except TimeoutError:
        return replace(there, detail=f"no answer within {ANSWER_S} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return replace(there, detail=f"no ACU's answer: {str(error) or type(error).__name__}")
    held = HELD_BY.search(there.held_by or "")
    own: tuple[int, ...] = (int(held[1]),) if held and held[1] != "1" else ()  # 1, systemd, makes sockets only
    if _is_full(found):
        return replace(there, answers=True, full=True, pids=own)
    if not isinstance(found, dict) or found.get("status") != "ok":
        return replace(there, detail=f"no ACU's answer: HTTP {status}")
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        own += processes_told(_asked(sock, "/acu/v1/status")[1])
    return replace(there, answers=True, pids=tuple(dict.fromkeys(own)))


def _asked(sock: socket.socket, path: str) -> tuple[int, Any]:
    """(status, document). Who has no room for us answers without a question, and closes: then that is read all the same."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    answer = http.client.HTTPResponse(sock, method="GET")
    answer.begin()
    return answer.status, json.loads(answer.read(MOST_STATUS))


def _is_full(found: Any) -> bool:
    """Whether it is the answer of an ACU that has as many connections as it takes."""
    error = found.get("error") if isinstance(found, dict) else None
    return isinstance(error, dict) and error.get("code") == "too_many_connections"


def processes_told(status: Any) -> tuple[int, ...]:
    """The daemon's process and its engines', as its status tells them; none where it is none."""
    try:
        engines = [engine["info"] or {} for model in status["service"]["models"] for engine in model["engines"]]
        return tuple(map(int, (status["daemon"]["pid"], *(pid for info in engines for pid in info.get("pids", ())))))
    except (LookupError, TypeError, AttributeError, ValueError):
        return ()
