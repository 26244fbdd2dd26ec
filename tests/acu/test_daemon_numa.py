"""The daemon on its NUMA node: all its threads are bound, it tells so everywhere, and what cannot be is refused or said."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from acu.hardware.numa import cpu_list, read_nodes
from tests.acu.running import DaemonFactory, RunningDaemon, acu, until

pytestmark = pytest.mark.skipif(not read_nodes(), reason="this kernel has no NUMA")


def threads(running: RunningDaemon) -> dict[str, tuple[tuple[int, ...], set[str]]]:
    """The CPUs of each of its threads, and the policies of the thread's mappings."""
    found = {}
    for task in Path(f"/proc/{running.pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        cpus = next(line.partition(":")[2] for line in lines if line.startswith("Cpus_allowed_list"))
        policies = {line.split()[1] for line in (task / "numa_maps").read_text().splitlines()}
        found[task.name] = (cpu_list(cpus), policies)
    return found


def local_ratio(running: RunningDaemon) -> float:
    """The daemon's, from /metrics over the unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(running.socket))
        client.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        with client.makefile("rb") as answer:
            text = answer.read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith('acu_numa_local_ratio{process="daemon"}'))
    return float(line.split()[-1])


def test_all_of_a_daemon_is_bound_and_it_is_told_everywhere(
    daemon: DaemonFactory, clean_environ: dict[str, str]
) -> None:
    node = next(node for node in read_nodes() if set(node.cpus) & os.sched_getaffinity(0))
    running = daemon({"numa": {"node": node.id, "cpus": 1}})
    until(lambda: bool(running.status()["daemon"]["numa"]["processes"]), "the first look")

    told = running.status()["daemon"]["numa"]
    (cpu,) = told["cpus"]
    assert cpu in node.cpus
    assert (told["node"], told["policy"], told["problems"]) == (node.id, "preferred", [])
    assert told["processes"]["daemon"]["share"] >= 0.98
    assert told["processes"]["daemon"]["own_mb"] > 10

    found = threads(running)
    assert len(found) > 3
    assert {cpus for cpus, _ in found.values()} == {(cpu,)}
    assert all(policies <= {f"prefer:{node.id}", "default"} for _, policies in found.values())
    assert all(f"prefer:{node.id}" in policies for _, policies in found.values())

    assert local_ratio(running) >= 0.98
    table = acu("status", "--socket", str(running.socket), environ=clean_environ).stdout
    assert f"memory on node {node.id} (preferred; numa.node is {node.id}), CPUs {cpu}; there: daemon" in " ".join(
        table.split()
    )
    bound = [line for line in running.log_lines() if line["event"] == "bound to a NUMA node"]
    assert [line["how"] for line in bound] == [told["line"]]


def test_what_cannot_be_is_refused_by_a_start_and_by_the_check(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    missing = max(node.id for node in read_nodes()) + 7
    file = tmp_path / "acu.yaml"
    file.write_text(f"network: {{unix_socket: {tmp_path}/acu.sock, bind_addr: null}}\nnuma: {{node: {missing}}}\n")
    for command in (("serve", "--engine", "scripted", "-c", str(file)), ("config", "check", str(file))):
        done = acu(*command, environ=clean_environ)
        assert done.returncode != 0
        assert f"numa.node: {missing} does not exist; there" in done.stderr + done.stdout


def test_on_one_node_nothing_is_bound_and_that_is_told(daemon: DaemonFactory) -> None:
    if len(read_nodes()) > 1:
        pytest.skip("this machine has several nodes")
    running = daemon()
    told = running.status()["daemon"]["numa"]
    assert (told["node"], told["problems"]) == (None, [])
    assert told["cpus"] == sorted(os.sched_getaffinity(0))
    assert told["line"].startswith("memory not bound (all memory is on one node), CPUs ")
    assert {policy for _, policies in threads(running).values() for policy in policies} == {"default"}
