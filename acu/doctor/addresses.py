"""The daemon's addresses: who has each, and whether an ACU answers there.

Connects and asks for /healthz; makes and removes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import socket
import ssl
import stat
import struct
from pathlib import Path

from acu.config import AcuConfig, split_address
from acu.doctor.examination import Address
from acu.process.sockets import process_name, who_listens

CONNECT_S = 0.3
ANSWER_S = 0.5
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def addresses_named(config: AcuConfig) -> tuple[str, ...]:
    """The addresses that the configuration names; port 0 is none that could be asked."""
    named = []
    if config.network.unix_socket is not None:
        named.append(f"unix:{config.network.unix_socket}")
    if config.network.bind_addr is not None and split_address(config.network.bind_addr)[1] != 0:
        named.append(config.network.bind_addr)
    return tuple(named)


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
        answers, detail = ask(sock)
    return Address(address, held_by=process_name(pid) if pid else "a process outside", answers=answers, detail=detail)


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
        answers, detail = False, "it does not speak TLS"
        with contextlib.suppress(OSError):
            answers, detail = ask(held.enter_context(_unverified().wrap_socket(sock)) if tls else sock)
        return Address(address, held_by=who_listens(port), answers=answers, detail=detail)


def _unverified() -> ssl.SSLContext:
    """TLS that takes any certificate: nothing is sent but a question whether somebody is there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def ask(sock: socket.socket) -> tuple[bool, str]:
    """(whether an ACU is at the other end, else what was wrong)."""
    sock.settimeout(ANSWER_S)
    connection = http.client.HTTPConnection("localhost", timeout=ANSWER_S)
    connection.sock = sock
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        found = json.loads(answer.read(4096))
    except TimeoutError:
        return False, f"no answer within {ANSWER_S} s"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return False, f"no ACU's answer: {str(error) or type(error).__name__}"
    if isinstance(found, dict) and found.get("status") == "ok":
        return True, ""
    return False, f"no ACU's answer: HTTP {answer.status}"
