"""scripts/install on a box where systemd runs: a mount namespace with folders of its own, and a stand-in for `systemctl`.

Accounts, folders of tmpfiles, links of enabled units, the change of user and everything else are real; only whoever would start
services is played. `scripts/setup` and `acu` of the checkout are stubs: their own tests are elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.systemd.trees import small_checkout

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root"),
    pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="systemd is not installed"),
]

SYSTEMCTL = """#!/bin/bash
box={box}
[[ $1 != --quiet ]] || shift
case $1 in
  list-units)
    while read -r unit; do
      for each; do [[ $each != acu* || $unit != $each ]] || echo "$unit"; done
    done <$box/running
    exit ;;
  enable | disable) echo "$*" >>$box/calls; SYSTEMD_OFFLINE=1 exec {systemctl} --quiet "$@" ;;
  start)
    echo "$*" >>$box/calls
    cat /opt/acu/acu/__init__.py >>$box/started
    if [[ -e $box/refuse ]]; then rm $box/refuse; echo "Job for acu@0.service failed." >&2; exit 1; fi
    for each in "${{@:2}}"; do grep -qxF "$each" $box/running || echo "$each" >>$box/running; done ;;
  stop)
    echo "$*" >>$box/calls
    echo /etc/systemd/system/acu-host@*.service.d/*.conf >$box/there
    grep -vxF "$(printf '%s\\n' "${{@:2}}")" $box/running >$box/runs; mv $box/runs $box/running ;;
  *) echo "$*" >>$box/calls ;;
esac
"""
SETUP = """#!/bin/bash
set -e
cd "$(dirname "$0")/.."
mkdir -p .venv/bin
echo "engine ${1#--}" >.venv/.acu-setup
cp scripts/acu-stub .venv/bin/acu
ln -sf "$(command -v python3)" .venv/bin/python
"""
ACU = """#!/bin/bash
case "$*" in
  "config get numa.node "*) echo 0 ;;
  "config get numa.cpus "*) echo 1 ;;
  "config get numa.memory_mb "*) echo 16384 ;;
  "config get network.namespace "*) echo desk ;;
  *" config show --json")
    echo '{"config": {"models": {"a": {"model": "big", "engine": null}, "b": {"model": "/a/b", "engine": null}}}}' ;;
  *" models pull "*)
    echo "$(id -un) ${*: -1} $CACHE_DIRECTORY" >>"$HOME/pulled"
    [[ ! -e /run/no-network ]] || { echo "acu: no network" >&2; exit 1; } ;;
esac
"""
BOX = """
set -e
box=$1 checkout=$2
mount --make-rprivate /
cp -a /etc $box/etc
mount --bind $box/etc /etc
for folder in /opt /usr/local/lib /var/lib /var/cache /run; do mount -t tmpfs -o mode=755 tmpfs $folder; done
mkdir -p /run/systemd/system
PATH=$box/tools:$PATH
all() {
  find /etc /opt /usr/local/lib /var/lib /var/cache /run -regextype egrep \
    -not -regex '/etc/(passwd|group|shadow|gshadow|subuid|subgid|[.]pwd[.]lock)-?' -printf '%p %m %l\\n' | sort
}
go() { code=0; $checkout/scripts/install --python /usr/bin/python3 "$@" >$box/out 2>$box/err </dev/null || code=$?; }
eval "$3"
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """Folder with the tools, and with what came of them; beside it the checkout."""
    checkout = small_checkout(tmp_path)
    (checkout / "scripts" / "setup").write_text(SETUP)
    (checkout / "scripts" / "acu-stub").write_text(ACU)
    (checkout / "scripts" / "acu-stub").chmod(0o755)
    folder = tmp_path / "box"
    (folder / "tools").mkdir(parents=True)
    folder.chmod(0o755)
    for name in ("running", "calls"):
        (folder / name).touch()
    systemctl = SYSTEMCTL.format(box=folder, systemctl=shutil.which("systemctl"))
    for name, text in (("systemctl", systemctl), ("journalctl", "#!/bin/sh\necho 'the end of the journal'\n")):
        (folder / "tools" / name).write_text(text)
        (folder / "tools" / name).chmod(0o755)
    return folder


def story(box: Path, steps: str) -> list[str]:
    """Run the steps, in bash with `set -e`, on a box of their own; returns the calls of systemctl."""
    command = ["unshare", "--mount", "bash", "-c", BOX, "bash", str(box), str(box.parent / "checkout"), steps]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{(box / 'out').read_text()}{(box / 'err').read_text()}"
    return (box / "calls").read_text().splitlines()


def test_a_box_gets_an_acu_that_runs_and_is_as_before_when_it_is_purged(box: Path) -> None:
    calls = story(
        box,
        """
        all >$box/before
        cp /etc/passwd /etc/group $box
        go --gpu
        ((code == 0))
        grep -q '^acu:x:' /etc/passwd
        cat /var/lib/acu/0/pulled >$box/pulled
        cat /etc/systemd/system/acu@0.service.d/binding.conf >$box/binding
        ls -ld /etc/acu/0.keys /var/lib/acu/0 /var/cache/acu >$box/listed
        cp $box/out $box/first
        go --gpu --namespace
        cat /etc/systemd/system/acu@0.service.d/namespace.conf >$box/namespace
        go --gpu --namespace
        ((code == 0))
        go --uninstall --purge
        ((code == 0))
        all | diff $box/before -
        cmp /etc/passwd $box/passwd
        cmp /etc/group $box/group
        """,
    )
    assert "API key (shown this once, and kept nowhere): sk-acu-" in (box / "first").read_text()
    assert (box / "pulled").read_text() == "acu big /var/cache/acu\n"
    first = Path("/sys/devices/system/node/node0/cpulist").read_text().replace(",", "-").split("-")[0]
    binding = (box / "binding").read_text().splitlines()
    assert {"[Service]", f"AllowedCPUs={first}", "MemoryMax=16384M"} <= set(binding)
    assert (box / "namespace").read_text().splitlines()[-2:] == [
        "NetworkNamespacePath=/run/netns/desk",
        "BindReadOnlyPaths=-/etc/netns/desk/resolv.conf:/etc/resolv.conf",
    ]
    rights = [line.split()[:4] for line in (box / "listed").read_text().splitlines()]
    assert [(right, owner) for right, _, owner, _ in rights] == [
        ("-rw-------", "root"),
        ("drwxr-x---", "acu"),
        ("drwx------", "acu"),
    ]
    both = "acu@0.socket acu@0.service"
    begin = ["daemon-reload", f"enable acu.target {both}", f"start {both}"]
    other = [*begin[:2], f"stop {both}", f"start {both} {both}"]
    end = [
        f"stop {both} acu-host@0.service acu.slice acu.target",
        f"disable {both}",
        "disable acu.target",
        "daemon-reload",
        "reset-failed acu@0.* acu-host@0.*",
    ]
    assert calls == [*begin, *other, *begin, *end], "what has not changed runs on"


def test_an_upgrade_that_does_not_start_gives_the_former_back_and_starts_it(box: Path) -> None:
    calls = story(
        box,
        """
        go --cpu
        ((code == 0))
        all >$box/before
        echo 'version = 2' >$checkout/acu/__init__.py
        sed -i 's/CPUWeight=200/CPUWeight=100/' $checkout/systemd/acu.slice
        : >$box/calls
        touch $box/refuse
        go --cpu
        ((code == 1))
        all | diff $box/before -
        cat /opt/acu/acu/__init__.py /usr/local/lib/systemd/system/acu.slice >$box/former
        """,
    )
    former = (box / "former").read_text()
    assert "version = 1" in former
    assert "CPUWeight=200" in former
    errors = (box / "err").read_text()
    assert "the end of the journal" in errors
    assert "the daemon does not start; what it says stands above." in errors
    assert calls[0] == "stop acu@0.socket acu@0.service"
    both = "acu@0.socket acu@0.service"
    assert calls[-4:] == [f"stop {both}", "reset-failed acu@* acu-host@*", "daemon-reload", f"start {both}"]
    started = (box / "started").read_text().split("\n")[:-1]
    assert started == ["version = 1", "version = 2", "version = 1"], "the former one is there when it starts"


def test_another_acu_and_another_option_disturb_none_that_runs(box: Path) -> None:
    calls = story(
        box,
        """
        go
        go 1
        go 1 --namespace
        ((code == 0))
        ls /etc/systemd/system/acu-host@1.service.d/namespace.conf
        go 1
        grep namespace.conf $box/there
        echo >>$checkout/systemd/acu.slice
        go 1
        ((code == 0))
        """,
    )
    first, second = ("acu@0.socket acu@0.service", "acu@1.socket acu@1.service")
    assert [call for call in calls if call.startswith("stop")] == [
        *[f"stop {second}"] * 2,
        f"stop {first} {second}",
    ]
    assert [call for call in calls if call.startswith("start")][-1] == (
        f"start acu@1.socket acu@1.service {first} {second}"
    )


def test_a_first_one_that_does_not_start_leaves_nothing_that_runs_or_lies_about(box: Path) -> None:
    calls = story(
        box,
        """
        all >$box/before
        touch $box/refuse
        go --cpu
        ((code == 1))
        all | grep -v /var/lib/acu | diff $box/before -
        """,
    )
    assert "the daemon does not start; what it says stands above." in (box / "err").read_text()
    stops = "stop acu@0.socket acu@0.service acu-host@0.service acu.slice"
    assert calls[-3:] == [stops, "reset-failed acu@* acu-host@*", "daemon-reload"], "while the units are there"


def test_where_models_cannot_be_had_all_else_is_there_and_nothing_is_started(box: Path) -> None:
    calls = story(
        box,
        """
        touch /run/no-network
        go
        ((code == 1))
        [[ -x /opt/acu/.venv/bin/acu && -f /etc/acu/0.keys ]]
        """,
    )
    assert "API key" in (box / "out").read_text()
    assert "the models are not there, and so nothing is started" in (box / "err").read_text()
    assert not [call for call in calls if call.startswith("start")]
