"""NVIDIA's programs for a box without a card: nvidia-smi, nvidia-cuda-mps-control, nvidia-modprobe, as far as gpu.sh asks.

They print and end as the real ones' documentation says (csv without a header, `All done.`, 6 without a device, 9 without a
driver, a reset refused while anything computes), and keep what they are told in one JSON file, NVIDIA_STATE:

    gpus      [{name, uuid, bus, mode, persistence, processes: [[pid, name]]}]
    fails     {"query" | "-c" | "-pm" | "mps" | "limit": [exit code, text]}: what the program ends with
    mps       the folder of the daemon of MPS that runs
    done      every change, in order

Run by the interpreter alone (`install` writes the programs): only the standard library here.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

A10G = {
    "name": "NVIDIA A10G",
    "uuid": "GPU-3f0c1c0e-1f8a-2f5e-9a53-0d6c3f1f7a11",
    "bus": "00000000:3B:00.0",
    "mode": "Default",
    "persistence": "Enabled",
    "processes": [],
}
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
    "installed and running."
)
MODES = {"DEFAULT": "Default", "EXCLUSIVE_PROCESS": "Exclusive_Process", "PROHIBITED": "Prohibited"}


def install(folder: Path, *programs: str) -> Path:
    """Write the programs into a folder, which is to be first on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in programs:
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -ISs {__file__} {name} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def main(program: str, *arguments: str) -> int:
    """Run one of the programs. Returns its exit code."""
    path = Path(os.environ["NVIDIA_STATE"])
    state = json.loads(path.read_text())
    code = {"nvidia-smi": smi, "nvidia-cuda-mps-control": mps_control, "nvidia-modprobe": modprobe}[program](
        state, list(arguments)
    )
    path.write_text(json.dumps(state))
    return code


def smi(state: dict[str, Any], arguments: list[str]) -> int:
    """nvidia-smi: queries, the compute mode, the reset."""
    said = dict(argument.lstrip("-").partition("=")[::2] for argument in arguments if argument.startswith("--"))
    options = [argument for argument in arguments if argument in ("-c", "-pm")]
    asked = "query" if any(name.startswith("query") for name in said) else (*options, "reset")[0]
    if failure := state.get("fails", {}).get(asked):
        print(failure[1])
        return int(failure[0])
    chosen = list(enumerate(state["gpus"]))
    if "-i" in arguments:
        index = int(arguments[arguments.index("-i") + 1])
        chosen = chosen[index : index + 1]
    if not chosen:
        print("No devices were found")
        return 6
    if asked == "query":
        query(chosen, said)
        return 0
    gpu = chosen[0][1]
    if asked == "-pm":
        gpu["persistence"] = arguments[arguments.index("-pm") + 1].capitalize()
        state["done"].append(f"persistence {gpu['persistence']}")
        print(f"{gpu['persistence']} persistence mode for GPU {gpu['bus']}.\nAll done.")
        return 0
    if asked == "-c":
        gpu["mode"] = MODES[arguments[arguments.index("-c") + 1]]
        state["done"].append(f"mode {gpu['mode']}")
        print(f"Set compute mode to {gpu['mode'].upper()} for GPU {gpu['bus']}.\nAll done.")
        return 0
    if gpu["processes"]:
        print(f"The following GPUs could not be reset:\n  GPU {gpu['bus']}: In use by another client\n")
        return 255
    state["done"].append("reset")
    print(f"GPU {gpu['bus']} was successfully reset.\nAll done.")
    return 0


def query(chosen: list[tuple[int, dict[str, Any]]], said: dict[str, str]) -> None:
    """Print what is asked of the chosen cards."""
    assert said["format"] == "csv,noheader", said
    for index, gpu in chosen:
        values = {"index": index, "name": gpu["name"], "uuid": gpu["uuid"], "compute_mode": gpu["mode"]}
        values |= {"pci.bus_id": gpu["bus"], "persistence_mode": gpu.get("persistence")}
        if fields := said.get("query-gpu"):
            print(", ".join(str(values[field]) for field in fields.split(",")))
        else:
            assert said["query-compute-apps"] == "pid,process_name"
            for pid, name in gpu["processes"]:
                print(f"{pid}, {name}")


def mps_control(state: dict[str, Any], arguments: list[str]) -> int:
    """nvidia-cuda-mps-control: `-d` starts the daemon, else commands come by standard input."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    commands = [] if arguments == ["-d"] else sys.stdin.read().splitlines()
    asked = "limit" if any(line.startswith("set_default_device_pinned_mem_limit") for line in commands) else "mps"
    if commands != ["quit"] and (failure := state.get("fails", {}).get(asked)):
        print(failure[1], file=sys.stderr)
        return int(failure[0])
    if arguments == ["-d"]:
        if state["mps"]:
            print("An instance of this daemon is already running")
            return 1
        assert Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
        (Path(folder) / "control").touch()
        state["mps"] = folder
        state["done"].append("mps starts")
        return 0
    if state["mps"] != folder:
        print("Cannot find MPS control daemon process")
        return 1
    if asked == "limit":
        state["done"] += commands
    if commands == ["quit"]:
        state["mps"] = None
        state["done"].append("mps ends")
        (Path(folder) / "control").unlink()
    return 0


def modprobe(state: dict[str, Any], arguments: list[str]) -> int:
    """nvidia-modprobe: makes the device nodes, here plain files."""
    folder = Path(os.environ["ACU_DEV_ROOT"])
    if "-u" in arguments:
        (folder / "nvidia-uvm").touch()
    else:
        (folder / f"nvidia{arguments[arguments.index('-c') + 1]}").touch()
        (folder / "nvidiactl").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
