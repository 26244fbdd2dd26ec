"""The network of an ACU: what comes in and goes out, and that nothing of it stays, whatever fails."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripts.box import SCRIPTS, Box, Saboteur, made_box, needs_a_box, without

NETNS = SCRIPTS / "netns.sh"
pytestmark = needs_a_box


@pytest.fixture
def box() -> Iterator[Box]:
    with made_box() as box:
        box.environment["ACU_FIELDS"] = (
            "network.namespace null"  # which needs no reading, a quarter of a second each time
        )
        yield box


def test_it_goes_up_once_and_down_without_a_trace(box: Box) -> None:
    before = box.snapshot()
    assert box.tries(NETNS, "status", "200")[0] == 1
    box.run(NETNS, "up", "200")
    assert box.run(NETNS, "status", "200").count("there") == 7
    up = box.snapshot()
    box.run(NETNS, "up", "200")
    assert box.snapshot() == up
    inside = box.run(NETNS, "exec", "200", "sysctl", "-n", "net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog")
    assert inside.split() == ["4096", "8192"]
    assert box.run(NETNS, "exec", "200", "cat", "/etc/resolv.conf") == "nameserver 192.0.2.53\n"
    assert (
        "memory" in box.run(NETNS, "exec", "200", "ls", "/sys/fs/cgroup")
        or Path("/sys/fs/cgroup/cgroup.controllers").exists()
    )
    box.run(NETNS, "down", "200")
    assert box.snapshot() == before
    box.run(NETNS, "down", "200")


def test_the_configuration_may_name_the_namespace(box: Box, tmp_path: Path) -> None:
    config = tmp_path / "acu.yaml"
    config.write_text("network: {namespace: blue}")
    del box.environment["ACU_FIELDS"]
    before = box.snapshot()
    box.run(NETNS, "up", "200", "--config", config)
    assert "blue" in box.run("ip", "netns", "list")
    box.run(NETNS, "status", "200")  # which remembers
    box.run(NETNS, "down", "200")
    assert box.snapshot() == before


def test_without_either_it_is_refused_before_anything_is_changed(box: Box, tmp_path: Path) -> None:
    before = box.snapshot()
    code, said = box.tries(NETNS, "up", "200", env={"PATH": without(tmp_path, "nft", "iptables")})
    assert code == 1
    assert "nftables" in said
    assert box.snapshot() == before


@pytest.mark.parametrize("before", ["0", "1"])
def test_the_last_acu_gives_forwarding_back_as_it_was(box: Box, before: str) -> None:
    box.run("sysctl", "-q", "-w", f"net.ipv4.ip_forward={before}")
    forwards = ("sysctl", "-n", "net.ipv4.ip_forward")
    for number in ("200", "201"):
        box.run(NETNS, "up", number)
    box.run(NETNS, "down", "200")
    assert box.run(*forwards) == "1\n"
    box.run(NETNS, "down", "201")
    assert box.run(*forwards) == f"{before}\n"


def test_forwarding_that_somebody_turned_off_in_between_stays_off(box: Box) -> None:
    box.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
    box.run(NETNS, "up", "200")
    box.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=0")
    assert box.tries(NETNS, "status", "200")[0] == 1
    box.run(NETNS, "down", "200")
    assert box.run("sysctl", "-n", "net.ipv4.ip_forward") == "0\n"


def test_whichever_command_fails_everything_is_as_before_and_the_reason_comes_last(box: Box, tmp_path: Path) -> None:
    saboteur = Saboteur(tmp_path / "spoilt")
    before = box.snapshot()
    call, failures = 1, 0
    while True:
        saboteur.spoil(call)
        code, said = box.tries(NETNS, "up", "200", env=saboteur.env)
        if len(saboteur.calls()) < call:
            break  # there is no such call: all went well
        if code == 0:  # some may: what is removed before it is made
            box.run(NETNS, "down", "200")
        else:
            failures += 1
            assert said.splitlines()[-1].startswith("error: "), said
        assert box.snapshot() == before, saboteur.calls()[call - 1]
        call += 1
    assert code == 0
    assert failures >= 20


@pytest.mark.parametrize("then", ["up", "down"])
def test_killed_in_the_middle_the_next_up_or_down_finishes(box: Box, tmp_path: Path, then: str) -> None:
    saboteur = Saboteur(tmp_path / "spoilt")
    before = box.snapshot()
    for call in range(1 if then == "up" else 3, 200, 7):
        saboteur.spoil(call, "kill -9 -- -$(ps -o pgid= $$ | tr -d ' ')")
        code, _ = box.tries(NETNS, "up", "200", env=saboteur.env)
        if code == 0:
            break
        if then == "up":
            box.run(NETNS, "up", "200")
            box.run(NETNS, "status", "200")
        box.run(NETNS, "down", "200")
        assert box.snapshot() == before, saboteur.calls()[-1]
    assert call > 20


def test_down_goes_on_over_a_failure_and_the_next_down_does_the_rest(box: Box, tmp_path: Path) -> None:
    saboteur = Saboteur(tmp_path / "spoilt")
    before = box.snapshot()
    box.run(NETNS, "up", "200")
    saboteur.spoil(1)
    box.tries(NETNS, "down", "200", "--dry-run", env=saboteur.env)
    box.run("bash", "-c", "cp -r /run/acu /run/kept")
    deletes = tmp_path / "bin"
    deletes.mkdir()
    (deletes / "nft").write_text(
        '#!/bin/bash\n[[ $1 != delete ]] || { echo spoilt >&2; exit 9; }\nPATH=${PATH#*:} exec nft "$@"\n'
    )
    (deletes / "nft").chmod(0o755)
    code, said = box.tries(NETNS, "down", "200", env={"PATH": f"{deletes}:{saboteur.env['PATH'].partition(':')[2]}"})
    assert code == 1
    assert "failed: nft delete table ip acu200: spoilt" in said
    assert "acu200" not in box.run("ip", "netns", "list")
    box.run(NETNS, "down", "200")
    box.run("rm", "-r", "/run/kept")
    assert box.snapshot() == before


def test_what_is_not_ours_is_refused_and_left(box: Box) -> None:
    box.run("ip", "netns", "add", "acu200")
    before = box.snapshot()
    code, said = box.tries(NETNS, "up", "200")
    assert (code, "network.namespace" in said) == (1, True)
    assert box.snapshot() == before
    box.run("ip", "netns", "del", "acu200")
    box.run("ip", "link", "add", "acu200", "type", "veth", "peer", "name", "theirs")
    before = box.snapshot()
    code, said = box.tries(NETNS, "up", "200")
    assert (code, "ip link del acu200" in said) == (1, True)
    box.run(NETNS, "down", "200")
    assert box.snapshot() == before


LOOKS_LIKE_OURS = """
    ip link add acu200 type veth peer name eth0 netns acu200
    ip address add 10.231.200.1/30 dev acu200
    ip link set acu200 up
    ip -n acu200 address add 10.231.200.2/30 dev eth0
    ip -n acu200 link set eth0 up
    ip -n acu200 route add default via 10.231.200.1
