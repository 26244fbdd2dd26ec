"""The NVIDIA cards: the one seam to NVML, and what sysfs and procfs tell beside it. Reads, changes nothing.

pynvml is imported only where there is a device node, and NVML is open only while it is asked (`CardMemory` alone keeps it): a
GPU can be reset only when nobody holds it, monitors included. Each value is asked for by itself, so that a card or a driver
that does not know one still tells the others; a card whose memory cannot be read is left out, and `Driver.problem` says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from acu.errors import GpuUnreadable
from acu.hardware.numa import SLASH, cpu_list, node_of_device
from acu.hardware.report import Driver, Gpu

COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # PCIe, by GT/s as sysfs writes it
NODES_ASKED = 16  # words of 64 bits in NVML's mask of NUMA nodes
UNCORRECTED = (1, 0)  # NVML's numbers of: could not be corrected, since the boot
MPS_DAEMON = b"nvidia-cuda-mps-control"


def device_nodes(root: Path = SLASH) -> tuple[str, ...]:
    """The names of the device files of cards and of the driver: `nvidia0`, `nvidiactl`, `nvidia-uvm`."""
    with contextlib.suppress(OSError):
        return tuple(sorted(path.name for path in (root / "dev").glob("nvidia*") if not path.is_dir()))
    return ()


def has_card(nodes: tuple[str, ...]) -> bool:
    """Whether a card's own file is among the device files."""
    return any(name.removeprefix("nvidia").isdecimal() for name in nodes)


def read_cards(nvml: Any = None, root: Path = SLASH) -> tuple[tuple[Gpu, ...], Driver]:
    """The cards that the driver shows, by index, and the driver. Never raises: what went wrong is in `Driver.problem`.

    `nvml` is the module pynvml, or what has its functions; None: imported where there is a device file. An index is NVML's,
    which counts by PCI address as nvidia-smi does.
    """
    nodes = device_nodes(root)
    if nvml is None and not has_card(nodes):
        return (), Driver(version=driver_version(root), devices=nodes)
    gpus: list[Gpu] = []
    problems: list[str] = []
    version = cuda = ""
    try:
        with opened(nvml) as library:
            version = str(asked(library, "nvmlSystemGetDriverVersion") or "")
            cuda = _cuda(asked(library, "nvmlSystemGetCudaDriverVersion_v2"))
            for index in range(library.nvmlDeviceGetCount()):
                try:
                    gpus.append(_card(library, index, root))
                except (library.NVMLError, GpuUnreadable) as error:
                    problems.append(f"GPU {index}: {error}")
    except GpuUnreadable as error:
        if has_card(nodes):  # else there is no card, and NVML says so in its way
            problems.append(str(error))
    driver = Driver(
        version=version or driver_version(root),
        cuda=cuda,
        mps=mps_runs(root),
        problem="; ".join(problems),
        devices=nodes,
    )
    return tuple(gpus), driver


@contextlib.contextmanager
def opened(nvml: Any) -> Iterator[Any]:
    """NVML, initialised until the end of the block. Raises GpuUnreadable, for whatever NVML says there too."""
    library = _library(nvml)
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise GpuUnreadable(f"NVML does not start: {error}") from error
    try:
        yield library
    except library.NVMLError as error:
        raise GpuUnreadable(f"NVML does not answer: {error}") from error
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def _library(nvml: Any) -> Any:
    """The module pynvml, unless another is given. Raises GpuUnreadable where it is not installed."""
    if nvml is not None:
        return nvml
    try:
        import pynvml
    except ImportError as error:
        raise GpuUnreadable(f"nvidia-ml-py is not installed: {error}") from error
    return pynvml


def asked(library: Any, name: str, *arguments: Any) -> Any:
    """What a function of NVML answers; None where this card, driver or library does not know it.

    pynvml has an error of another family for an older driver that lacks the newest version of a function.
    """
    try:
        return getattr(library, name)(*arguments)
    except (library.NVMLError, library.NVMLLibraryMismatchError, AttributeError):
        return None


