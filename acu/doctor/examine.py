"""One look at the box for `acu doctor`: everything of an Examination, in about the time of its slowest part.

Most of that time is waiting, for a disk, a socket or a driver, so each part looks by itself (looks.py): what fails or hangs
(a network disk, a driver) leaves its default, and `unread` tells it. Nothing is changed, nothing needs root, and neither vLLM nor
torch is imported.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from acu import __version__
from acu.config import AcuConfig, model_role
from acu.doctor.addresses import addresses_named, read_address
from acu.doctor.box import read_abilities, read_cgroups, read_clock, read_firmware, read_kernel, read_limits
from acu.doctor.disks import places_named, read_place
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
    Needs,
    Place,
    ReadTest,
    Versions,
)
from acu.doctor.looks import Look, Looks
from acu.doctor.mounts import read_mounts
from acu.doctor.reads import read_tests, total_mb, weights_of
from acu.doctor.sight import Sight
from acu.doctor.versions import read_versions
from acu.hardware.cards import has_card, read_cards
from acu.hardware.numa import SLASH, allowed_cpus, allowed_nodes, read_nodes
from acu.hardware.probe import report_on
from acu.hardware.report import Driver, Gpu, Node, Report
from dataplane.memory import memory_bytes

PATIENCE_S = 1.5
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
    read_test: bool = True,
) -> Examination:
    """Look at the box as the configuration would use it. Never raises for what the box is like: `unread` tells that.

    `root` is `/` or a recorded tree, which answers for everything but versions and this process's limits; clock, addresses and
    reads are left out there. `nvml` is None or what stands for the module pynvml. `read_test`: read from the models' disks.
    """
    sight = Sight(root)
    looks = Looks(sight, PATIENCE_S)
    cards: Look[tuple[tuple[Gpu, ...], Driver]] = looks.at(
        "the GPUs", lambda: read_all_cards(nvml, sight), ((), Driver())
    )
    files: Look[tuple[Path, ...]] = looks.at("the models' files", lambda: weights_of(config, sight), ())
    weights_mb = looks.at("the models' size", lambda: total_mb(files.value()), 0)
    wanted = read_test and sight.here
    reads: Look[tuple[ReadTest, ...]] = looks.at(
        "the read test", lambda: read_tests(files.value(), sight) if wanted else (), ()
    )
    addresses = [
        looks.at(address, functools.partial(_address, address, config), Address(address))
        for address in (addresses_named(config) if sight.here else ())
    ]
    mounts = read_mounts(sight)
    places: list[Look[tuple[Place, Disk | None] | None]] = [
        looks.at(str(path), functools.partial(read_place, purpose, path, mounts, sight), None)
        for purpose, path in places_named(config)
    ]
    versions = looks.at("versions", read_versions, Versions(acu=__version__, python=""))
    clock = looks.at("the clock", lambda: read_clock() if sight.here else Clock(), Clock())
    nodes: Look[tuple[Node, ...]] = looks.at("NUMA nodes", lambda: read_nodes(root), ())
    firmware = looks.at("firmware", lambda: read_firmware(sight), Firmware())
    kernel = looks.at("kernel settings", lambda: read_kernel(sight), Kernel())
    cgroups = looks.at("cgroups", lambda: read_cgroups(sight), Cgroups())
    abilities = looks.at("abilities", lambda: read_abilities(sight), Abilities())
    limits = looks.at("limits", read_limits, Limits())
    machine = looks.at("CPUs and memory", lambda: report_on((), root), Report("unknown", 0, 0, (), 0, 0))
    gpus, driver = cards.value()
    found = tuple(seen for place in places if (seen := place.value()) is not None)
    return Examination(
        at=now().astimezone(dt.UTC).isoformat(timespec="seconds"),
        machine=replace(machine.value(), gpus=gpus),
        versions=versions.value(),
        needs=needs_of(config, gpus, weights_mb.value()),
        driver=driver,
        cpus=allowed_cpus(root),
        memory_nodes=allowed_nodes(root),
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
        addresses=tuple(address.value() for address in addresses),
        unread=tuple(sight.unread),
    )


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
    )


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
