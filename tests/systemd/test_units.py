"""The units: as systemd reads them, and what they must leave to the daemon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from acu.config import load
from acu.config.sections import DaemonConfig
from acu.daemon import LAST_RESORT_S
from tests.acu.running import ROOT
from tests.systemd.fence import calls_of, settings
from tests.systemd.trees import INSTALL, installed, new_tree

UNITS = ROOT / "systemd"
SYSTEM = Path("/usr/lib/systemd/system")
NUMBERS = ("0", "1", "255")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="scripts/install is root's"),
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ACUs: one for the CPU, one for a GPU in a namespace of its own, and the last number; with systemd's own units."""
    root = new_tree(tmp_path_factory.mktemp("units"))
    for words in (("0", "--cpu"), ("1", "--gpu", "--namespace"), ("255", "--gpu")):
        done = installed(root, *words)
        assert done.returncode == 0, done.stderr
    shutil.copytree(SYSTEM, root / SYSTEM.relative_to("/"), symlinks=True)
    binaries = (
        "bin/sh",
        "opt/acu/.venv/bin/acu",
        *(f"opt/acu/scripts/{part}.sh" for part in ("netns", "gpu", "disk", "handover")),
    )
    for name in binaries:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).unlink(missing_ok=True)
        shutil.copy(shutil.which("true") or "true", root / name)
    return root


def analyzed(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", f"--root={root}", *words], capture_output=True, text=True, check=False
    )


def test_systemd_understands_every_line_of_every_unit(tree: Path) -> None:
    names = [f"acu@{n}.service" for n in NUMBERS] + [f"acu@{n}.socket" for n in NUMBERS]
    names += [*(f"acu-host@{n}.service" for n in NUMBERS), "acu.slice", "acu.target"]
    done = analyzed(tree, "verify", "--man=no", *names)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_what_systemd_does_not_understand_would_be_seen(tree: Path) -> None:
    unit = tree / "usr/local/lib/systemd/system/acu@.service"
    text = unit.read_text()
    try:
        unit.write_text(text.replace("WatchdogSec", "WatchdogSeconds"))
        assert "Unknown key 'WatchdogSeconds'" in analyzed(tree, "verify", "--man=no", "acu@0.service").stderr
    finally:
        unit.write_text(text)


def exposure(tree: Path, unit: str) -> str:
    done = analyzed(tree, "security", "--offline=yes", unit)
    overall = re.search(rf"Overall exposure level for {re.escape(unit)}: ([\d.]+)", done.stdout)
    assert overall is not None, done.stderr
    return overall[1]


def test_the_daemon_is_exposed_as_little_as_the_page_says(tree: Path) -> None:
    without, with_gpu, within = (exposure(tree, f"acu@{number}.service") for number in NUMBERS)
    assert all(float(each) < 2.0 for each in (without, with_gpu, within))
    assert f"{with_gpu} with a GPU, {without} without" in (ROOT / "docs" / "operations.md").read_text()


def test_roots_part_is_fenced_by_what_it_never_does(tree: Path) -> None:
    for number in NUMBERS:
        assert float(exposure(tree, f"acu-host@{number}.service")) < 7.0, "9.6 is that of no fence at all"
    unit = settings(UNITS / "acu-host@.service")
    assert unit["RestrictNamespaces"] == ["net mnt"]
    assert unit["SystemCallFilter"] == ["~@clock @cpu-emulation @debug @obsolete @raw-io @reboot @swap"]
    dropped = {name.removeprefix("~") for line in unit["CapabilityBoundingSet"] for name in line.split()}
    assert {"CAP_SYS_TIME", "CAP_SYS_BOOT", "CAP_SYSLOG", "CAP_MAC_ADMIN"} <= dropped
    needed = {"SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_MODULE", "MKNOD", "SYS_PTRACE", "KILL", "IPC_LOCK", "SETUID"}
    assert not {f"CAP_{name}" for name in needed} & dropped


def test_every_option_of_the_page_is_one_of_the_script() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    shown = subprocess.run([INSTALL, "--help"], capture_output=True, text=True, check=True).stdout
    used = {
        option for line in re.findall(r"scripts/install( [^\n`#]*)", page) for option in re.findall(r"--[a-z-]+", line)
    }
    assert used >= {"--namespace", "--uninstall", "--purge", "--root"}
    assert used <= {"--help", *re.findall(r"--[a-z-]+", shown)}


