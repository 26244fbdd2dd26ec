"""A machine within this one, for the scripts that build ACUs: network, mounts (/run, /etc) and processes of its own.

What a test makes in it goes with it, however the test ends: the first process of its process namespace reads its standard
input, and when that closes, the kernel ends all others and frees the rest. Control groups are not its own: those of the
numbers that the box was made with are removed at the end. The accelerator and the disks are the machine's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
CGROUPS = Path("/sys/fs/cgroup")
# The machine's namespaces, and mounts of other tests, would go from this list of mounts whenever somebody outside removes one.
# /sys shows the network that its mount was made in, and so is made anew; the control groups below it stay the machine's.
SETUP = """
set -e
umount --recursive --lazy /run/netns 2>/dev/null || true
awk '$2 ~ "^/tmp/" {print $2}' /proc/mounts | xargs -r umount --lazy 2>/dev/null || true
mount -t tmpfs tmpfs /run
mkdir -p /run/box/cgroup
cp -a /etc /run/box/etc
mount --bind /run/box/etc /etc
mount --rbind /sys/fs/cgroup /run/box/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/box/cgroup /sys/fs/cgroup
rm -rf /etc/netns /etc/acu
echo 'nameserver 192.0.2.53' > /run/box/resolv.conf
mount --bind /run/box/resolv.conf /etc/resolv.conf
ip link set lo up
sysctl -q -w net.ipv4.ip_forward=0
echo ready
exec env --ignore-signal=CHLD cat >/dev/null
"""
needs_a_box = pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.call(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"], stderr=subprocess.DEVNULL
    )
    != 0
    or not all(map(shutil.which, ("ip", "nft", "ss"))),
    reason="needs root, and ip, nft and ss, to make network namespaces",
)


class Box:
    """Runs commands inside. `environment` is what they have besides PATH and HOME."""

    def __init__(self, pid: int, numbers: Sequence[int]) -> None:
        self._enter = ["nsenter", "--target", str(pid), "--net", "--mount", "--pid", "--"]
        self._numbers = numbers
        self.environment: dict[str, str] = {"TMPDIR": "/run/box"}

    def start(self, *command: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Begin a command; standard output is a pipe, standard error goes there too."""
        return subprocess.Popen(
            [*self._enter, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env={
                "PATH": os.environ["PATH"],
                "HOME": os.environ.get("HOME", "/root"),
                **self.environment,
                **(env or {}),
            },
            start_new_session=True,
        )

    def tries(self, *command: str | Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """(exit code, what it said)."""
        with self.start(*command, env=env) as process:
            said, _ = process.communicate(timeout=60)
            return process.returncode, said

    def run(self, *command: str | Path, env: Mapping[str, str] | None = None) -> str:
        """What a command said that must succeed."""
        code, said = self.tries(*command, env=env)
        assert code == 0, f"{command}: {code}\n{said}"
        return said

    def snapshot(self) -> dict[str, list[str]]:
        """All that an ACU could leave behind, in lines that are the same where nothing is."""
        script = """
            shown() { echo "== $1"; }
            shown namespaces; ip netns list
            shown links; ip -o link
            shown addresses; ip -4 -o address
            shown routes; ip rule; ip -4 route show table all
            shown nft; nft list ruleset
            shown sysctls; (cd /proc/sys/net && grep -r . ipv4/ip_forward ipv4/conf/all ipv4/conf/default core/somaxconn)
            shown files; find /etc/netns /run /etc/acu -not -path '/run/box*' 2>/dev/null
            shown mounts; cat /proc/mounts
            shown processes; ps -eo comm=,args= | grep -vE '^(ps|bash|grep) ' || true
        """
        said = self.run("bash", "-c", script)
        parts = dict(part.partition("\n")[::2] for part in said.removeprefix("== ").split("\n== "))
        shot = {name: sorted(text.splitlines()) for name, text in parts.items()}
        shot["groups"] = sorted(str(path) for number in self._numbers for path in groups(number))
        return shot


def groups(number: int) -> list[Path]:
    """The control groups of an ACU, in all hierarchies."""
    return [*CGROUPS.glob(f"acu{number}"), *CGROUPS.glob(f"*/acu{number}")]


@contextlib.contextmanager
def made_box(*numbers: int) -> Iterator[Box]:
    """A box, in which the ACUs with these numbers may be."""
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", SETUP]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "ready\n"
            children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text()
            yield Box(int(children), numbers)
        finally:
            if holder.stdin:
                holder.stdin.close()
            holder.wait(timeout=30)
            for number in numbers:
                remove_groups(number)


def remove_groups(number: int) -> None:
    """What a test that failed has left. The processes inside are gone, or about to be."""
    for group in groups(number):
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def without(folder: Path, *names: str) -> str:
    """A PATH that lacks some commands."""
    for entry in reversed(os.environ["PATH"].split(":")):
        for command in Path(entry).glob("*"):
            if command.name not in names:
                link = folder / command.name
                link.unlink(missing_ok=True)
                link.symlink_to(command)
    return str(folder)


class Saboteur:
    """A folder, first on PATH, of commands of which the k-th call that changes something fails (or kills its caller's group)."""

    COMMANDS = ("ip", "nft", "tee", "mkdir", "sysctl", "install", "touch", "rm", "rmdir", "umount", "setsid")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in self.COMMANDS:
            wrapper = folder / "bin" / name
            wrapper.write_text(
                "#!/bin/bash\n"
                f"PATH=${{PATH#{folder}/bin:}}\n"
                f'case "$*" in *show* | *list* | *netns\\ pids* | -n\\ net.*) exec {name} "$@" ;; esac\n'
                f'echo "{name} $*" >>{folder}/calls\n'
                f"mapfile -t calls <{folder}/calls\n"
                f"fails=$(<{folder}/fails)\n"
                f'if [[ ${{#calls[@]}} == "$fails" || "{name} $*" == "$fails"* ]]; then echo spoilt >&2; . {folder}/how; fi\n'
                f'exec {name} "$@"\n'
            )
            wrapper.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        """For the command that is to be disturbed."""
        return {"PATH": f"{self._folder}/bin:{os.environ['PATH']}"}

    def spoil(self, call: int | str, how: str = "exit 99") -> None:
        """Let call number `call` (1 is the first) go wrong, or those that begin so; `how` is what bash does then."""
        (self._folder / "fails").write_text(f"{call}\n")
        (self._folder / "how").write_text(f"{how}\n")
        (self._folder / "calls").write_text("")

    def calls(self) -> list[str]:
        """What was called since."""
        return re.findall(r".+", (self._folder / "calls").read_text())
