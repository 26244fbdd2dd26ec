"""Fence: runs a command as the unit acu@.service would run it, on a box where systemd does not run.

    python fence.py UNIT NUMBER FOLDER COMMAND...

What of the unit is applied, by the kernel's own means: the user (a number without a name), no capabilities, no new privileges,
the filter of system calls (expanded by `systemd-analyze syscall-filter`), of address families and of namespaces, limits, the mask
of files, the folders and the environment with its specifiers, the credential, and a file system of its own (ProtectSystem,
ProtectHome, PrivateTmp, PrivateDevices, ProtectProc, ProtectKernelTunables). What is not: cgroups and their devices.

FOLDER holds `etc`, which is seen as /srv, with NUMBER.keys in it, and `state` and `cache`, which are seen as the unit's.
The process stays the same one, so that sockets and LISTEN_PID pass. All mounts are in a mount namespace, and gone with it.
Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

USER = 64_987
ROOT = Path(__file__).resolve().parents[2]
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x20000
NAMESPACES = 0x7E020080  # every CLONE_NEW*
RDONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18
NO_NEW_PRIVS, CAPBSET_DROP = 38, 24
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
Settings = dict[str, list[str]]


def settings(*files: Path) -> Settings:
    """The [Service] of a unit and its drop-ins: each setting's values in order, which an empty one begins anew."""
    found: Settings = {}
    for file in files:
        section = ""
        for line in file.read_text().splitlines():
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line and line[0] not in "#;":
                name, value = line.split("=", 1)
                found[name] = [*found.get(name, []), value] if value else []
    return found


def specified(text: str, number: str) -> str:
    """With the specifiers that the unit uses."""
    places = {"%i": number, "%S": "/var/lib", "%C": "/var/cache", "%t": "/run"}
    text = text.replace("%d", f"/run/credentials/acu@{number}.service")
    for specifier, value in places.items():
        text = text.replace(specifier, value)
    return text