def test_systemd_understands_the_backup_of_the_page(tree: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for kind in ("service", "timer"):
        found = re.search(rf"    # (/etc/systemd/system/acu-backup@\.{kind})\n((?:    .*\n)+)", page)
        assert found is not None
        (tree / found[1][1:]).write_text(re.sub(r"^    ", "", found[2], flags=re.MULTILINE))
    (tree / "usr/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("true") or "true", tree / "usr/bin/find")
    done = analyzed(tree, "verify", "--man=no", "acu-backup@0.service", "acu-backup@0.timer")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_fence_leaves_what_binding_compiling_and_confining_need() -> None:
    unit = settings(UNITS / "acu@.service")
    first, second = unit["SystemCallFilter"]
    allowed = calls_of(first) - calls_of(second.removeprefix("~"))
    assert {
        "mbind",
        "set_mempolicy",
        "sched_setaffinity",
        "ioprio_set",
        "setrlimit",
        "prctl",
        "io_uring_setup",
    } <= allowed
    assert not {"mount", "setuid", "bpf", "init_module", "ptrace", "chown"} & allowed
    for setting in ("MemoryDenyWriteExecute", "PrivateDevices", "PrivateUsers", "PrivateNetwork", "ProcSubset"):
        assert setting not in unit
    gpu = settings(UNITS / "acu@.service", UNITS / "gpu.conf")
    assert gpu["DeviceAllow"] == ["char-nvidia* rw"]
    assert "PrivateDevices" not in gpu
    assert settings(UNITS / "acu@.service", UNITS / "cpu.conf")["PrivateDevices"] == ["yes"]


def test_the_daemon_is_given_more_time_than_it_takes_to_end() -> None:
    unit = settings(UNITS / "acu@.service")
    assert int(unit["TimeoutStopSec"][0]) > DaemonConfig().drain_timeout_s + LAST_RESORT_S
    assert (unit["Type"], unit["NotifyAccess"], unit["KillMode"]) == (["notify"], ["main"], ["mixed"])


def test_the_daemon_finds_the_places_that_the_unit_makes_for_it(tree: Path, tmp_path: Path) -> None:
    environ = {
        "HOME": "/var/lib/acu/3",
        "XDG_CACHE_HOME": "/var/cache/acu/3",
        "STATE_DIRECTORY": "/var/lib/acu/3",
        "CACHE_DIRECTORY": "/var/cache/acu:/var/cache/acu/3",
        "RUNTIME_DIRECTORY": "/run/acu-daemon/3",
        "ACU_NETWORK__API_KEYS_FILE": "/run/credentials/acu@3.service/api_keys",
    }
    (tmp_path / "empty.yaml").touch()
    config = load(environ, file=tmp_path / "empty.yaml").config
    written = load({"HOME": "/root"}, file=tree / "etc/acu/1.yaml").config  # as root's own commands read it
    assert config.data_plane.path == "/var/lib/acu/3/data"
    assert written.data_plane.path == "/var/lib/acu/1/data"
    assert config.gpu.model_cache_dir == written.gpu.model_cache_dir == "/var/cache/acu/models"
    assert config.network.unix_socket == "/run/acu-daemon/3/acu.sock"
    assert config.network.api_keys_file == "/run/credentials/acu@3.service/api_keys"
    unit = settings(UNITS / "acu@.service")
    assert (unit["StateDirectory"], unit["CacheDirectory"]) == (["acu/%i"], ["acu acu/%i"])
    assert unit["RuntimeDirectory"] == ["acu-daemon/%i"], (
        "/run/acu holds root's notes and the sockets, and must outlive it"
    )


def test_what_the_host_hands_over_is_read_when_the_daemon_starts_and_wins() -> None:
    host, daemon = settings(UNITS / "acu-host@.service"), settings(UNITS / "acu@.service", UNITS / "gpu.conf")
    assert host["RuntimeDirectory"] == ["acu-host/%i"]
    assert daemon["EnvironmentFile"] == ["-/run/acu-host/%i/environment"]
    for settings_of in (UNITS / "acu-host@.service", UNITS / "host-namespace.conf"):
        lines = settings(settings_of)["ExecStart"]
        names = [line.split()[0].rpartition("/")[2] for line in lines]
        assert names.index("gpu.sh") + 1 == names.index("handover.sh")
    assert "CUDA_MPS_PIPE_DIRECTORY" not in (UNITS / "namespace.conf").read_text()


def test_what_a_unit_needs_starts_before_it_and_stops_after_it() -> None:
    daemon, host, sock = ((UNITS / name).read_text() for name in ("acu@.service", "acu-host@.service", "acu@.socket"))
    after = re.findall(r"^After=(.*)$", daemon, re.MULTILINE)[0].split()
    assert {"acu@%i.socket", "acu-host@%i.service"} <= set(after), "and so it is stopped before them"
    assert "Requires=acu@%i.socket\n" in daemon, "a restart of the sockets restarts it, with the new ones"
    assert "Before=acu@%i.service\n" in host
    assert "StopWhenUnneeded=yes\n" in host
    for unit in (daemon, host, sock):
        assert "PartOf=acu.target\n" in unit, "systemctl stop acu.target"


def test_the_host_is_put_back_in_the_reverse_order_also_after_half_a_start() -> None:
    unit = settings(UNITS / "acu-host@.service", UNITS / "host-namespace.conf")
    assert unit["ExecStart"].pop(2) == "/opt/acu/scripts/handover.sh %i", "which changes nothing of the host"
    began = [line.split()[0].rpartition("/")[2] for line in unit["ExecStart"]]
    ended = [line.split()[0].rpartition("/")[2] for line in unit["ExecStopPost"]]
    assert began == ["netns.sh", "gpu.sh", "disk.sh"] == ended[::-1]
    assert "ExecStop" not in unit
    for line in (*unit["ExecStart"], *unit["ExecStopPost"]):
        assert re.search(r"\.sh (up|down) %i --config /etc/acu/%i\.yaml$", line)
    # A mount namespace would keep the network namespace's mount to itself.
    assert not [name for name in unit if name.startswith(("Protect", "Private", "Read", "Bind"))]
