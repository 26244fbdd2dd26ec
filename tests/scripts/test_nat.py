"""The roads of an ACU: out by NAT, in by nothing, and neither to the box itself nor to what its cloud tells it."""

import contextlib
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripts.box import SCRIPTS, Box, made_box, needs_a_box, without

NETNS = SCRIPTS / "netns.sh"
SERVER = """
    import http.server, os
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.client_address[0].encode())
        def log_message(self, *args): pass
    server = http.server.HTTPServer(("0.0.0.0", 8080), Answer)
    print("serves", os.getpid(), flush=True)
    server.serve_forever()
"""
ASK = "import urllib.request as u, sys; print(u.urlopen(f'http://{sys.argv[1]}:8080', timeout=0.5).read().decode())"

pytestmark = needs_a_box
needs_iptables = pytest.mark.skipif(not shutil.which("iptables"), reason="iptables is not installed")


@pytest.fixture
def box() -> Iterator[Box]:
    with made_box() as box:
        box.environment["ACU_FIELDS"] = (
            "network.namespace null"  # which needs no reading, a quarter of a second each time
        )
        yield box


@contextlib.contextmanager
def serving(box: Box, *where: str | Path) -> Iterator[None]:
    """A server on port 8080, which ends with the block."""
    with box.start(*where, "python3", "-c", textwrap.dedent(SERVER)) as server:
        assert server.stdout
        pid = server.stdout.readline().removeprefix("serves ").strip()
        try:
            yield
        finally:
            box.run("kill", "-9", pid)


def add_outside(box: Box) -> None:
    """Another machine, 198.51.100.2, which knows the way to the namespaces."""
    for command in (
        "ip netns add outside",
        "ip link add wan type veth peer name wan netns outside",
        "ip address add 198.51.100.1/24 dev wan",
        "ip link set wan up",
        "ip -n outside address add 198.51.100.2/24 dev wan",
        "ip -n outside link set wan up",
        "ip -n outside route add 10.231.0.0/16 via 198.51.100.1",
    ):
        box.run(*command.split())


def check_roads(box: Box, env: dict[str, str]) -> None:
    """A tool inside reaches a server outside, which sees the box; and from there and from another ACU nobody reaches in."""
    before = box.snapshot()
    box.run(NETNS, "up", "200", env=env)
    box.run(NETNS, "up", "201", env=env)
    box.run(NETNS, "status", "200", env=env)
    outside, inside = ("ip", "netns", "exec", "outside"), (NETNS, "exec", "200")
    with serving(box, *outside), serving(box, *inside):
        assert box.run(*inside, "python3", "-c", ASK, "198.51.100.2") == "198.51.100.1\n"
        for other in (outside, (NETNS, "exec", "201")):
            code, said = box.tries(*other, "python3", "-c", ASK, "10.231.200.2")
            assert code != 0
            assert "timed out" in said
    box.run(NETNS, "down", "200", env=env)
    box.run(NETNS, "down", "201", env=env)
    assert box.snapshot() == before


def test_a_tool_inside_reaches_a_server_outside_as_the_box_and_nobody_reaches_in(box: Box) -> None:
    add_outside(box)
    check_roads(box, {})


@needs_iptables
def test_where_the_box_forwards_nothing_by_itself_the_roads_are_the_same(box: Box) -> None:
    add_outside(box)
    box.run("iptables", "-w", "-P", "FORWARD", "DROP")
    check_roads(box, {})


def make_chains(box: Box) -> None:
    """Those of iptables itself, which come with the first rule and stay."""
    for table, chain in (("nat", "POSTROUTING"), ("filter", "FORWARD"), ("filter", "INPUT")):
        box.run("iptables", "-w", "-t", table, "-P", chain, "ACCEPT")


@needs_iptables
def test_without_nft_the_roads_are_made_by_iptables(box: Box, tmp_path: Path) -> None:
    add_outside(box)
    make_chains(box)
    check_roads(box, {"PATH": without(tmp_path, "nft")})


def test_a_firewall_of_nft_that_forwards_nothing_is_told(box: Box) -> None:
    box.run("nft", "table inet wall { chain forward { type filter hook forward priority filter; policy drop; }; }")
    before = box.snapshot()
    assert "warning: the table inet wall of nft" in box.run(NETNS, "up", "200")
    box.run(NETNS, "down", "200")
    assert box.snapshot() == before


@pytest.fixture
def attacked(box: Box) -> Box:
    """The box with a machine outside, a server on 8080 of the box itself, and one where a cloud's metadata is."""
    add_outside(box)
    for command in (
        "ip -n outside address add 169.254.169.254/32 dev wan",
        "ip route add 169.254.169.254/32 via 198.51.100.2",
    ):
        box.run(*command.split())
    return box


HOSTS = ("10.231.200.1", "198.51.100.1")  # of the box: the veth's, and any other
METADATA = "169.254.169.254"


def reached(box: Box, *addresses: str) -> list[str]:
    """Those on which a tool inside is answered; none keeps it waiting."""
    answered = []
    for address in addresses:
        code, said = box.tries(NETNS, "exec", "200", "python3", "-c", ASK, address)
        assert "timed out" not in said
        if code == 0:
            answered.append(address)
    return answered


