"""What systemd hands over, and what it wants to hear: socket activation, readiness, status and the watchdog.

The protocols of sd_listen_fds(3) and sd_notify(3). Nothing here blocks: a notification that the socket cannot take at once is
dropped, since the next one says more. Outside systemd every call does nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, MutableMapping

from msgspec import Struct

from acu.errors import StartRefused

FIRST_FD = 3
HANDED_OVER = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Handover(Struct, frozen=True):
    """What came with the exec. `watchdog_s` is the longest silence in seconds that systemd bears, None for any.

    `sockets` listen already (stream sockets, in systemd's order, with their names).
    """

    sockets: tuple[tuple[str, socket.socket], ...] = ()
    notify_address: str | None = None
    watchdog_s: float | None = None
    under_systemd: bool = False


def take_over(environ: MutableMapping[str, str]) -> Handover:
    """Read the hand-over and remove it from `environ`, so that no child takes it for its own.

    Inherited sockets are made close-on-exec. Raises StartRefused for a socket that cannot be served.
    """
    found: Mapping[str, str] = {name: environ.pop(name) for name in HANDED_OVER if name in environ}
    sockets: list[tuple[str, socket.socket]] = []
    if found.get("LISTEN_PID") == str(os.getpid()):
        count = int(found.get("LISTEN_FDS", "0"))
        names = found.get("LISTEN_FDNAMES", "").split(":")
        for index in range(count):
            name = names[index] if index < len(names) and names[index] else "unknown"
            sockets.append((name, _inherited(FIRST_FD + index, name)))
    watchdog_s = None
    if "WATCHDOG_USEC" in found and found.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        watchdog_s = int(found["WATCHDOG_USEC"]) / 1e6 or None
    return Handover(
        sockets=tuple(sockets),
        notify_address=found.get("NOTIFY_SOCKET") or None,
        watchdog_s=watchdog_s,
        under_systemd="INVOCATION_ID" in environ or "JOURNAL_STREAM" in environ,
    )


def _inherited(fd: int, name: str) -> socket.socket:
    os.set_inheritable(fd, False)
    try:
        listener = socket.socket(fileno=fd)
        listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartRefused(f"LISTEN_FDS: descriptor {fd} ({name}) is no socket: {error.strerror}") from error
    families = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
    if not listening or listener.type != socket.SOCK_STREAM or listener.family not in families:
        raise StartRefused(
            f"LISTEN_FDS: descriptor {fd} ({name}) is no listening stream socket; use ListenStream= and Accept=no"
        )
    listener.setblocking(False)
    return listener


class Notifier:
    """Tells systemd how the daemon is. Does nothing without an address."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._status: str | None = None
        self._socket: socket.socket | None = None
        if address and address[0] in "/@":
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def ready(self, status: str) -> None:
        """The sockets accept."""
        self._status = status
        self._send(f"READY=1\nSTATUS={status}\nMAINPID={os.getpid()}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent when it changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def reloading(self, monotonic_us: int) -> None:
        """A reload began at this CLOCK_MONOTONIC time, in microseconds; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_us}")

    def stopping(self, status: str, extend_s: float) -> None:
        """The end began and may take `extend_s` seconds."""
        self._status = status
        self._send(f"STOPPING=1\nSTATUS={status}\nEXTEND_TIMEOUT_USEC={int(extend_s * 1e6)}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Say no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is None or self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError):  # nobody listens, or its buffer is full: never worth a failure
            self._socket.sendto(text.encode(errors="backslashreplace"), address)