def _card(library: Any, index: int, root: Path) -> Gpu:
    """One card. Raises NVMLError where even its memory cannot be read, and GpuUnreadable where it is said to have none."""
    handle = library.nvmlDeviceGetHandleByIndex(index)
    held = library.nvmlDeviceGetMemoryInfo(handle)
    if held.total >> 20 == 0:
        raise GpuUnreadable("the driver says that it has no memory at all")
    pci = asked(library, "nvmlDeviceGetPciInfo", handle)
    bdf = sysfs_address(str(pci.busId)) if pci is not None and pci.busId else ""
    mode = asked(library, "nvmlDeviceGetComputeMode", handle)
    capability = asked(library, "nvmlDeviceGetCudaComputeCapability", handle)
    persistent = asked(library, "nvmlDeviceGetPersistenceMode", handle)
    performance = asked(library, "nvmlDeviceGetPerformanceState", handle)
    remapped = asked(library, "nvmlDeviceGetRemappedRows", handle)
    return Gpu(
        index=index,
        name=str(asked(library, "nvmlDeviceGetName", handle) or "NVIDIA GPU"),
        memory_mb=held.total >> 20,
        memory_free_mb=held.free >> 20,
        uuid=str(asked(library, "nvmlDeviceGetUUID", handle) or ""),
        bdf=bdf,
        numa_node=_node(library, handle, bdf, root),
        cpus=_local_cpus(bdf, root),
        pcie=_link(library, handle, "Curr") or link_of(bdf, "current", root),
        pcie_most=_link(library, handle, "Max") or link_of(bdf, "max", root),
        compute_mode=COMPUTE_MODES[mode] if mode in range(len(COMPUTE_MODES)) else "",
        processes=_processes(library, handle),
        capability=(capability[0], capability[1]) if capability is not None else None,
        performance=performance,
        persistent=None if persistent is None else bool(persistent),
        pcie_slot=_slot(bdf, root),
        clocks_held=asked(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        ecc_errors=asked(library, "nvmlDeviceGetTotalEccErrors", handle, *UNCORRECTED),
        remapping=None if remapped is None else (bool(remapped[2]), bool(remapped[3])),
    )


def sysfs_address(bus_id: str) -> str:
    """A PCI address as the kernel writes it: NVML's domain has eight digits, and its letters are large."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def _node(library: Any, handle: Any, bdf: str, root: Path) -> int | None:
    """The card's NUMA node: sysfs's, else the only one to whose memory NVML says that it is near."""
    node = node_of_device(bdf, root)
    if node is not None:
        return node
    scope = getattr(library, "NVML_AFFINITY_SCOPE_NODE", 0)
    words = asked(library, "nvmlDeviceGetMemoryAffinity", handle, NODES_ASKED, scope)
    near = [64 * at + bit for at, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1]
    return near[0] if len(near) == 1 else None


def _local_cpus(bdf: str, root: Path) -> tuple[int, ...]:
    with contextlib.suppress(OSError, ValueError):
        return cpu_list((root / "sys/bus/pci/devices" / bdf / "local_cpulist").read_text())
    return ()


def _link(library: Any, handle: Any, which: str) -> tuple[int, int] | None:
    """(generation, lanes); `which` is `Curr` or `Max`. None where NVML does not tell, as in some virtual machines."""
    generation = asked(library, f"nvmlDeviceGet{which}PcieLinkGeneration", handle)
    width = asked(library, f"nvmlDeviceGet{which}PcieLinkWidth", handle)
    return (generation, width) if generation and width else None


def link_of(bdf: str, which: str, root: Path = SLASH) -> tuple[int, int] | None:
    """(generation, lanes) of a PCI device as sysfs tells; `which` is `current` or `max`."""
    return _link_at(root / "sys/bus/pci/devices" / bdf, which)


def _link_at(folder: Path, which: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        speed = (folder / f"{which}_link_speed").read_text().split()[0]  # `16.0 GT/s PCIe`
        return GENERATIONS[speed], int((folder / f"{which}_link_width").read_text())
    return None


def _slot(bdf: str, root: Path) -> tuple[int, int] | None:
    """(generation, lanes) that the port above a device can do; None where it is none, as in some virtual machines."""
    with contextlib.suppress(OSError, RuntimeError):
        return _link_at((root / "sys/bus/pci/devices" / bdf).resolve(strict=True).parent, "max") if bdf else None
    return None


def _processes(library: Any, handle: Any) -> tuple[tuple[int, int], ...]:
    """(pid, MiB) of whoever has a context on the card, by pid; 0 MiB where the driver does not tell how much."""
    held: dict[int, int] = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        function = f"nvmlDeviceGet{kind}RunningProcesses"
        for process in asked(library, function, handle) or asked(library, f"{function}_v2", handle) or ():
            used = (process.usedGpuMemory or 0) >> 20
            held[process.pid] = max(used, held.get(process.pid, 0))
    return tuple(sorted(held.items()))


def _cuda(number: int | None) -> str:
    """`12.8` for NVML's 12080."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def driver_version(root: Path = SLASH) -> str:
    """The version of the kernel's loaded module, which may be another than the library's; empty where none is loaded."""
    with contextlib.suppress(OSError):
        return (root / "sys/module/nvidia/version").read_text().strip()
    return ""


def mps_runs(root: Path = SLASH) -> bool:
    """Whether the control daemon of NVIDIA's Multi-Process Service runs."""
    with contextlib.suppress(OSError):
        for folder in (root / "proc").iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError):  # it ends while we look
                    if (folder / "comm").read_bytes().startswith(b"nvidia-cuda-mps"):
                        program = (folder / "cmdline").read_bytes().partition(b"\0")[0]
                        if program.rpartition(b"/")[2].startswith(MPS_DAEMON):
                            return True
    return False


