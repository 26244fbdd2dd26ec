"""scripts/gpu.sh, with stand-ins for NVIDIA's programs that keep a state as the real ones do."""

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import nvidia
from tests.scripts.parts import SCRIPTS, fields, needs_root, part, tree

pytestmark = needs_root
ACU = SCRIPTS.parent / ".venv/bin/acu"
PROGRAMS = ("nvidia-smi", "nvidia-modprobe", "nvidia-cuda-mps-control")
ONE = "models: {large: {model: qwen2.5-7b-instruct-awq, engine: vllm}}\n"
TWO = "models: {large: {model: qwen2.5-7b-instruct-awq}, small: {model: qwen2.5-0.5b-instruct}}\n"


class Box:
    """A box with cards, or without, and what gpu.sh does to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.programs = nvidia.install(folder / "programs", *PROGRAMS)
        self.put(gpus=[dict(nvidia.A10G)], fails={}, mps=None, done=[])
        for name in ("dev", "sys", "proc", "theirs"):
            (folder / name).mkdir()
        self.environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "NVIDIA_STATE": str(folder / "state.json"),
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "theirs"),
            **{f"ACU_{name.upper()}_ROOT": str(folder / name) for name in ("dev", "sys", "proc")},
        }

    def put(self, **changes: Any) -> None:
        """Change the state of NVIDIA's programs."""
        path = self.folder / "state.json"
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))

    @property
    def state(self) -> Any:
        """The state of NVIDIA's programs."""
        return json.loads((self.folder / "state.json").read_text())

    @property
    def done(self) -> list[str]:
        """What was changed, in order."""
        done: list[str] = self.state["done"]
        return done

    def computing(self, *processes: tuple[int, str]) -> None:
        """Let processes compute on the first card."""
        gpu = self.state["gpus"][0]
        self.put(gpus=[gpu | {"processes": processes}])

    def plan_for_an_a10g(self) -> None:
        """Let `acu doctor --plan` be of that card: NVML is not among the programs that the test has."""
        command = self.folder / "venv/acu"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\ncase $1 in doctor) set -- "$@" --card a10g;; esac\nexec {ACU} "$@"\n')
        command.chmod(0o755)
        (command.parent / "python").symlink_to(ACU.with_name("python"))
        self.environment["ACU_COMMAND"] = str(command)

    def gpu(self, verb: str, number: int = 210, config: str = "", *options: str) -> subprocess.CompletedProcess[str]:
        """Call gpu.sh as acu-up does, which has read the configuration."""
        file = self.folder / f"{number}.yaml"
        if config or not file.exists():
            file.write_text(config or ONE)
        environment = self.environment | {"ACU_FIELDS": fields(file.read_text())}
        return part("gpu.sh", verb, number, "--config", file, *options, run_dir=self.run_dir, environment=environment)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_one_engine_has_the_gpu_alone_and_all_is_as_before_when_it_goes(box: Box) -> None:
    up = box.gpu("up")
    assert up.returncode == 0, up.stderr
    assert box.state["gpus"][0]["mode"] == "Exclusive_Process"
    assert sorted(path.name for path in (box.folder / "dev").iterdir()) == ["nvidia-uvm", "nvidia0", "nvidiactl"]

    again = box.gpu("up")
    assert (again.returncode, again.stdout) == (0, "")
    status = box.gpu("status")
    assert status.returncode == 0
    assert "GPU 0 (0000:3b:00.0), 1 engines" in status.stdout

    down = box.gpu("down")
    assert down.returncode == 0, down.stderr
    assert "GPU 0 is reset" in down.stderr
    assert box.state["gpus"][0]["mode"] == "Default"
    assert box.done == ["mode Exclusive_Process", "reset", "mode Default"]
    assert not box.run_dir.exists()