@pytest.mark.parametrize("lacks", [(), ("nft",)], ids=["nft", "iptables"])
def test_from_inside_neither_the_box_nor_the_metadata_of_its_cloud_is_reached_unless_asked_for(
    attacked: Box, tmp_path: Path, lacks: tuple[str, ...]
) -> None:
    if lacks and not shutil.which("iptables"):
        pytest.skip("iptables is not installed")
    box = attacked
    if lacks:
        make_chains(box)
    env = {"PATH": without(tmp_path, *lacks)} if lacks else {}
    before = box.snapshot()
    with serving(box), serving(box, "ip", "netns", "exec", "outside"):
        box.run(NETNS, "up", "200", env=env)
        everything = (*HOSTS, METADATA, "198.51.100.2")
        assert reached(box, *everything) == ["198.51.100.2"]
        box.run(NETNS, "up", "200", env=env | {"ACU_HOST_PORTS": "9,8080"})
        box.run(NETNS, "up", "200", env=env)  # stays as it was asked for
        assert reached(box, *everything) == [*HOSTS, "198.51.100.2"]
        assert "TCP to 9,8080" in box.run(NETNS, "status", "200", env=env)
        box.run(NETNS, "up", "200", env=env | {"ACU_HOST_PORTS": "none", "ACU_METADATA": "open"})
        assert reached(box, *everything) == [METADATA, "198.51.100.2"]
        box.run(NETNS, "up", "200", env=env | {"ACU_HOST_PORTS": "all"})
        assert reached(box, *everything) == list(everything)
        box.run(NETNS, "status", "200", env=env)
    box.run(NETNS, "down", "200", env=env)
    assert box.snapshot() == before


@pytest.mark.parametrize("lacks", [(), ("nft",)], ids=["nft", "iptables"])
def test_what_the_box_hands_on_to_a_container_is_a_port_of_the_box(
    box: Box, tmp_path: Path, lacks: tuple[str, ...]
) -> None:
    if lacks and not shutil.which("iptables"):
        pytest.skip("iptables is not installed")
    env = {"PATH": without(tmp_path, *lacks)} if lacks else {}
    add_outside(box)
    box.run("ip", "address", "add", "192.0.2.7/32", "dev", "wan")
    box.run(
        "nft",
        "table ip published { chain in { type nat hook prerouting priority dstnat; "
        "ip daddr 192.0.2.7 tcp dport 8080 dnat to 198.51.100.2:8080; }; }",
    )
    with serving(box, "ip", "netns", "exec", "outside"):
        box.run(NETNS, "up", "200", env=env)
        assert reached(box, "192.0.2.7", "198.51.100.2") == ["198.51.100.2"]
        box.run(NETNS, "status", "200", env=env)
        box.run(NETNS, "up", "200", env=env | {"ACU_HOST_PORTS": "8080"})
        assert reached(box, "192.0.2.7") == ["192.0.2.7"]
    box.run(NETNS, "down", "200", env=env)


@pytest.mark.parametrize("lacks", [(), ("nft",)], ids=["nft", "iptables"])
def test_walls_that_cannot_be_made_anew_stay_or_the_link_is_down(
    attacked: Box, tmp_path: Path, lacks: tuple[str, ...]
) -> None:
    if lacks and not shutil.which("iptables"):
        pytest.skip("iptables is not installed")
    box, path = attacked, without(tmp_path, *lacks)
    if lacks:
        make_chains(box)
    env = {"PATH": path}
    before = box.snapshot()
    with serving(box):
        box.run(NETNS, "up", "200", env=env)
        failing = tmp_path / "failing"
        failing.mkdir()
        program = shutil.which("iptables" if lacks else "nft")
        (failing / Path(program or "").name).write_text(
            f'#!/bin/sh\ncase "$*" in *8080*) exit 1 ;; esac\nexec {program} "$@"\n'
        )
        for file in failing.iterdir():
            file.chmod(0o755)
        code, _ = box.tries(NETNS, "up", "200", env={"PATH": f"{failing}:{path}", "ACU_HOST_PORTS": "9,8080"})
        assert code != 0
        assert box.tries(NETNS, "exec", "200", "python3", "-c", ASK, HOSTS[0])[0] != 0
        box.run(NETNS, "up", "200", env=env)
        box.run(NETNS, "status", "200", env=env)
        assert reached(box, HOSTS[0]) == []
    box.run(NETNS, "down", "200", env=env)
    assert box.snapshot() == before


def test_the_box_is_not_reached_by_ipv6_either(box: Box) -> None:
    box.run(NETNS, "up", "200")
    assert "inet6" not in box.run("ip", "address", "show", "dev", "acu200")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ACU_HOST_PORTS", "http"), ("ACU_HOST_PORTS", "0"), ("ACU_HOST_PORTS", "65536"), ("ACU_METADATA", "yes")],
)
def test_a_door_that_is_none_is_refused(box: Box, variable: str, value: str) -> None:
    before = box.snapshot()
    code, said = box.tries(NETNS, "up", "200", env={variable: value})
    assert (code, f"not '{value}'" in said) == (2, True)
    assert box.snapshot() == before