"""


@pytest.mark.parametrize(
    ("made", "advice"),
    [
        ("ip netns add acu200; ip -n acu200 link set lo up", "ip netns del acu200"),
        ("ip netns add x; ip link add acu200 type veth peer name eth0 netns x", "ip link del acu200"),
        ("nft add table ip acu200; nft add chain ip acu200 theirs", "nft delete table ip acu200"),
        ("ip link add v type veth peer name w; ip address add 10.231.200.1/32 dev v", "10.231.200.1/32 on v"),
        ("ip address add 10.231.200.2/32 dev lo", "ACU_SUBNET"),
        ("ip route add blackhole 10.231.200.0/24 table 7", "ACU_SUBNET"),
        ("iptables -I FORWARD -m comment --comment acu200 -j ACCEPT", "iptables"),
    ],
    ids=["namespace", "device", "table", "address", "address-of-lo", "route", "iptables"],
)
def test_what_looks_like_ours_but_is_not_is_refused_told_and_never_removed(box: Box, made: str, advice: str) -> None:
    if made.startswith("iptables") and not shutil.which("iptables"):
        pytest.skip("iptables is not installed")
    box.run("bash", "-euc", made)
    before = box.snapshot()
    code, said = box.tries(NETNS, "up", "200")
    assert (code, advice in said.splitlines()[-1]) == (1, True), said
    assert box.snapshot() == before
    box.run(NETNS, "down", "200")
    assert box.snapshot() == before


def test_a_whole_network_that_somebody_else_made_is_not_taken_over(box: Box) -> None:
    box.run("bash", "-euc", "ip netns add acu200; ip -n acu200 link set lo up" + LOOKS_LIKE_OURS)
    before = box.snapshot()
    assert box.tries(NETNS, "status", "200")[0] == 1
    assert box.tries(NETNS, "up", "200")[0] == 1
    box.run(NETNS, "down", "200")
    assert box.snapshot() == before


def test_addresses_that_lead_elsewhere_are_refused_and_others_taken(box: Box) -> None:
    box.run("ip", "link", "add", "vpn", "type", "veth", "peer", "name", "theirs")
    for end in ("vpn", "theirs"):
        box.run("ip", "link", "set", end, "up")
    box.run("ip", "route", "add", "10.0.0.0/8", "dev", "vpn")
    before = box.snapshot()
    code, said = box.tries(NETNS, "up", "200")
    assert (code, "ACU_SUBNET" in said) == (1, True)
    assert box.snapshot() == before
    box.run(NETNS, "up", "200", env={"ACU_SUBNET": "172.30"})
    assert "172.30.200.2/30" in box.run(NETNS, "exec", "200", "ip", "address")
    box.run(NETNS, "status", "200")  # which asks the device
    box.run(NETNS, "down", "200")
    assert box.snapshot() == before


def test_servers_of_names_come_from_where_the_real_ones_are(box: Box) -> None:
    box.run("bash", "-c", "echo nameserver 127.0.0.53 > /run/box/resolv.conf")
    before = box.snapshot()
    assert "warning" in box.run(NETNS, "up", "200")
    assert box.tries(NETNS, "status", "200")[0] == 1
    box.run("mkdir", "-p", "/run/systemd/resolve")
    box.run("bash", "-c", "echo nameserver 192.0.2.1 > /run/systemd/resolve/resolv.conf")
    box.run(NETNS, "up", "200")
    assert box.run(NETNS, "exec", "200", "cat", "/etc/resolv.conf") == "nameserver 192.0.2.1\n"
    box.run("bash", "-c", "echo nameserver 192.0.2.2 > /run/systemd/resolve/resolv.conf")
    with box.start(
        NETNS,
        "exec",
        "200",
        "bash",
        "-c",
        "echo in; until [ -e /run/box/go ]; do sleep 0.05; done; cat /etc/resolv.conf",
    ) as inside:
        assert inside.stdout
        assert inside.stdout.readline() == "in\n"
        box.run(NETNS, "up", "200")
        box.run("touch", "/run/box/go")
        assert inside.stdout.read() == "nameserver 192.0.2.2\n"
    box.run(NETNS, "down", "200")
    box.run("rm", "-r", "/run/systemd")
    assert box.snapshot() == before


def test_a_file_of_names_that_somebody_wrote_is_used_and_stays(box: Box) -> None:
    box.run("mkdir", "-p", "/etc/netns/acu200")
    box.run("bash", "-c", "echo nameserver 192.0.2.9 > /etc/netns/acu200/resolv.conf")
    before = box.snapshot()
    box.run(NETNS, "up", "200")
    assert box.run(NETNS, "exec", "200", "cat", "/etc/resolv.conf") == "nameserver 192.0.2.9\n"
    box.run(NETNS, "down", "200")
    assert box.snapshot() == before


def test_an_empty_file_of_names_that_somebody_wrote_stays_as_it_is(box: Box) -> None:
    box.run("install", "-D", "/dev/null", "/etc/netns/acu200/resolv.conf")
    box.run(NETNS, "up", "200")
    assert box.run("cat", "/etc/netns/acu200/resolv.conf") == ""
    box.run(NETNS, "down", "200")
    assert box.run("cat", "/etc/netns/acu200/resolv.conf") == ""


@pytest.mark.parametrize(
    "arguments",
    [["up"], ["up", "256"], ["up", "-1"], ["up", "1", "2"], ["on", "1"], ["up", "1", "--what"], ["up", "01"]],
)
def test_wrong_usage_says_how(arguments: list[str]) -> None:
    process = subprocess.run([NETNS, *arguments], check=False, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr.startswith("error: ")
    assert "up|down|status N" in process.stderr