def test_two_engines_share_the_gpu_by_mps_which_ends_with_the_acu(box: Box) -> None:
    up = box.gpu("up", 210, TWO)
    assert up.returncode == 0, up.stderr
    assert box.state["gpus"][0]["mode"] == "Exclusive_Process"
    assert box.state["mps"] == str(box.run_dir / "host/mps")
    assert (box.run_dir / "210.was/mps").read_text().strip() == str(box.run_dir / "host/mps")
    assert box.gpu("status").returncode == 0

    # The server of MPS ends with its daemon; the engines were its clients.
    assert box.gpu("down").returncode == 0
    assert box.state["mps"] is None
    assert box.done[-3:] == ["mps ends", "reset", "mode Default"]
    assert not box.run_dir.exists()


def test_two_engines_without_mps_share_it_with_anybody_and_a_warning(box: Box) -> None:
    (box.programs / "nvidia-cuda-mps-control").unlink()
    box.put(gpus=[nvidia.A10G | {"mode": "Exclusive_Process"}])
    up = box.gpu("up", 210, TWO)
    assert up.returncode == 0
    assert "warning: 2 engines use GPU 0, and MPS is not installed" in up.stderr
    assert box.state["gpus"][0]["mode"] == "Default"
    assert box.gpu("down").returncode == 0
    assert box.state["gpus"][0]["mode"] == "Exclusive_Process"


@pytest.mark.parametrize("workers", [0, 1500])
def test_mps_keeps_each_engine_to_what_the_plan_leaves_it(box: Box, workers: int) -> None:
    box.plan_for_an_a10g()
    up = box.gpu("up", 210, f"{TWO}gpu: {{workers_mb: {workers}}}\n")
    assert up.returncode == 0, up.stderr
    shown = subprocess.run(
        [ACU, "doctor", "--plan", "--json", "--card", "a10g", "-c", box.folder / "210.yaml"],
        capture_output=True,
        text=True,
        check=True,
    )
    plan = json.loads(shown.stdout)
    large, small = ({**model} for model in plan["models"])
    others = small["weights_mb"] + small["kv_mb"] + small["process_mb"] + small["step_mb"]
    assert large["weights_mb"] > small["weights_mb"]
    limit = plan["card"]["usable_mb"] - others - workers
    assert f"set_default_device_pinned_mem_limit 0 {limit}M" in box.done


@pytest.mark.parametrize("failing", ["-pm", "-c", "mps", "limit"])
def test_what_was_begun_is_taken_back_where_a_step_fails(box: Box, failing: str) -> None:
    if failing == "limit":
        box.plan_for_an_a10g()
    box.put(gpus=[nvidia.A10G | {"persistence": "Disabled"}], fails={failing: [4, "no: Insufficient Permissions"]})
    before = box.state | {"done": []}
    up = box.gpu("up", 210, TWO)
    assert up.returncode != 0
    assert up.stderr.splitlines()[-1].endswith("no: Insufficient Permissions")
    assert box.state | {"done": []} == before
    assert not box.run_dir.exists()


def test_an_mps_that_runs_already_is_used_and_left(box: Box) -> None:
    theirs = str(box.folder / "theirs")
    (box.folder / "theirs/control").touch()
    box.put(mps=theirs)
    up = box.gpu("up", 210, TWO)
    assert up.returncode == 0, up.stderr
    assert "MPS runs already" in up.stderr
    assert (box.run_dir / "210.was/mps").read_text().strip() == theirs
    assert box.gpu("down").returncode == 0
    assert box.state["mps"] == theirs
    assert not box.run_dir.exists()


def test_the_gpu_is_not_reset_while_anything_computes_on_it(box: Box) -> None:
    assert box.gpu("up").returncode == 0
    box.computing((4711, "/usr/bin/python3"))
    down = box.gpu("down")
    assert down.returncode == 0
    assert "GPU 0 is not reset: it is used by 4711 /usr/bin/python3" in down.stderr
    assert box.done == ["mode Exclusive_Process", "mode Default"]
    assert not box.run_dir.exists()


def test_the_gpu_is_not_reset_while_a_program_has_it_open(box: Box) -> None:
    assert box.gpu("up").returncode == 0
    with (box.folder / "dev/nvidia0").open():
        down = box.gpu("down")
    assert f"it is used by {os.getpid()} " in down.stderr
    assert "reset" not in box.done