def check(result: int, what: str) -> None:
    """Raise OSError where a call of the C library failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    result = LIBC.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None)
    check(result, f"mount {source} at {target}")


def bind(source: str, target: str) -> None:
    """Let a folder or file be seen at another place, which is made."""
    place = Path(target)
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount(source, target, flags=BIND | REC)


def own_file_system(unit: Settings, number: str, folder: Path) -> None:
    """What the unit lets the daemon see, with FOLDER's parts at their places."""
    check(LIBC.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", flags=REC | PRIVATE)
    hidden = ("/root", "/home", "/var/lib", "/var/cache", "/run", "/tmp")
    kept = {
        str(path) for path in (Path(sys.base_prefix), Path(sys.prefix), ROOT) if any(map(path.is_relative_to, hidden))
    }
    sources = {"/srv": folder / "etc", f"/var/lib/acu/{number}": folder / "state", "/var/cache/acu": folder / "cache"}
    opened = {place: os.open(path, os.O_PATH) for place, path in sources.items()}
    opened |= {path: os.open(path, os.O_PATH) for path in sorted(kept)}
    for place in hidden:
        mount("tmpfs", place, "tmpfs", 0, "mode=1777" if place == "/tmp" else "mode=755")
    for place, descriptor in opened.items():
        bind(f"/proc/self/fd/{descriptor}", place)
        os.close(descriptor)
    if unit.get("PrivateDevices") == ["yes"]:
        own_devices()
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split()[1].encode().decode("unicode_escape")
        if place in kept or (place not in sources and not place.startswith(("/proc", "/dev", "/tmp", "/run"))):
            with contextlib.suppress(OSError):  # one that is hidden by another
                mount("none", place, flags=REMOUNT | BIND | RDONLY)
    mount("none", "/srv", flags=REMOUNT | BIND | RDONLY)
    mount("proc", "/proc", "proc", 0, "hidepid=invisible")
    bind("/proc/sys", "/proc/sys")
    mount("none", "/proc/sys", flags=REMOUNT | BIND | RDONLY)
    for kind, folders in (("State", "/var/lib"), ("Cache", "/var/cache"), ("Runtime", "/run")):
        for name in unit[f"{kind}Directory"][0].split():
            place = Path(folders, specified(name, number))
            place.mkdir(parents=True, exist_ok=True)
            os.chown(place, USER, USER)
    credentials = Path(specified("%d", number))
    credentials.mkdir(parents=True)
    for line in unit["LoadCredential"]:
        name, source = specified(line, number).split(":")
        shutil.copy(Path("/srv") / Path(source).name, credentials / name)
        os.chown(credentials / name, USER, USER)
        (credentials / name).chmod(0o400)
    os.chown(credentials, USER, USER)


def own_devices() -> None:
    """A /dev with what every program may use."""
    opened = {name: os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    mount("tmpfs", "/dev", "tmpfs", 0, "mode=755")
    for name, descriptor in opened.items():
        bind(f"/proc/self/fd/{descriptor}", f"/dev/{name}")
        os.close(descriptor)
    Path("/dev/shm").mkdir()
    mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777")
    Path("/dev/fd").symlink_to("/proc/self/fd")


def calls_of(group: str) -> set[str]:
    """The system calls of one of systemd's groups."""
    shown = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", group], capture_output=True, text=True, check=True
    )
    words = [line.strip() for line in shown.stdout.splitlines()[1:] if line.strip() and "#" not in line]
    return set().union(*(calls_of(word) if word.startswith("@") else {word} for word in words))


class Comparison(ctypes.Structure):
    """libseccomp's scmp_arg_cmp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


EQUAL, AT_LEAST, MASKED = 4, 5, 7
ALLOW = 0x7FFF0000


class Filters:
    """Filters of system calls, by libseccomp, which systemd uses too."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p

    def load(self, default: int, rules: list[tuple[int, str, list[Comparison]]]) -> None:
        """One filter: what holds for everything else, and (action, call, conditions that must all hold)."""
        library = self._library
        context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
        for action, name, conditions in rules:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:
                continue  # none of this machine's
            array = (Comparison * len(conditions))(*conditions)
            done = library.seccomp_rule_add_array(
                context, ctypes.c_uint32(action), number, ctypes.c_uint(len(conditions)), array
            )
            assert done == 0, f"{name}: {os.strerror(-done)}"
        done = library.seccomp_load(context)
        assert done == 0, os.strerror(-done)


def refuse(number: int) -> int:
    """The action that lets a call fail with this error."""
    return 0x00050000 | number


def filter_calls(unit: Settings, allowed: set[str]) -> None:
    """SystemCallFilter, RestrictAddressFamilies and RestrictNamespaces."""
    filters = Filters()
    if unit.get("RestrictNamespaces") == ["yes"]:
        rules = [
            (refuse(errno.EPERM), "clone", [Comparison(0, MASKED, 1 << bit, 1 << bit)])
            for bit in range(32)
            if NAMESPACES >> bit & 1
        ]
        rules += [(refuse(errno.EPERM), "unshare", []), (refuse(errno.EPERM), "setns", [])]
        filters.load(ALLOW, [*rules, (refuse(errno.ENOSYS), "clone3", [])])
    families = {int(getattr(socket, name)) for name in unit["RestrictAddressFamilies"][0].split()}
    others = [[Comparison(0, EQUAL, family, 0)] for family in range(64) if family not in families]
    no_family = refuse(errno.EAFNOSUPPORT)
    filters.load(ALLOW, [(no_family, "socket", each) for each in [*others, [Comparison(0, AT_LEAST, 64, 0)]]])
    filters.load(refuse(errno.EPERM), [(ALLOW, name, []) for name in allowed])


def main() -> None:
    """Become the command, fenced in."""
    unit_file, number, folder, *command = sys.argv[1:]
    unit = settings(*map(Path, unit_file.split(":")))
    first, *rest = unit["SystemCallFilter"]
    allowed = calls_of("@default").union(*map(calls_of, first.split()))
    for line in rest:
        assert line.startswith("~")
        allowed -= set().union(*map(calls_of, line[1:].split()))
    assert unit["SystemCallErrorNumber"] == ["EPERM"]
    own_file_system(unit, number, Path(folder))
    limits = {"NOFILE": resource.RLIMIT_NOFILE, "MEMLOCK": resource.RLIMIT_MEMLOCK, "CORE": resource.RLIMIT_CORE}
    for name, which in limits.items():
        value = unit[f"Limit{name}"][0]
        amount = resource.RLIM_INFINITY if value == "infinity" else int(value)
        with contextlib.suppress(ValueError):  # more than this machine has
            resource.setrlimit(which, (amount, amount))
    os.umask(int(unit["UMask"][0], 8))
    assert unit["CapabilityBoundingSet"] == []
    for capability in range(64):
        if LIBC.prctl(CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    os.chdir(specified(unit["WorkingDirectory"][0], number))
    check(LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    environ = {name: value for name, value in os.environ.items() if name != "HOME"}
    for line in unit["Environment"]:
        environ |= dict(word.split("=", 1) for word in specified(line, number).split())
    environ["STATE_DIRECTORY"] = f"/var/lib/acu/{number}"
    environ["CACHE_DIRECTORY"] = f"/var/cache/acu:/var/cache/acu/{number}"
    environ["RUNTIME_DIRECTORY"] = f"/run/{specified(unit['RuntimeDirectory'][0], number)}"
    filter_calls(unit, allowed)
    os.execve(command[0], command, environ)


if __name__ == "__main__":
    main()
