"""The listening sockets: bound before anything heavy is imported, removed when the daemon ends.

Unix socket, in this order, all under a lock on its folder (flock(2) on the folder itself, so no lock file is left):
probe the path, remove a stale socket, bind under a umask that hides it, set the mode, listen. A second daemon therefore sees
either no socket or one that answers. At the end the path is removed only if it is still the socket that was bound, and, under
the same lock, the folders that were made for it, if nothing else lies in them: who waits for the lock then makes them anew.
After kill -9 the path stays; connecting to it is refused, and so the next daemon knows that it is stale.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from acu.config import AcuConfig, exposure_problems, split_address
from acu.errors import AddressInUse, SocketInUse, StartRefused
from acu.process.systemd import Handover

BACKLOG = 4096  # the kernel caps it at net.core.somaxconn
LOCK_TIMEOUT_S = 5.0
SLOW_S = 10.0
_TRIES = 100  # as often another daemon may take the folder away as its own


class Listener:
    """One listening socket. `path` is set when the socket's file is ours to remove, with the `folders` around it, inner first."""

    def __init__(self, sock: socket.socket, path: Path | None = None, folders: Sequence[Path] = ()) -> None:
        self.sock = sock
        self.path = path
        self._folders = folders
        self._identity = _identity(path) if path else None
        self._label = _label(sock)  # kept: a closed socket has no name
        self.host = self._label.rpartition(":")[0] if self.is_tcp else None
        """Its address as a Host header has it, `[::1]`; None for a unix socket."""

    @property
    def label(self) -> str:
        """Where it listens, as a client would write it."""
        return self._label

    @property
    def is_tcp(self) -> bool:
        """Whether it is reached over the network stack; else it is a unix socket."""
        return self.sock.family != socket.AF_UNIX

    def close(self) -> None:
        """Stop listening and remove the socket's file. Idempotent."""
        self.sock.close()
        self.remove_file()

    def remove_file(self) -> None:
        """Remove the socket's file, if it is still the one that was bound, and our folders, if they are empty. Idempotent."""
        if self.path is None:
            return
        with contextlib.suppress(OSError, SocketInUse), _folder_lock(self.path.parent):
            if _identity(self.path) == self._identity:
                self.path.unlink()
            _remove_empty(self._folders)
        self.path = None


def open_listeners(config: AcuConfig, handover: Handover) -> list[Listener]:
    """Every socket that the daemon listens on. Raises StartRefused, leaving nothing bound.

    A kind of socket (unix, TCP) that systemd passed replaces the configured one of that kind.
    """
    network = config.network
    listeners = [Listener(sock) for _, sock in handover.sockets]
    for listener in listeners:
        if listener.sock.family != socket.AF_UNIX:
            for problem in exposure_problems(network, listener.sock.getsockname()[0]):
                raise StartRefused(f"socket from systemd: {problem}")
    inherited = {listener.sock.family == socket.AF_UNIX for listener in listeners}
    try:
        if network.unix_socket is not None and True not in inherited:
            listeners.append(bind_unix(Path(network.unix_socket), int(network.socket_mode, 8)))
        if network.bind_addr is not None and False not in inherited:
            listeners.append(bind_tcp(network.bind_addr))
    except BaseException:
        close_all(listeners)
        raise
    return listeners


def close_all(listeners: list[Listener]) -> None:
    """Close every listener."""
    for listener in listeners:
        listener.close()