def test_a_driver_that_does_not_answer_is_an_error_only_where_there_is_a_card(box: Box) -> None:
    box.put(fails={"query": [9, nvidia.NO_DRIVER]})
    without = box.gpu("up")
    assert (without.returncode, without.stderr) == (0, "acu210: no GPU (nvidia-smi sees none): nothing to do.\n")
    tree(
        box.folder / "sys/bus/pci/devices",
        {"0000:3b:00.0/class": "0x030200\n", "0000:3b:00.0/vendor": "0x10de\n"},
    )
    with_card = box.gpu("up")
    assert with_card.returncode == 1
    assert "the driver does not answer (nvidia-smi ended with 9" in with_card.stderr
    assert not box.run_dir.exists()


def test_an_unknown_gpu_is_refused_and_those_there_are_named(box: Box) -> None:
    up = box.gpu("up", 210, ONE + "gpu: {device_id: 3}\n")
    assert up.returncode == 1
    assert "there is no GPU 3; there are 0, NVIDIA A10G" in up.stderr


def test_the_driver_keeps_the_mode_while_nothing_runs(box: Box) -> None:
    box.put(gpus=[nvidia.A10G | {"persistence": "Disabled"}])
    assert box.gpu("up").returncode == 0
    assert box.done == ["persistence Enabled", "mode Exclusive_Process"]
    assert box.gpu("down").returncode == 0
    assert box.done[2:] == ["reset", "mode Default", "persistence Disabled"]


def test_the_mode_can_be_asked_for_or_kept(box: Box) -> None:
    box.put(gpus=[nvidia.A10G | {"mode": "Prohibited"}])
    assert box.gpu("up", 210, ONE + "gpu: {compute_mode: keep}\n").returncode == 0
    assert box.gpu("down").returncode == 0
    assert box.done == ["reset"]
    assert box.gpu("up", 210, ONE + "gpu: {compute_mode: default}\n").returncode == 0
    assert box.state["gpus"][0]["mode"] == "Default"
    assert box.gpu("down").returncode == 0
    assert box.state["gpus"][0]["mode"] == "Prohibited"


def test_a_card_without_compute_modes_is_left_as_it_is(box: Box) -> None:
    box.put(gpus=[nvidia.A10G | {"mode": "[N/A]", "persistence": "[N/A]"}])
    up = box.gpu("up", 210, TWO)
    assert up.returncode == 0
    assert "GPU 0 has no compute mode" in up.stderr
    assert box.done == []


def test_a_second_acu_on_the_gpu_counts_and_the_last_one_restores_it(box: Box) -> None:
    box.put(gpus=[nvidia.A10G | {"mode": "Prohibited"}])
    assert box.gpu("up", 210).returncode == 0
    box.computing((4711, "VLLM::EngineCore"))
    second = box.gpu("up", 211)
    assert second.returncode == 0
    assert "1 engines, and those of ACU 210, use GPU 0, and MPS would have to start before" in second.stderr
    assert box.state["gpus"][0]["mode"] == "Default"
    first = box.gpu("down", 210)
    assert "GPU 0 is not reset: ACU 211 uses it too" in first.stderr
    assert box.done == ["mode Exclusive_Process", "mode Default"]
    box.computing()
    box.put(done=[])
    assert box.gpu("down", 211).returncode == 0
    assert box.done == ["reset", "mode Prohibited"]
    assert not box.run_dir.exists()


def test_two_acus_that_begin_at_once_count_each_other_and_the_last_of_two_that_end_restores(box: Box) -> None:
    before = box.state
    for number in (210, 211):
        (box.folder / f"{number}.yaml").write_text(ONE)
        fields(ONE)
    with ThreadPoolExecutor() as both:
        for up in both.map(lambda number: box.gpu("up", number), (210, 211)):
            assert up.returncode == 0, up.stderr
        assert box.state["gpus"][0]["mode"] == "Exclusive_Process"
        assert box.state["mps"] == str(box.run_dir / "host/mps")
        for down in both.map(lambda number: box.gpu("down", number), (210, 211)):
            assert down.returncode == 0, down.stderr
    assert box.state | {"done": []} == before
    assert not box.run_dir.exists()