class CardMemory:
    """The memory of one card, to be read again and again: NVML stays open until `close`, which a reset of the card needs."""

    def __init__(self, library: Any, index: int, read: Callable[[], Any]) -> None:
        self._library = library
        self._index = index
        self._read: Callable[[], Any] | None = read

    @classmethod
    def open(cls, index: int, nvml: Any = None) -> Self | None:
        """The card with NVML's `index`; None where there is no such card, or no driver that answers."""
        if nvml is None and not has_card(device_nodes()):
            return None
        try:
            library = _library(nvml)
        except GpuUnreadable:
            return None
        try:
            library.nvmlInit()
        except library.NVMLError:
            return None
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            read = _reader(library, handle)
        except library.NVMLError:
            with contextlib.suppress(library.NVMLError):
                library.nvmlShutdown()
            return None
        return cls(library, index, read)

    def used_mb(self) -> int:
        """MiB that are in use, of whichever process; without what the driver keeps, where it tells. Microseconds.

        Raises GpuUnreadable: the card is lost, or this is closed.
        """
        return int(self._info().used) >> 20

    def capacity_mb(self) -> int:
        """MiB that processes can have together: without what the driver keeps, where it tells. Raises GpuUnreadable."""
        info = self._info()
        return int(info.used + info.free) >> 20

    def _info(self) -> Any:
        if self._read is None:
            raise GpuUnreadable(f"GPU {self._index}: its memory is not watched any more")
        try:
            return self._read()
        except self._library.NVMLError as error:
            raise GpuUnreadable(f"GPU {self._index}: its memory cannot be read: {error}") from error

    def close(self) -> None:
        """Let go of the card. Idempotent."""
        if self._read is not None:
            self._read = None
            with contextlib.suppress(self._library.NVMLError):
                self._library.nvmlShutdown()


def _reader(library: Any, handle: Any) -> Callable[[], Any]:
    """The newest function for the memory that card and driver have. Raises NVMLError where there is none."""
    version = getattr(library, "nvmlMemory_v2", None)
    if version is not None and asked(library, "nvmlDeviceGetMemoryInfo", handle, version) is not None:
        return lambda: library.nvmlDeviceGetMemoryInfo(handle, version)
    library.nvmlDeviceGetMemoryInfo(handle)
    return lambda: library.nvmlDeviceGetMemoryInfo(handle)
