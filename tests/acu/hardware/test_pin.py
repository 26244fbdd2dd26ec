"""acu.hardware.pin: real bindings on this machine, each in a process of its own; and the kernel's and the library's refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from acu.hardware.numa import read_nodes

BEFORE = """
import ctypes, json, os, sys
from pathlib import Path
from acu.config import AcuConfig, NumaConfig
from acu.hardware import probe_machine, pin
from acu.hardware.numamaps import parse

def bind(**numa):
    return pin.bind(AcuConfig(numa=NumaConfig(**numa)), probe_machine())

def tell(bound, **more):
    policy = pin.Policy.load().get()
    print(json.dumps({
        "node": bound.node, "mode": bound.mode, "cpus": bound.cpus, "why": bound.why, "problems": bound.problems,
        "line": bound.line, "policy": policy, "affinity": sorted(os.sched_getaffinity(0)), **more}))
"""

REFUSE = """
# A seccomp filter that answers one system call with EPERM, as a container's does.
def refuse(number):
    class Step(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("steps", ctypes.POINTER(Step))]
    steps = (Step * 4)(Step(0x20, 0, 0, 0), Step(0x15, 0, 1, number), Step(0x06, 0, 0, 0x00050001), Step(0x06, 0, 0, 0x7FFF0000))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Program(4, steps)), 0, 0) == 0, ctypes.get_errno()