def test_mps_that_a_second_acu_started_stays_for_the_first_whose_engine_may_be_its_client(box: Box) -> None:
    assert box.gpu("up", 210).returncode == 0
    assert box.gpu("up", 211).returncode == 0
    assert box.state["mps"] == str(box.run_dir / "host/mps")
    assert box.gpu("down", 211).returncode == 0
    assert box.state["mps"] == str(box.run_dir / "host/mps")
    assert box.gpu("down", 210).returncode == 0
    assert box.state["mps"] is None
    assert not box.run_dir.exists()


def test_one_engine_is_a_client_of_an_mps_that_runs_already(box: Box) -> None:
    (box.folder / "theirs/control").touch()
    box.put(mps=str(box.folder / "theirs"))
    assert box.gpu("up").returncode == 0
    assert (box.run_dir / "210.was/mps").read_text().strip() == str(box.folder / "theirs")
    assert box.gpu("down").returncode == 0


def handed_over(box: Box, number: int = 210) -> subprocess.CompletedProcess[str]:
    """Call handover.sh as acu-host@ does."""
    return part(
        "handover.sh", number, run_dir=box.run_dir, environment={"RUNTIME_DIRECTORY": str(box.folder), "HOME": "/"}
    )


def test_an_mps_is_found_by_its_process_and_its_folder_handed_to_the_unit(box: Box) -> None:
    folder = Path("/srv/acu 210 $x")
    del box.environment["CUDA_MPS_PIPE_DIRECTORY"]
    tree(
        box.folder / "proc",
        {"7/comm": "bash\n", "7/environ": "CUDA_MPS_PIPE_DIRECTORY=/nowhere\0", "8/comm": "nvidia-cuda-mps\n"},
    )
    (box.folder / "proc/8/environ").write_text(f"A=b\0CUDA_MPS_PIPE_DIRECTORY={folder}\0C=d\0")
    box.put(mps=str(folder))
    folder.mkdir()
    try:
        up = box.gpu("up")
        assert up.returncode == 0, up.stderr
        assert f"MPS runs already ({folder})" in up.stderr
        done = handed_over(box)
    finally:
        folder.rmdir()
    assert done.returncode == 0, done.stderr
    assert (box.folder / "environment").read_text() == 'CUDA_MPS_PIPE_DIRECTORY="/srv/acu 210 \\$x"\n'
    assert box.gpu("down").returncode == 0
    assert box.state["mps"] == str(folder)


def test_without_mps_the_unit_gets_an_empty_environment(box: Box) -> None:
    (box.folder / "environment").write_text("OLD=1\n")
    assert box.gpu("up").returncode == 0
    assert handed_over(box).returncode == 0
    assert (box.folder / "environment").read_text() == ""


@pytest.mark.parametrize("where", ["/tmp/nvidia-mps", "/var/tmp/mps", "/home/ann/mps", "/root/../tmp/mps"])
def test_an_mps_whose_folder_the_daemon_does_not_see_is_refused_for_the_unit(box: Box, where: str) -> None:
    tree(box.run_dir, {"210.was/mps": f"{where}\n"})
    done = handed_over(box)
    assert done.returncode == 1
    assert f"MPS runs with its folder in {where}, which acu@210 does not see" in done.stderr
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps nvidia-cuda-mps-control -d" in done.stderr
    assert not (box.folder / "environment").exists()


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this box has NVIDIA's programs")
def test_a_box_without_a_gpu_has_nothing_to_do_and_can_show_what_another_would(box: Box) -> None:
    for program in PROGRAMS:
        (box.programs / program).unlink()
    up = box.gpu("up")
    assert (up.returncode, up.stderr) == (0, "acu210: no GPU (no nvidia-smi): nothing to do.\n")
    shown = box.gpu("up", 210, TWO + "gpu: {weights_mb: 12288, kv_cache_size_mb: 8192}\n", "--dry-run")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[:2] == ["nvidia-modprobe -c 0", "nvidia-modprobe -u -c 0"]
    assert "nvidia-smi -i 0 -c EXCLUSIVE_PROCESS" in lines
    assert any(line.endswith("nvidia-cuda-mps-control -d") for line in lines)
    assert not box.run_dir.exists()