def bind_tcp(address: str) -> Listener:
    """Listen on ADDRESS:PORT. Raises AddressInUse, naming who has it, or StartRefused."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"network.bind_addr: {address} is in use by {who_listens(port)}; stop it, or choose another port "
                "(--bind 127.0.0.1:PORT; port 0 takes any)"
            ) from error
        raise StartRefused(
            f"network.bind_addr: cannot listen on {address}: {error.strerror}; choose another address or port"
        ) from error
    return Listener(sock)


def who_listens(port: int) -> str:
    """The process that listens on a TCP port of this machine, as far as /proc tells."""
    import psutil  # only on the way to an error message

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                return process_name(connection.pid)
    return "another process"


def process_name(pid: int) -> str:
    """A process as a message names it."""
    with contextlib.suppress(OSError):
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})"
    return f"another process (pid {pid})"


def bind_unix(path: Path, mode: int) -> Listener:
    """Listen on a unix socket with exactly `mode`. Raises SocketInUse or StartRefused.

    Standard error is told when it takes long, as on a disk that is frozen: whoever writes to it can do nothing else then.
    """
    said = (
        f"acu: network.unix_socket: {path} cannot be made for {SLOW_S:g} s now; is its disk frozen, or out of reach?\n"
    )
    slow = threading.Timer(SLOW_S, sys.stderr.write, [said.encode(errors="backslashreplace").decode()])
    slow.daemon = True
    slow.start()
    try:
        return _bind_unix(path, mode)
    finally:
        slow.cancel()


def _bind_unix(path: Path, mode: int) -> Listener:
    gone: OSError | None = None
    for _ in range(_TRIES):
        folders = _prepare_folder(path.parent)
        try:
            return _bind_in_folder(path, mode, folders)
        except FileNotFoundError as error:  # another daemon ended just now, and took the folder with it
            gone = error
        except BaseException as error:
            _remove_empty(folders)
            if isinstance(error, OSError):
                raise _no_place(path, error) from error
            raise
    assert gone is not None
    raise _no_place(path, gone) from gone


def _bind_in_folder(path: Path, mode: int, folders: Sequence[Path]) -> Listener:
    """Listen in a folder that is there. Raises FileNotFoundError when it is gone, SocketInUse, OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound = False
    try:
        with _folder_lock(path.parent):
            _remove_stale(path)
            old_umask = os.umask(0o177)
            try:
                sock.bind(str(path))
                bound = True
            finally:
                os.umask(old_umask)
            path.chmod(mode)
            sock.listen(BACKLOG)
            sock.setblocking(False)
            return Listener(sock, path, folders)
    except BaseException:
        sock.close()
        if bound:
            path.unlink(missing_ok=True)
        raise


def _no_place(path: Path, error: OSError) -> StartRefused:
    return StartRefused(
        f"network.unix_socket: cannot listen on {path}: {error.strerror}; choose a writable place (--socket PATH)"
    )


def _prepare_folder(folder: Path) -> tuple[Path, ...]:
    """Make the socket's folder, or check that nobody else could have put it there. Gives what is ours to remove, inner first."""
    advice = "choose another place for network.unix_socket (--socket PATH)"
    try:
        made = _make_folders(folder)
        found = folder.lstat() if not folder.is_symlink() else folder.stat()
    except FileExistsError as error:
        raise StartRefused(f"network.unix_socket: {folder} is not a folder; {advice}") from error
    except OSError as error:
        raise StartRefused(f"network.unix_socket: {folder} cannot be used: {error.strerror}; {advice}") from error
    private = folder == Path(f"/tmp/acu-{os.geteuid()}")  # noqa: S108
    if not private:
        return made
    if folder.is_symlink() or found.st_uid != os.geteuid():
        raise StartRefused(f"network.unix_socket: {folder} belongs to another user (uid {found.st_uid}); {advice}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return (folder,)  # by its name it is a daemon's, if not this one's


def _make_folders(folder: Path) -> tuple[Path, ...]:
    """Make a folder, closed to others, and those on the way. Gives those that were not there, inner first. Raises OSError."""
    missing = [folder]
    while not missing[-1].parent.is_dir() and missing[-1].parent not in missing:
        missing.append(missing[-1].parent)
    made: tuple[Path, ...] = ()
    for place in reversed(missing):
        try:
            place.mkdir(mode=0o700 if place == folder else 0o777)
        except BaseException as error:
            if isinstance(error, FileExistsError) and place.is_dir():
                continue
            _remove_empty(made)
            raise
        made = (place, *made)
    return made


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, inner first, up to the first in which something lies."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on. Raises SocketInUse for anything else that lies there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketInUse(
            f"network.unix_socket: {path} exists and is not a socket; it is left alone: move it away or choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        outcome = probe.connect_ex(str(path))
    if outcome == errno.ECONNREFUSED:
        path.unlink(missing_ok=True)
        return
    if outcome == errno.EACCES:
        raise SocketInUse(
            f"network.unix_socket: {path} belongs to another user and cannot be probed; choose another path"
        )
    if outcome != errno.ENOENT:
        raise SocketInUse(
            f"network.unix_socket: another daemon already serves {path}; stop it (`acu status` shows it), or choose "
            "another path (--socket PATH)"
        )


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; daemons hold it for milliseconds. Raises FileNotFoundError when the folder is gone by then."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        give_up_at = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    raise SocketInUse(
                        f"network.unix_socket: another process holds a lock on {folder}; choose another folder"
                    ) from None
                time.sleep(0.01)
        if not os.path.samestat(os.fstat(fd), folder.stat()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield
    finally:
        os.close(fd)


def _label(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix:{os.fsdecode(sock.getsockname())}"
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
