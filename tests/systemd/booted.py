"""Booted: a box that systemd runs, within this one: its own processes, mounts, network, control groups and a copy of the files.

Its files are an overlay on this box's, in memory; its programs are this box's, and what is enabled here is not there. All of it
is gone with its process 1, which ends with the test, however that ends. The daemon is run by /usr/bin/python3, which it sees,
with the packages of the test's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acu.running import ROOT

SYSTEMD = Path("/lib/systemd/systemd")
PYTHON = "/usr/bin/python3"
BOOT = """
set -e
here=$1
mount --make-rprivate /
mount -t tmpfs -o size=512m tmpfs $here
mkdir $here/up $here/work $here/root
mount -t overlay overlay -o lowerdir=/,upperdir=$here/up,workdir=$here/work $here/root
cd $here/root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir -p dev/pts dev/shm etc/netns old
mount -t tmpfs tmpfs etc/netns
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
rm -rf etc/systemd/system etc/fstab
mkdir -p etc/systemd/system
printf '[Unit]\\nRequires=sysinit.target dbus.socket\\nAfter=sysinit.target\\n' >etc/systemd/system/box.target
for name in udevd udev-trigger modules-load sysctl binfmt hwdb-update firstboot; do
  ln -s /dev/null etc/systemd/system/systemd-$name.service
done
echo 0123456789abcdef0123456789abcdef >etc/machine-id
ip link set lo up
pivot_root . old
umount -l /old
mount --make-rshared /
exec env -i container=box PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=box.target </dev/null
"""
SETUP = """#!/bin/bash
set -e
cd "$(dirname "$0")/.."
mkdir -p .venv/bin
echo "engine cpu" >.venv/.acu-setup
printf '#!/bin/sh\\nPYTHONPATH=%s:{packages} exec {python} -m acu "$@"\\n' "$PWD" >.venv/bin/acu
chmod 755 .venv/bin/acu
ln -sf {python} .venv/bin/python
"""
CONFIG = """
models: {{large: {{model: scripted, engine: scripted}}, embed: {{model: scripted-embed, engine: scripted}}}}
gpu: {{model_cache_dir: /var/cache/acu/models}}
data_plane: {{path: /var/lib/acu/{number}/data, hot_layer_mem_mb: 64}}
daemon: {{drain_timeout_s: 5}}
"""


def unified() -> Path | None:
    """Where this box has control groups of version 2."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    return None


class Booted:
    """The box. `run` is a shell in it, as root."""

    def __init__(self, folder: Path) -> None:
        self.group = (unified() or Path("/none")) / f"booted-{os.getpid()}"
        self.group.mkdir()
        enter = 'echo $$ >"$0/cgroup.procs"; exec setpriv --pdeathsig KILL unshare --kill-child --mount --pid --fork --uts --ipc '
        self.log = folder / "log"
        (folder / "box").mkdir()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", enter + '--net --cgroup bash -c "$1" boot "$2"', self.group, BOOT, folder / "box"],
                stdout=log,
                stderr=log,
            )

    def first(self) -> int:
        """Its process 1, as this box numbers it; 0 while there is none."""
        with contextlib.suppress(OSError):
            pid = self.process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return int(children[0]) if children else 0
        return 0

    def booted(self, within_s: float = 30) -> bool:
        """Wait until systemd runs it; False where this machine does not let it."""
        end = time.monotonic() + within_s
        while time.monotonic() < end and self.process.poll() is None:
            state = self.run("systemctl is-system-running 2>&1 || true", check=False).strip() if self.first() else ""
            if state in {"running", "degraded"}:
                return True
            time.sleep(0.1)
        return False

    def run(self, steps: str, *, check: bool = True, given: bytes = b"") -> str:
        """What bash says to these steps, with `given` as their input."""
        path = "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        command = [
            "nsenter",
            "-t",
            str(self.first()),
            "-a",
            "env",
            "-i",
            path,
            "HOME=/root",
            "bash",
            "-c",
            f"cd /\n{steps}",
        ]
        done = subprocess.run(
            command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=120
        )
        said = done.stdout.decode()
        assert done.returncode == 0 or not check, f"{steps}: {said}"
        return said

    def end(self) -> None:
        """Kill it, and take its control groups away."""
        if first := self.first():
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, 9)
        self.process.kill()
        self.process.wait(30)
        for _ in range(100):
            for path in sorted((path for path in self.group.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()
            with contextlib.suppress(OSError):
                self.group.rmdir()
                return
            time.sleep(0.1)


def packed(parts: list[str]) -> bytes:
    """Of this checkout, which the box may not see: its /tmp is another."""
    tar = ["tar", "-c", "-C", str(ROOT), "--exclude=__pycache__", *parts]
    return subprocess.run(tar, stdout=subprocess.PIPE, check=True).stdout


@contextlib.contextmanager
def booted(folder: Path) -> Iterator[Booted]:
    """A box with a checkout of this one in /srv/checkout. Skips where it cannot be."""
    version = (
        subprocess.run([PYTHON, "-V"], capture_output=True, text=True, check=False).stdout
        if Path(PYTHON).exists()
        else ""
    )
    if os.geteuid() != 0 or unified() is None or not SYSTEMD.exists() or shutil.which("dbus-daemon") is None:
        pytest.skip("needs root, systemd, D-Bus and control groups of version 2")
    if not version.startswith("Python {}.{}.".format(*sys.version_info)):
        pytest.skip(f"{PYTHON} is another Python, and the daemon does not see this one")
    box = Booted(folder)
    try:
        if not box.booted():
            pytest.skip(f"systemd cannot be started here: {box.log.read_text()}")
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        if box.run(f"ls -d {packages} || true", check=False).strip() != packages:
            pytest.skip(f"the box has folders of its own over {packages}; try it with a checkout that is not in /tmp")
        parts = "acu agentflow dataplane scripts systemd requirements docs pyproject.toml README.md"
        box.run("mkdir -p /srv/checkout; tar -x -C /srv/checkout", given=packed(parts.split()))
        box.run(f"cat >/srv/checkout/scripts/setup <<'S'\n{SETUP.format(packages=packages, python=PYTHON)}\nS")
        yield box
    finally:
        box.end()
