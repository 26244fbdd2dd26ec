"""Pin: bind this process, and so every thread and process that it makes from then on, to a placement; and say how it went.

CPUs by sched_setaffinity, memory by set_mempolicy, which a thread inherits from the one that makes it and a process through
fork and exec: so `bind` is called while there is one thread, before the data plane allocates and before an engine is spawned.
What lies elsewhere by then (the interpreter, some 30 MiB) is moved by migrate_pages. Nothing here raises for what cannot be:
each failure is a sentence in `Bound.problems`, and the daemon runs as it did before there was a binding.

The policy is PREFERRED and not BIND: under BIND the kernel kills a process when its node is full, while gigabytes lie free on
the others, and what shares the node with us (another ACU, tools) is not ours to foresee. The price: PREFERRED takes the next
node also where the first is full of nothing but page cache, as it is once gigabytes of weights were read. locality.py sees
that, and moves the pages: a move lets the kernel give page cache up, and kills nobody where there is none (measured on two
nodes: 300 MiB beside a full page cache land elsewhere at 90 %, and are all on the node after the look). A policy that the
process was started with (numactl, systemd's NUMAPolicy) is kept, since whoever set it knew why; so is an affinity or cpuset:
`place` only chooses within. An engine inherits all of it. vLLM's CPU worker makes of it BIND to its CPUs' node by itself.

libnuma is called by ctypes: of py-libnuma's functions those that set a policy return nothing where the kernel refuses, it
knows no migrate_pages, and its import runs a compiler's or ldconfig's search for the library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from acu.config import AcuConfig, NumaConfig
from acu.hardware.numa import SLASH, allowed_cpus, allowed_nodes, available_mb, cores_of, read_nodes
from acu.hardware.placement import Placement, Room, place, ranges
from acu.hardware.report import Report

LIBRARY = "libnuma.so.1"
DEFAULT, PREFERRED, BIND = 0, 1, 2
MODES = {
    PREFERRED: "preferred",
    BIND: "bind",
    3: "interleave",
    4: "local",
    5: "preferred-many",
    6: "weighted-interleave",
}
MOST_NODES = 1024
_LONG = ctypes.sizeof(ctypes.c_ulong) * 8
_REASONS = {
    errno.EPERM: "the kernel does not permit it (a seccomp filter, as of a container: allow set_mempolicy, or add CAP_SYS_NICE)",
    errno.ENOSYS: "this kernel has no NUMA policies",
}


class Bound(Struct, frozen=True):
    """How a binding went: `node` has the memory (None: no policy), `cpus` are those of this process now.

    `mode` is the policy's name; `nodes` are all of the machine; `why` and `problems` are sentences.
    """

    node: int | None = None
    mode: str = ""
    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    why: str = ""
    problems: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """All but the problems, in one line."""
        cpus = f"CPUs {ranges(self.cpus)}"
        if self.node is None:
            return f"memory not bound ({self.why}), {cpus}" if self.why else cpus
        return f"memory on node {self.node} ({self.mode}; {self.why}), {cpus}"


class Policy:
    """The calling thread's memory policy, by libnuma. Every call raises OSError where the kernel refuses."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def load(cls) -> Policy:
        """Raises OSError where libnuma is not installed, or is one without these calls."""
        try:
            library = ctypes.CDLL(LIBRARY, use_errno=True)
            for name in ("set_mempolicy", "get_mempolicy", "migrate_pages"):
                getattr(library, name).restype = ctypes.c_long
        except AttributeError as error:
            raise OSError(errno.ENOSYS, str(error)) from error
        return cls(library)

    def get(self) -> tuple[int, tuple[int, ...]]:
        """The mode (see MODES; DEFAULT) and its nodes."""
        mode, mask = ctypes.c_int(), _mask(())
        self._checked(self._library.get_mempolicy(ctypes.byref(mode), mask, ctypes.c_ulong(MOST_NODES + 1), None, 0))
        nodes = (index * _LONG + bit for index, word in enumerate(mask) for bit in range(_LONG) if word >> bit & 1)
        return mode.value & 0xFF, tuple(nodes)

    def prefer(self, node: int) -> None:
        """From now on take memory of `node` while it has some."""
        self._checked(self._library.set_mempolicy(PREFERRED, _mask((node,)), ctypes.c_ulong(MOST_NODES + 1)))

    def bring(self, pid: int, away: tuple[int, ...], node: int) -> int:
        """Move what process `pid` (0: this one) has on the nodes `away` to `node`; returns how many pages would not move."""
        return self._checked(
            self._library.migrate_pages(pid, ctypes.c_ulong(MOST_NODES + 1), _mask(away), _mask((node,)))
        )

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def _mask(nodes: tuple[int, ...]) -> ctypes.Array[ctypes.c_ulong]:
    words = (ctypes.c_ulong * (MOST_NODES // _LONG))()
    for node in nodes:
        words[node // _LONG] |= 1 << node % _LONG
    return words


def bind(config: AcuConfig, report: Report) -> Bound:
    """Bind this process as the configuration asks. Raises StartRefused where a number of it cannot be."""
    return apply(placement_for(config, report), tuple(node.id for node in read_nodes()))


def placement_for(config: AcuConfig, report: Report) -> Placement:
    """Where this process is to be, on the machine of the report. Raises StartRefused."""
    card = next((gpu for gpu in report.gpus if gpu.index == config.gpu.device_id), None)
    return place(config.numa, look(config.numa), card)


def look(numa: NumaConfig, root: Path = SLASH, cpus: tuple[int, ...] | None = None) -> Room:
    """What this process may use, or one with the affinity `cpus` on the machine whose files are under `root`."""
    usable = allowed_cpus() if cpus is None else cpus
    nodes = tuple(replace(node, free_mb=available_mb(node.id, root)) for node in read_nodes(root))
    memory = allowed_nodes(root)
    if root == SLASH and len(nodes) > 1:  # where a policy may have been given
        memory = _left_by_policy(memory)
    cores = cores_of(usable, root) if numa.cpus is not None else ()
    return Room(nodes=nodes, cpus=usable, memory_nodes=memory, cores=cores)


def _left_by_policy(nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Those that a policy BIND, which the process was started with, leaves of them."""
    try:
        mode, bound = Policy.load().get()
    except OSError:
        return nodes
    return tuple(node for node in nodes if node in bound) if mode == BIND else nodes


def apply(placement: Placement, nodes: tuple[int, ...]) -> Bound:
    """Do it. `nodes` are all that the machine has."""
    problems = list(placement.short)
    if placement.cpus:
        _run_on(placement.cpus, problems)
    mode, node = "", placement.node
    if node is not None:
        mode = _keep_memory_on(node, tuple(other for other in nodes if other != node), problems)
    return Bound(
        node=node if mode else None,
        mode=mode,
        cpus=allowed_cpus(),
        nodes=nodes,
        why=placement.why,
        problems=tuple(problems),
    )


def _run_on(cpus: tuple[int, ...], problems: list[str]) -> None:
    """Every thread of this process; there should be one, which is all that is known where there is no /proc."""
    threads = [0]
    with contextlib.suppress(OSError):
        threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            continue
        except OSError as error:
            problems.append(f"CPUs are not bound to {ranges(cpus)}: {error.strerror}")
            return


def _keep_memory_on(node: int, others: tuple[int, ...], problems: list[str]) -> str:
    """Set the policy and move what lies elsewhere. Returns the name of the mode that keeps memory on the node, or nothing."""
    try:
        policy = Policy.load()
    except OSError as error:
        problems.append(
            f"memory is not bound to node {node}: {LIBRARY} cannot be loaded ({error.strerror or error}); install libnuma"
        )
        return ""
    try:
        mode, given = policy.get()
        if mode != DEFAULT:
            return _kept(mode, given, node, problems)
        policy.prefer(node)
    except OSError as error:
        problems.append(f"memory is not bound to node {node}: {_REASONS.get(error.errno or 0, error.strerror)}")
        return ""
    if others:
        try:
            policy.bring(0, others, node)
        except OSError as error:
            problems.append(
                f"memory that was taken before stays where it is: {_REASONS.get(error.errno or 0, error.strerror)}"
            )
    return MODES[PREFERRED]


def _kept(mode: int, given: tuple[int, ...], node: int, problems: list[str]) -> str:
    """What the process was started with stays."""
    name = MODES.get(mode, f"mode {mode}")
    if mode in (PREFERRED, BIND) and given == (node,):
        return name
    problems.append(
        f"memory is not bound to node {node}: the process was started with the policy {name} "
        f"({ranges(given) or 'no nodes'}), which stays; start it without numactl, or the unit without NUMAPolicy"
    )
    return ""
