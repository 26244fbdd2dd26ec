"""scripts/cgroup.sh: for real where root finds cgroup v1 and no systemd; on v2 the commands that it would run."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acu.hardware.recorded import machine_root
from tests.scripts import nvidia
from tests.scripts.parts import SCRIPTS, fields, part, tree

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpuset", "memory", "devices", "pids", "blkio")
NUMBERS = (210, 211)
CPUS = sorted(os.sched_getaffinity(0))

real = pytest.mark.skipif(
    os.geteuid() != 0
    or Path("/run/systemd/system").exists()
    or not all((ROOT / controller / "cgroup.procs").exists() for controller in CONTROLLERS),
    reason="needs root, cgroup v1 and no systemd",
)
Group = Callable[..., subprocess.CompletedProcess[str]]


def folders(number: int) -> list[Path]:
    return list(ROOT.glob(f"*/acu{number}"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def group(run_dir: Path, tmp_path: Path) -> Iterator[Group]:
    """Calls cgroup.sh as acu-up does; whatever a test leaves is removed."""

    def call(
        verb: str, number: int, config: str = "", *options: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "acu.yaml"
        file.write_text(config)
        read = environment | {"ACU_FIELDS": fields(config)}
        return part("cgroup.sh", verb, number, "--config", file, *options, run_dir=run_dir, environment=read)

    yield call
    for number in NUMBERS:
        for folder in folders(number):
            for below in sorted(folder.rglob("*/"), reverse=True):
                below.rmdir()
            folder.rmdir()


def inside(number: int, code: str) -> subprocess.CompletedProcess[str]:
    """Run a line of Python in the group."""
    return subprocess.run(
        [SCRIPTS / "cgroup.sh", "exec", str(number), sys.executable, "-ISc", code],
        capture_output=True,
        text=True,
        check=False,
    )


@real
def test_a_command_inside_has_the_cpus_memory_processes_and_devices_of_its_acu(group: Group) -> None:
    config = "numa: {cpus: 1, memory_mb: 64}\n"
    up = group("up", 210, config, "--slice", "0", "--pids", "3")
    assert up.returncode == 0, up.stderr
    assert "cgroup v1" in up.stderr or "cgroup hybrid" in up.stderr

    where = inside(210, "import os; print(os.sched_getaffinity(0)); print(open('/proc/self/cgroup').read())")
    assert where.stdout.startswith(f"{{{CPUS[0]}}}\n")
    assert all(f":{controller}:/acu210\n" in where.stdout for controller in CONTROLLERS)
    assert inside(210, "b = bytearray(256 << 20)").returncode == -9  # the kernel ends what takes more than its memory
    threads = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(0.1,)).start()"
    assert "can't start new thread" in inside(210, threads).stderr
    opens = "for name in ('null', 'zero', 'urandom', 'kmsg'): open(f'/dev/{name}', 'rb').close()"
    denied = inside(210, opens).stderr
    assert "Operation not permitted: '/dev/kmsg'" in denied

    assert group("status", 210, config, "--slice", "0", "--pids", "3").returncode == 0
    again = group("up", 210, config, "--slice", "0", "--pids", "3", "--dry-run")
    assert (again.returncode, again.stdout) == (0, "")
    assert group("down", 210).returncode == 0
    assert folders(210) == []


@real
def test_a_group_with_processes_inside_stays_and_they_are_named(group: Group) -> None:
    assert group("up", 210).returncode == 0
    with subprocess.Popen([SCRIPTS / "cgroup.sh", "exec", "210", "sleep", "600"]) as sleeper:
        try:
            procs = ROOT / "pids/acu210/cgroup.procs"
            while (
                not procs.read_text().split() or b"sleep" not in Path(f"/proc/{sleeper.pid}/cmdline").read_bytes()[:6]
            ):
                assert sleeper.poll() is None
            refused = group("down", 210)
            assert refused.returncode == 1
            assert f"{sleeper.pid} sleep 600" in refused.stderr
            assert len(folders(210)) == len(CONTROLLERS)
        finally:
            sleeper.kill()
    (ROOT / "memory/acu210/workers").mkdir()  # of the daemon's own
    (ROOT / "memory/acu210/workers/0").mkdir()
    assert group("down", 210).returncode == 0
    assert folders(210) == []


@real
def test_two_acus_have_a_cpu_each_and_the_end_of_one_is_nothing_to_the_other(group: Group) -> None:
    if len(CPUS) < 2:
        pytest.skip("needs two CPUs")
    config = "numa: {cpus: 1}\n"
    for part_of, number in enumerate(NUMBERS):
        assert group("up", number, config, "--slice", str(part_of)).returncode == 0
    where = [(ROOT / f"cpuset/acu{number}/cpuset.cpus").read_text().strip() for number in NUMBERS]
    assert where[0] != where[1]
    assert group("down", 210).returncode == 0
    assert inside(211, "print(1)").stdout == "1\n"
    assert group("down", 211).returncode == 0


@real
def test_a_group_that_somebody_else_made_is_refused_and_stays(group: Group, run_dir: Path) -> None:
    theirs = ROOT / "pids/acu210"
    theirs.mkdir()
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            (theirs / "cgroup.procs").write_text(str(sleeper.pid))
            refused = group("up", 210)
            assert refused.returncode == 1
            assert refused.stderr.splitlines()[-1] == (
                f"error: there is a control group acu210 that is not this ACU's ({theirs}, processes inside: {sleeper.pid})."
                f" Remove it when nothing needs it: rmdir {theirs}"
            )
            assert group("status", 210).returncode == 1
            assert group("down", 210).returncode == 0
            assert folders(210) == [theirs]
            assert (theirs / "cgroup.procs").read_text().split() == [str(sleeper.pid)]
        finally:
            sleeper.kill()
    assert group("down", 210).returncode == 0
    assert folders(210) == [theirs]
    assert not run_dir.exists()


@real
def test_more_acus_than_cpus_are_refused_before_anything_is_made(group: Group) -> None:
    refused = group("up", 210, "numa: {cpus: 1}\n")
    assert refused.returncode == 1
    assert "numa.cpus: 1 for each ACU are too many for acu210" in refused.stderr
    assert folders(210) == []


@real
def test_more_memory_than_the_shell_can_count_in_bytes_is_refused_by_the_configuration(
    run_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "acu.yaml"
    config.write_text("numa: {memory_mb: 17592186044416}\n")  # 2**64 bytes, which bash takes for 0
    refused = part("cgroup.sh", "up", 210, "--config", config, run_dir=run_dir)
    assert refused.returncode != 0
    assert "numa.memory_mb: 17592186044416" in refused.stderr
    assert not any(folder.exists() for folder in folders(210))


def test_reading_from_the_disk_of_the_models_can_be_limited_and_freed(group: Group, tmp_path: Path) -> None:
    disks = subprocess.run(
        ["findmnt", "-nro", "MAJ:MIN", "-T", tmp_path], capture_output=True, text=True, check=True
    ).stdout
    if disks.startswith("0:"):
        pytest.skip("the temporary folder is on no disk")
    config = f"gpu: {{model_cache_dir: {tmp_path}}}\n"
    limits = [ROOT / f"blkio/acu210/blkio.throttle.{way}_bps_device" for way in ("read", "write")]
    assert group("up", 210, config, "--io-mbps", "200").returncode == 0
    assert [limit.read_text().split()[1] for limit in limits] == ["200000000"] * 2
    assert group("up", 210, config).returncode == 0  # what is not asked for stays
    assert [limit.read_text().split()[1] for limit in limits] == ["200000000"] * 2
    assert group("up", 210, config, "--io-mbps", "0").returncode == 0
    assert [limit.read_text() for limit in limits] == ["", ""]
    assert group("down", 210).returncode == 0


@real
def test_a_limit_that_cannot_be_set_is_the_reason_and_nothing_stays(group: Group, tmp_path: Path) -> None:
    broken = tmp_path / "bin/tee"
    broken.parent.mkdir()
    broken.write_text('#!/bin/sh\ncase $1 in *pids.max) echo "tee: no" >&2; exit 1;; esac\nexec /usr/bin/tee "$@"\n')
    broken.chmod(0o755)
    up = group("up", 210, PATH=f"{broken.parent}:{os.environ['PATH']}")
    assert up.returncode != 0
    assert up.stderr.splitlines()[-1].startswith("error: echo 8192 > /sys/fs/cgroup/pids/acu210/pids.max: tee: no")
    assert folders(210) == []


@real
def test_a_command_is_not_started_outside_a_group_that_is_not_there(group: Group) -> None:
    refused = inside(210, "print(1)")
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "scripts/cgroup.sh up 210" in refused.stderr


# On v2, by the commands for a recorded machine


@pytest.fixture
def v2(tmp_path: Path) -> dict[str, str]:
    """The environment in which the box is the recorded one with an A10G, on cgroup v2."""
    root = tree(
        tmp_path / "cgroup",
        {
            "cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
            "cgroup.subtree_control": "memory pids\n",
            "cgroup.procs": "",
            "cpuset.cpus.effective": "0-31\n",
            "cpuset.mems.effective": "0-1\n",
            "io.cost.qos": "",
        },
    )
    proc = tree(tmp_path / "proc", {"devices": "Character devices:\n195 nvidia\n"})
    (tmp_path / "state.json").write_text(
        '{"gpus": [{"name": "A10G", "uuid": "", "mode": "", "bus": "00000000:17:00.0"}]}'
    )
    programs = nvidia.install(tmp_path / "programs", "nvidia-smi")
    return {
        "ACU_CGROUP_ROOT": str(root),
        "ACU_SYS_ROOT": str(machine_root("a10g") / "sys"),
        "ACU_PROC_ROOT": str(proc),
        "NVIDIA_STATE": str(tmp_path / "state.json"),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }


def test_on_v2_the_group_gets_its_limits_by_the_files_of_v2(group: Group, v2: dict[str, str], run_dir: Path) -> None:
    config = "numa: {cpus: 2, memory_mb: 16384}\n"
    up = group("up", 1, config, "--dry-run", **v2)
    assert up.returncode == 0, up.stderr
    assert "acu1: cgroup v2" in up.stderr
    assert "devices are not limited" in up.stderr
    root, host = v2["ACU_CGROUP_ROOT"], f"{run_dir}/host"
    turned_on = [
        line
        for controller in ("cpuset", "io")
        for line in (
            f"mkdir -p {host}/controller.{controller}",
            f"touch {host}/controller.{controller}/by-1",
            f"echo off > {host}/controller.{controller}/was",
            f"echo +{controller} > {root}/cgroup.subtree_control",
        )
    ]
    assert up.stdout.splitlines() == [
        *turned_on,
        f"mkdir -p {run_dir}/1.was",
        f"echo acu1 > {run_dir}/1.was/group",
        f"mkdir {root}/acu1",
        f"echo 4,6 > {root}/acu1/cpuset.cpus",
        f"echo 0 > {root}/acu1/cpuset.mems",
        f"echo {16 << 30} > {root}/acu1/memory.max",
        f"echo 8192 > {root}/acu1/pids.max",
        f"echo 500 > {root}/acu1/io.weight",
    ]
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (("nvme7n1", "[none] mq-deadline bfq", ""), "nvme7n1 (scheduler none)"),
        (("nvme7n1", "none [bfq]", ""), "nvme7n1 (scheduler none)"),  # which it will have
        (("nvme7n1", "[none]", "MAJ:MIN enable=1 ctrl=auto"), None),
        (("nvme7n1", "[none]", "MAJ:MIN enable=0 ctrl=auto"), "nvme7n1 (scheduler none)"),
        (("sda", "[mq-deadline] none", ""), "sda (scheduler mq-deadline)"),
        (("sda", "mq-deadline [bfq] none", ""), None),
    ],
)
def test_a_share_of_a_disk_whose_kernel_divides_nothing_is_not_promised(
    group: Group, v2: dict[str, str], tmp_path: Path, kernel: tuple[str, str, str], said: str | None
) -> None:
    disk, scheduler, cost_model = kernel
    found = subprocess.run(["findmnt", "-nro", "MAJ:MIN", "-T", tmp_path], capture_output=True, text=True, check=True)
    numbers = found.stdout.strip()
    files = {
        f"block/{disk}/dev": numbers,
        f"block/{disk}/queue/scheduler": scheduler,
        f"dev/block/{numbers}": f"->../../block/{disk}",
        f"class/block/{disk}": f"->../../block/{disk}",
    }
    v2["ACU_SYS_ROOT"] = str(tree(tmp_path / "sys", files))
    (Path(v2["ACU_CGROUP_ROOT"]) / "io.cost.qos").write_text(cost_model.replace("MAJ:MIN", numbers) + "\n")
    config = f"numa: {{node: null}}\ngpu: {{model_cache_dir: {tmp_path}}}\n"
    up = group("up", 1, config, "--io-mbps", "200", "--dry-run", **v2)
    assert f"echo '{numbers} rbps=200000000 wbps=200000000' > {v2['ACU_CGROUP_ROOT']}/acu1/io.max" in up.stdout
    if said:
        assert f"does not count on {said}: " in up.stderr
        assert "--io-mbps: 200 MB/s." in up.stderr
        assert ("not even I/O priorities" in up.stderr) == ("none" in said)
    else:
        assert "does not count" not in up.stderr


@pytest.mark.parametrize(
    ("number", "config", "cpus", "nodes"),
    [
        (0, "", "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30", "0"),
        (0, "numa: {node: 1, cpus: 4}", "1,3,5,7", "1"),
        (2, "numa: {cpus: 4}", "16,18,20,22", "0"),  # the second threads come last
        (3, "numa: {node: null, cpus: 3}", "9-11", "0-1"),
    ],
)
def test_which_cpus_an_acu_gets(
    group: Group, v2: dict[str, str], number: int, config: str, cpus: str, nodes: str
) -> None:
    lines = group("up", number, config, "--dry-run", **v2).stdout.splitlines()
    folder = f"{v2['ACU_CGROUP_ROOT']}/acu{number}"
    assert f"echo {cpus} > {folder}/cpuset.cpus" in lines
    assert f"echo {nodes} > {folder}/cpuset.mems" in lines


def test_a_node_that_is_not_there_and_a_box_that_is_full_are_refused(group: Group, v2: dict[str, str]) -> None:
    refused = group("up", 0, "numa: {node: 7}", "--dry-run", **v2)
    assert refused.returncode == 1
    assert "numa.node: there is no node 7" in refused.stderr
    refused = group("up", 4, "numa: {cpus: 4}", "--dry-run", **v2)
    assert refused.returncode == 1
    assert "node 0 has 16 CPUs" in refused.stderr
    assert "enough for 4 ACUs" in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as on a real hierarchy")
def test_controllers_that_were_turned_on_for_acus_are_turned_off_with_the_last(
    group: Group, v2: dict[str, str], run_dir: Path
) -> None:
    control = Path(v2["ACU_CGROUP_ROOT"]) / "cgroup.subtree_control"
    control.write_text("io memory pids\n")
    for number in NUMBERS:
        assert group("up", number, **v2).returncode == 0
        control.write_text("cpuset io memory pids\n")  # as the kernel shows what was written
    for number in NUMBERS:
        shutil.rmtree(Path(v2["ACU_CGROUP_ROOT"]) / f"acu{number}")  # the kernel's files go with their folder
    assert group("down", 210, **v2).returncode == 0
    assert control.read_text() == "cpuset io memory pids\n"
    assert group("down", 211, **v2).returncode == 0
    assert control.read_text() == "-cpuset\n"
    assert not run_dir.exists()


def test_a_box_without_control_groups_is_said(group: Group, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    up = group("up", 210, "", "--dry-run", ACU_CGROUP_ROOT=str(tmp_path / "empty"))
    assert (up.returncode, up.stdout) == (0, "")
    assert "no control groups" in up.stderr


def test_nonsense_is_refused_with_the_usage(group: Group) -> None:
    for options in (("--pids", "many"), ("--slice", "256"), ("--io-weight", "5000"), ("--nothing", "1")):
        refused = group("up", 210, "", *options)
        assert refused.returncode == 2
        assert "scripts/cgroup.sh up|down|status N" in refused.stderr
