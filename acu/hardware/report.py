"""The machine as the daemon sees it at its start: frozen values, read by probe.py in milliseconds."""

from __future__ import annotations

from msgspec import Struct


class Gpu(Struct, frozen=True):
    """One NVIDIA device; memory in MiB.

    `numa_node` is None where the firmware does not tell; `pcie` is (generation, lanes) now, `pcie_most` what the card can do, or
    card and slot together where NVML tells, and `pcie_slot` what the port above it can do; `compute_mode` as
    nvidia-smi prints it (`Default`, `Exclusive_Process`, `Prohibited`); `processes` are (pid, MiB).
    `capability` is CUDA's compute capability; `performance` the state P0 (at work) to P15, which falls while a card rests;
    `persistent` whether the driver keeps a card that nobody uses ready; `clocks_held` why its clocks are not at their highest,
    NVML's bits; `ecc_errors` the memory errors since the boot that could not be corrected; `remapping` is (pending, failed):
    whether rows of memory wait for a reset to be replaced, and whether one could not be.
    """

    index: int
    name: str
    memory_mb: int
    memory_free_mb: int
    uuid: str = ""
    bdf: str = ""
    numa_node: int | None = None
    cpus: tuple[int, ...] = ()
    pcie: tuple[int, int] | None = None
    pcie_most: tuple[int, int] | None = None
    compute_mode: str = ""
    processes: tuple[tuple[int, int], ...] = ()
    capability: tuple[int, int] | None = None
    performance: int | None = None
    persistent: bool | None = None
    pcie_slot: tuple[int, int] | None = None
    clocks_held: int | None = None
    ecc_errors: int | None = None
    remapping: tuple[bool, bool] | None = None


class Node(Struct, frozen=True):
    """One NUMA node; memory in MiB. `distances` to every node, in order of their ids, as the firmware tells."""

    id: int
    cpus: tuple[int, ...]
    memory_mb: int
    free_mb: int
    distances: tuple[int, ...] = ()


class Driver(Struct, frozen=True):
    """The NVIDIA driver, the newest CUDA that it runs, whether the daemon of MPS runs, and why NVML did not answer."""

    version: str = ""
    cuda: str = ""
    mps: bool = False
    problem: str = ""
    devices: tuple[str, ...] = ()


class Report(Struct, frozen=True):
    """The machine as this process may use it: CPUs of its affinity, memory (bytes) within its cgroup."""

    cpu_model: str
    cpus: int
    cores: int
    cpu_features: tuple[str, ...]
    memory_total: int
    memory_available: int
    gpus: tuple[Gpu, ...] = ()
