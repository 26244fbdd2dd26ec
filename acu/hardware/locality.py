"""Locality: whether the memory of the daemon and of its engines lies on the node that they are bound to.

Once the engines are ready, and every minute from then on, a thread reads /proc/PID/numa_maps of each process (numamaps.py).
The kernel walks the page tables for it: about 10 ms a GB, with the process's memory map locked for reading. Where less than
98 % of a process's own memory is on the node, and the node has room, page cache included, the pages are moved there (the
kernel's own NUMA balancing does the same all day; what a driver has pinned stays). Where that did not help it is tried again
after ten minutes. A process that is still short is told of once in the log, and again after it has been well. Nothing is looked
at where nothing is bound, or there is one node and nobody asked.

`told` and `shares` may be asked from any thread: they read one reference that is replaced as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acu.hardware.numa import SLASH, available_mb
from acu.hardware.numamaps import GOOD_SHARE, Pages, parse
from acu.hardware.pin import Bound, Policy

if TYPE_CHECKING:
    from agentflow.status import ServiceStatus

EVERY_S = 60.0
AT_LATEST_S = 60.0
"""After the start, the first look does not wait longer for engines."""
ASK_S = 1.0
TRY_AGAIN_S = 600.0
RESERVE_MB = 256
"""Stays free on a node to which pages are moved."""
DAEMON = "daemon"
MIB = 1 << 20

log = logging.getLogger("acu.numa")


class Locality:
    """The last look, and what was done about it."""

    def __init__(self, bound: Bound, root: Path = SLASH, policy: Callable[[], Policy] = Policy.load) -> None:
        """`policy` is asked when pages are to be moved; it raises OSError where there is none."""
        self._bound = bound
        self._policy = policy
        self._root = root
        self._seen: dict[str, Pages] = {}
        self._warned: set[str] = set()
        self._in_vain: dict[str, float] = {}  # when moving did not help

    @property
    def shares(self) -> dict[str, float]:
        """The part of each process's own memory that lies on the node, 0.0 to 1.0; empty before the first look."""
        node = self._bound.node
        return {} if node is None else {name: pages.share(node) for name, pages in self._seen.items()}

    def told(self) -> dict[str, Any]:
        """For `acu status`: what was bound, what could not be, and where memory lies (shares of it, MiB elsewhere)."""
        node = self._bound.node
        processes = {} if node is None else {name: _told(pages, node) for name, pages in self._seen.items()}
        return {
            "line": self._bound.line,
            "node": node,
            "policy": self._bound.mode or None,
            "cpus": list(self._bound.cpus),
            "problems": list(self._bound.problems),
            "processes": processes,
        }

    def log_binding(self) -> None:
        """Tell what was bound, and what could not be."""
        bound = self._bound.node is not None
        log.info("bound to a NUMA node" if bound else "bound to no NUMA node", extra={"how": self._bound.line})
        for problem in self._bound.problems:
            log.warning("not bound as it should be", extra={"why": problem})

    async def watch(self, status: Callable[[], ServiceStatus]) -> None:
        """Tell what was bound, and look at it for ever. `status` is called on the loop."""
        self.log_binding()
        if self._bound.node is None:
            return
        waited_s = 0.0
        while not status().ready and waited_s < AT_LATEST_S:
            await asyncio.sleep(ASK_S)
            waited_s += ASK_S
        while True:
            await asyncio.to_thread(self.look, {DAEMON: (os.getpid(),), **processes_of(status())})
            await asyncio.sleep(EVERY_S)

    def look(self, processes: Mapping[str, tuple[int, ...]]) -> None:
        """Read where they lie, move what can be moved, and warn of what is still elsewhere."""
        node = self._bound.node
        assert node is not None
        pages = self._read(processes)
        short = {name: found for name, found in pages.items() if found.share(node) < GOOD_SHARE}
        tried = self._bring(node, processes, short)
        pages |= self._read({name: processes[name] for name in tried})
        self._in_vain |= {name: time.monotonic() for name in tried if pages[name].share(node) < GOOD_SHARE}
        self._seen = pages
        for name, found in pages.items():
            self._judge(name, processes[name], found, node)

    def _read(self, processes: Mapping[str, tuple[int, ...]]) -> dict[str, Pages]:
        """Of each that can be read: one that has ended, or belongs to another user, is left out."""
        found = {}
        for name, pids in processes.items():
            texts = []
            for pid in pids:
                try:
                    texts.append((self._root / f"proc/{pid}/numa_maps").read_text(errors="replace"))
                except OSError:
                    continue
            if any(texts):
                found[name] = parse("\n".join(texts))
        return found

    def _bring(self, node: int, processes: Mapping[str, tuple[int, ...]], short: Mapping[str, Pages]) -> list[str]:
        """Move what lies elsewhere, where the node has room and it was not in vain of late. Which of them it was tried for."""
        room_mb = available_mb(node, self._root) - RESERVE_MB
        others = tuple(other for other in self._bound.nodes if other != node)
        tried = []
        for name, found in short.items():
            away_mb = _away(found, node) // MIB
            due = time.monotonic() - self._in_vain.get(name, -TRY_AGAIN_S) >= TRY_AGAIN_S
            if not others or not due or away_mb > room_mb:
                continue
            room_mb -= away_mb
            tried.append(name)
            try:
                stayed = sum(self._policy().bring(pid, others, node) for pid in processes[name])
            except ProcessLookupError:  # it has ended meanwhile
                continue
            except OSError as error:
                log.warning("memory was not moved", extra={"of": name, "to_node": node, "why": error.strerror})
            else:
                log.info("memory moved", extra={"of": name, "to_node": node, "mb": away_mb, "pages_stayed": stayed})
        return tried

    def _judge(self, name: str, pids: tuple[int, ...], found: Pages, node: int) -> None:
        """Warn once of each that is short, and again after it has been well."""
        if found.share(node) >= GOOD_SHARE:
            self._warned.discard(name)
        elif name not in self._warned:
            self._warned.add(name)
            others = ",".join(str(other) for other in self._bound.nodes if other != node)
            log.warning(
                "memory lies on another NUMA node",
                extra={
                    "of": name,
                    "node": node,
                    "there": f"{found.share(node):.1%}",
                    "elsewhere_mb": _away(found, node) // MIB,
                    "then": f"free memory of node {node} (numastat -m), or lower data_plane.hot_layer_mem_mb; it is moved once "
                    f"there is room, or by: migratepages {pids[0]} {others} {node}",
                },
            )


def processes_of(status: ServiceStatus) -> dict[str, tuple[int, ...]]:
    """The pids of each engine that has processes of its own, by its id."""
    engines = (engine for model in status.models for engine in model.engines)
    return {engine.id: engine.info.pids for engine in engines if engine.info is not None and engine.info.pids}


def _away(pages: Pages, node: int) -> int:
    """Bytes of its own memory that are on other nodes."""
    return sum(size for number, size in pages.own.items() if number != node)


def _told(pages: Pages, node: int) -> dict[str, Any]:
    return {
        "share": round(pages.share(node), 4),
        "own_mb": sum(pages.own.values()) // MIB,
        "elsewhere_mb": _away(pages, node) // MIB,
        "files_mb": sum(pages.files.values()) // MIB,
        "files_share": round(pages.file_share(node), 4),
    }
