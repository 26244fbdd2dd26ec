"""One look at the box for `acu doctor`: everything of an Examination, in about the time of its slowest part.

Most of that time is waiting, for a disk, a socket or a driver, so each part looks by itself (looks.py), those that may hang for
ever in a process of its own: what fails or hangs leaves its default, and `unread` tells it. Nothing is changed, nothing needs
root, and neither vLLM nor torch is imported.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from acu import __version__
from acu.config import AcuConfig, model_role
from acu.doctor.addresses import addresses_named, found_running, read_address
from acu.doctor.box import read_abilities, read_cgroups, read_clock, read_firmware, read_kernel, read_limits
from acu.doctor.disks import places_named, read_place, silent_place
from acu.doctor.examination import (
    Abilities,
    Address,
    Cgroups,
    Clock,
    Disk,
    Examination,
    Firmware,
    Kernel,
    Limits,
    ModelFiles,
    Needs,
    Place,
    ReadTest,
    Versions,
    Xid,
)
from acu.doctor.kernellog import read_xids
from acu.doctor.looks import Look, Looks
from acu.doctor.reads import models_read, read_model, read_tests, silent_model, weights_of
from acu.doctor.sight import Sight
from acu.doctor.versions import read_versions
from acu.errors import StartRefused
from acu.hardware.cards import device_nodes, has_card, read_cards
from acu.hardware.numa import SLASH, allowed_cpus, allowed_nodes, read_nodes
from acu.hardware.probe import report_on
from acu.hardware.report import Driver, Gpu, Node, Report
from dataplane.memory import memory_bytes

PATIENCE_S = 1.3
DEPTH = 32  # of processes that descend from each other
MPS = "nvidia-cuda-mps"  # what the names of its processes begin with
NVIDIA, DISPLAY = "0x10de", "0x03"  # a PCI device's vendor, and what its class begins with


def utc_now() -> dt.datetime:
    """The time."""
    return dt.datetime.now(dt.UTC)


def examine(
    config: AcuConfig,
    root: Path = SLASH,
    nvml: Any = None,
    now: Callable[[], dt.datetime] = utc_now,
    *,
    socket: Path | None = None,
    start: Callable[[AcuConfig], None] | None = None,
) -> Examination:
    """Look at the box as the configuration would use it. Never raises for what the box is like: `unread` tells that.

    `root` is `/` or a recorded tree, which answers for everything but versions and this process's limits; clock, addresses and
    reads are left out there. `nvml` is None or what stands for the module pynvml.
    `socket` is the daemon's, where it is not the one of the configuration. `start` raises StartRefused where a start would.
    """
    sight = Sight(root)
    with Looks(sight, PATIENCE_S) as looks:
        seen = _seen(config, nvml, looks, sight, (socket, start))
    return replace(seen, at=now().astimezone(dt.UTC).isoformat(timespec="seconds"))


def _seen(
    config: AcuConfig,
    nvml: Any,
    looks: Looks,
    sight: Sight,
    asked: tuple[Path | None, Callable[[AcuConfig], None] | None],
) -> Examination:
    """All parts, begun together."""
    (socket, start), root, mounts = asked, sight.root, sight.mounts()
    cards: Look[tuple[tuple[Gpu, ...], Driver]] = looks.apart(
        "the GPUs", lambda: read_all_cards(nvml, sight), ((), Driver())
    )
    models: list[Look[tuple[ModelFiles, dict[Path, int]]]] = [
        looks.apart(
            f"models.{key}",
            functools.partial(read_model, key, model, config, sight),
            (silent_model(key, model, config), {}),
        )
        for key, model in models_read(config)
    ]
    reads: Look[tuple[ReadTest, ...]] = looks.apart(
        "the read test", lambda: read_tests(weights_of(config, sight), sight, mounts) if sight.here else (), ()
    )
    places: list[Look[tuple[Place, Disk | None]]] = [
        looks.apart(
            str(path),
            functools.partial(read_place, purpose, path, mounts, sight),
            (silent_place(purpose, path, mounts), None),
        )
        for purpose, path in places_named(config)
    ]
    refused = looks.apart("the data folder", lambda: _refusal(start, config), "")
    abilities = looks.apart("abilities", lambda: read_abilities(sight), Abilities())  # PATH may lead anywhere
    named = addresses_named(config, socket) if sight.here else ()
    addresses = [looks.at(address, functools.partial(_address, address, config), Address(address)) for address in named]
    running: Look[tuple[Address, ...]] = looks.at(
        "other ACUs", lambda: found_running(named) if sight.here and socket is None else (), ()
    )
    xids: Look[tuple[Xid, ...] | None] = looks.at(
        "the kernel's log", lambda: read_xids(sight) if has_card(device_nodes(root)) else None, None
    )
    versions = looks.at("versions", read_versions, Versions(acu=__version__, python=""))
    clock = looks.at("the clock", lambda: read_clock() if sight.here else Clock(), Clock())
    nodes: Look[tuple[Node, ...]] = looks.at("NUMA nodes", lambda: read_nodes(root), ())
    firmware = looks.at("firmware", lambda: read_firmware(sight), Firmware())
    kernel = looks.at("kernel settings", lambda: read_kernel(sight), Kernel())
    cgroups = looks.at("cgroups", lambda: read_cgroups(sight), Cgroups())
    limits = looks.at("limits", lambda: read_limits(sight), Limits())
    machine = looks.at("CPUs and memory", lambda: report_on((), root), Report("unknown", 0, 0, (), 0, 0))
    may_use: Look[tuple[tuple[int, ...], tuple[int, ...]]] = looks.at(
        "what may be used", lambda: (allowed_cpus(root), allowed_nodes(root)), ((), ())
    )
    gpus, driver = cards.value()
    answered = (*(address.value() for address in addresses), *running.value())
    found = tuple(place.value() for place in places)
    weights = {path: size for model in models for path, size in model.value()[1].items()}
    return Examination(
        at="",
        machine=replace(machine.value(), gpus=gpus),
        versions=versions.value(),
        needs=needs_of(config, gpus, sum(weights.values()) >> 20),
        driver=driver,
        cpus=may_use.value()[0],
        memory_nodes=may_use.value()[1],
        nodes=nodes.value(),
        places=tuple(place for place, _ in found),
        disks=tuple({disk.name: disk for _, disk in found if disk is not None}.values()),
        reads=reads.value(),
        firmware=firmware.value(),
        cgroups=cgroups.value(),
        abilities=abilities.value(),
        limits=limits.value(),
        kernel=kernel.value(),
        clock=clock.value(),
        addresses=answered,
        models=tuple(model.value()[0] for model in models),
        own=own_processes(gpus, answered, sight),
        xids=xids.value(),
        refused=refused.value(),
        unread=tuple(sight.unread),
    )


def _refusal(start: Callable[[AcuConfig], None] | None, config: AcuConfig) -> str:
    try:
        if start is not None:
            start(config)
    except StartRefused as refused:
        return str(refused)
    return ""


def needs_of(config: AcuConfig, gpus: tuple[Gpu, ...], weights_mb: int) -> Needs:
    """What the configuration asks of the box. Engines are counted where there is a card for them; encoders compute on CPUs."""
    engines = sum(
        (model.engine or ("vllm" if model_role(key, model) == "chat" else "encoder")) == "vllm"
        for key, model in config.models.items()
    )
    return Needs(
        gpu_id=config.gpu.device_id,
        engines_on_gpu=engines if gpus else 0,
        weights_mb=weights_mb,
        hot_mb=memory_bytes(config.data_plane) >> 20,
        numa=config.numa,
        connections=config.network.max_connections,
        namespace=config.network.namespace,
        engines=engines,
    )


def own_processes(gpus: tuple[Gpu, ...], addresses: tuple[Address, ...], sight: Sight) -> tuple[int, ...]:
    """Of the processes on the cards those of an ACU that answers, or that descend from one, and the servers of MPS."""
    daemons = {pid for address in addresses for pid in address.pids}
    return tuple(
        pid
        for pid in dict.fromkeys(pid for gpu in gpus for pid, _ in gpu.processes)
        if daemons.intersection(_line_of(pid, sight)) or (sight.text(f"proc/{pid}/comm") or "").startswith(MPS)
    )


def _line_of(pid: int, sight: Sight) -> Iterator[int]:
    """A process and those that it descends from."""
    for _ in range(DEPTH):
        yield pid
        parent = sight.fields(f"proc/{pid}/status").get("PPid", "")
        if not parent.isdecimal() or int(parent) <= 1:
            return
        pid = int(parent)


def read_all_cards(nvml: Any, sight: Sight) -> tuple[tuple[Gpu, ...], Driver]:
    """The cards that the driver shows, and as a problem those that are in the box and have no driver."""
    gpus, driver = read_cards(nvml, sight.root)
    if gpus or driver.problem or has_card(driver.devices):
        return gpus, driver
    bare = [
        address
        for address in sight.names("sys/bus/pci/devices")
        if sight.text(f"sys/bus/pci/devices/{address}/vendor") == NVIDIA
        and (sight.text(f"sys/bus/pci/devices/{address}/class") or "").startswith(DISPLAY)
    ]
    if not bare:
        return gpus, driver
    loaded = "has no device file" if driver.version else "has no driver: its kernel module is not loaded"
    return gpus, replace(driver, problem=f"the card at {' and '.join(bare)} {loaded}")


def _address(address: str, config: AcuConfig) -> Address:
    return read_address(address, tls=config.network.tls_cert_file is not None)