"""
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
SCHED_GETAFFINITY = {"x86_64": 204, "aarch64": 123}

pytestmark = pytest.mark.skipif(not read_nodes(), reason="this kernel has no NUMA")


def told(code: str, cpus: set[int] | None = None) -> dict[str, Any]:
    """What the code tells in a process of its own, started with an affinity as taskset gives it."""
    run = subprocess.run(
        [sys.executable, "-c", BEFORE + textwrap.dedent(code)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=None if cpus is None else lambda: os.sched_setaffinity(0, cpus),
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def first_node() -> int:
    """A node with CPUs of this process."""
    return next(node.id for node in read_nodes() if set(node.cpus) & os.sched_getaffinity(0))


def test_what_is_asked_for_is_in_force_for_threads_and_children_too() -> None:
    node = first_node()
    found = told(f"""
        import subprocess, threading
        bound = bind(node={node}, cpus=1)
        seen = []
        thread = threading.Thread(target=lambda: seen.append([pin.Policy.load().get(), sorted(os.sched_getaffinity(0))]))
        thread.start(); thread.join()
        child = subprocess.run([sys.executable, "-c", "import os; from acu.hardware.pin import Policy; "
            "print([list(Policy.load().get()[1]), sorted(os.sched_getaffinity(0))])"], capture_output=True, text=True)
        tell(bound, thread=seen[0], child=child.stdout)
    """)
    assert (found["node"], found["mode"], found["problems"]) == (node, "preferred", [])
    assert found["policy"] == [1, [node]]
    assert len(found["cpus"]) == 1
    assert found["affinity"] == found["cpus"]
    assert found["thread"] == [[1, [node]], found["cpus"]]
    assert found["child"] == f"[[{node}], {found['cpus']}]\n"
    assert found["line"] == f"memory on node {node} (preferred; numa.node is {node}), CPUs {found['cpus'][0]}"


def test_memory_that_is_touched_afterwards_lies_on_the_node_and_so_does_what_was_there() -> None:
    node = first_node()
    found = told(f"""
        bound = bind(node={node})
        memory = bytearray(64 << 20)
        for page in range(0, len(memory), 4096): memory[page] = 1
        pages = parse(Path("/proc/self/numa_maps").read_text())
        tell(bound, share=pages.share({node}), own=sum(pages.own.values()))
    """)
    assert found["share"] == 1.0
    assert found["own"] >= 64 << 20


def test_an_affinity_that_was_given_is_never_widened() -> None:
    cpu = max(os.sched_getaffinity(0))
    node = next(node.id for node in read_nodes() if cpu in node.cpus)
    found = told(f"tell(bind(node={node}))", {cpu})
    assert (found["affinity"], found["cpus"], found["problems"]) == ([cpu], [cpu], [])


def test_fewer_cpus_than_asked_for_are_said() -> None:
    node = next(node for node in read_nodes() if node.id == first_node())
    if len(node.cpus) < 2:
        pytest.skip("this node has one CPU")
    cpu = min(set(node.cpus) & os.sched_getaffinity(0))
    found = told(f"tell(bind(node={node.id}, cpus=2))", {cpu})
    assert found["affinity"] == [cpu]
    assert found["problems"] == [f"numa.cpus is 2, and this process may use 1 of node {node.id} ({cpu})"]


def test_a_policy_that_was_given_is_kept() -> None:
    node = first_node()
    code = f"""
        library = ctypes.CDLL("libnuma.so.1")
        assert library.set_mempolicy(MODE, pin._mask(({node},)), ctypes.c_ulong(1025)) == 0
        tell(bind(node={node}))
    """
    bound = told(code.replace("MODE", "2"))
    assert (bound["node"], bound["mode"], bound["policy"], bound["problems"]) == (node, "bind", [2, [node]], [])
    interleaved = told(code.replace("MODE", "3"))
    assert (interleaved["node"], interleaved["policy"]) == (None, [3, [node]])
    (problem,) = interleaved["problems"]
    assert (
        f"the process was started with the policy interleave ({node}), which stays; start it without numactl" in problem
    )


def test_null_and_one_node_change_nothing() -> None:
    found = told("tell(bind(node=None, cpus=1))")
    assert (found["node"], found["policy"], found["problems"]) == (None, [0, []], [])
    assert found["affinity"] == sorted(os.sched_getaffinity(0))
    if len(read_nodes()) == 1:
        found = told("tell(bind())")
        assert (found["node"], found["policy"], found["why"]) == (None, [0, []], "all memory is on one node")
        assert found["affinity"] == sorted(os.sched_getaffinity(0))


def test_a_kernel_that_does_not_permit_it_is_said_and_the_daemon_goes_on() -> None:
    number = SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        pytest.skip("the number of the system call is not known here")
    node = first_node()
    found = told(REFUSE + f"refuse({number})\ntell(bind(node={node}, cpus=1))")
    assert (found["node"], found["policy"], len(found["affinity"])) == (None, [0, []], 1)
    (problem,) = found["problems"]
    assert problem.startswith(f"memory is not bound to node {node}: the kernel does not permit it (a seccomp filter")


def test_a_missing_library_is_said_and_the_daemon_goes_on() -> None:
    node = first_node()
    found = told(f"""
        there, pin.LIBRARY = pin.LIBRARY, "libnuma.so.0"
        bound = bind(node={node}, cpus=1)
        pin.LIBRARY = there
        tell(bound)
    """)
    assert (found["node"], found["policy"], len(found["affinity"])) == (None, [0, []], 1)
    (problem,) = found["problems"]
    assert problem.startswith(f"memory is not bound to node {node}: libnuma.so.0 cannot be loaded (")
    assert problem.endswith("; install libnuma")


def test_pages_are_moved_and_a_node_that_is_not_there_is_an_error() -> None:
    node = first_node()
    found = told(f"""
        bound = bind(node={node})
        stayed = pin.Policy.load().bring(0, ({node},), {node})
        try:
            pin.Policy.load().bring(0, ({node},), 1000)
        except OSError as error:
            tell(bound, stayed=stayed, refused=error.errno)
    """)
    assert found["stayed"] == 0
    assert found["refused"] > 0


def test_binding_finds_one_thread_and_loads_nothing_heavy() -> None:
    found = told("""
        bound = bind(node=None)
        heavy = [name for name in ("numa", "torch", "vllm", "rich", "aiohttp", "prometheus_client") if name in sys.modules]
        tell(bound, threads=len(list(Path("/proc/self/task").iterdir())), heavy=heavy)
    """)
    assert (found["threads"], found["heavy"]) == (1, [])


def test_an_affinity_that_may_not_be_asked_for_is_read_from_proc() -> None:
    number = SCHED_GETAFFINITY[os.uname().machine]
    tail = f"""
from acu.hardware.numa import allowed_cpus
before = allowed_cpus()
refuse({number})
try:
    os.sched_getaffinity(0)
except PermissionError:
    print(json.dumps({{"same": allowed_cpus() == before}}))
"""
    assert told(REFUSE + tail) == {"same": True}
