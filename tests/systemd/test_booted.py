"""ACUs on a box that systemd runs: installed, upgraded, stopped, woken and taken away, with all that systemd does for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.systemd.booted import CONFIG, PYTHON, Booted, booted

INSTALL = f"/srv/checkout/scripts/install --python {PYTHON}"
SEEN = r"""
find /etc /etc/netns /opt /usr/local /var/lib /var/cache /run -xdev -not -path '/run/systemd*' -not -path '/run/credentials*' \
  -not -path '/run/log*' -not -path '/var/lib/systemd*' \
  -not -regex '/etc/\(passwd\|group\|shadow\|gshadow\|[.]pwd[.]lock\)-?' | sort
cat /etc/passwd /etc/group
find /run /tmp -maxdepth 1 | sort
ip -o link; ip netns list; nft list ruleset; sysctl net.ipv4.ip_forward
systemctl --all --plain --no-legend list-units 'acu*'
"""

pytestmark = pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("booted")) as box:
        yield box


@pytest.fixture(autouse=True)
def seen(box: Booted) -> Iterator[None]:
    """Each test begins with configurations alone, and leaves nothing."""
    before = box.run(SEEN)
    box.run("mkdir /etc/acu; ip link set lo up")
    for number in (230, 231):
        box.run(f"cat >/etc/acu/{number}.yaml <<'C'\n{CONFIG.format(number=number)}\nC")
    yield
    assert box.run(SEEN) == before


def processes(box: Booted) -> list[str]:
    return box.run("for n in 230 231; do systemctl show -P MainPID acu@$n; done").split()


def ready(box: Booted, number: int) -> str:
    """Wait until it is, by the face that people use."""
    ask = f"/opt/acu/.venv/bin/acu status --socket /run/acu/{number}.sock"
    return box.run(f"for _ in $(seq 50); do {ask} && exit; sleep 0.2; done; exit 1")


def test_two_acus_live_side_by_side_are_upgraded_and_go(box: Booted) -> None:
    first = box.run(f"{INSTALL} 230")
    assert "API key (shown this once, and kept nowhere): sk-acu-" in first
    ready(box, 230)
    alone = processes(box)[0]
    box.run(f"{INSTALL} 231 --namespace")
    ready(box, 231)
    both = processes(box)
    assert both[0] == alone, "it was not disturbed"
    addresses = f"nsenter -t {both[1]} -n ip -o -4 addr"
    assert "10.231.231.2/30" in box.run(addresses)
    assert "10.231.231.2/30" not in box.run(addresses.replace(both[1], both[0]))
    box.run("echo >>/srv/checkout/README.md")
    upgraded = box.run(f"{INSTALL} 230")
    assert "stopping acu@230.service acu@231.service acu@230.socket acu@231.socket" in upgraded
    ready(box, 230)
    ready(box, 231)
    assert not set(processes(box)) & set(both)
    assert "acu231" in box.run("ip netns list")
    box.run(f"{INSTALL} 231")
    assert "acu231" not in box.run("ip netns list"), "the namespace goes with the option"
    ready(box, 231)
    box.run(f"{INSTALL} 231 --uninstall --purge")
    ready(box, 230)
    box.run(f"{INSTALL} 230 --uninstall --purge")


def test_a_request_wakes_the_daemon_and_the_host_is_there_while_it_is(box: Booted) -> None:
    box.run(f"{INSTALL} 230")
    before = processes(box)[0]
    box.run("systemctl restart acu@230.socket")
    ready(box, 230)
    assert processes(box)[0] != before, "it has the new sockets"
    box.run("systemctl stop acu@230.service 2>&1")
    gone = "for _ in $(seq 50); do [[ $(systemctl is-active acu-host@230) != inactive ]] || exit 0; sleep 0.1; done; exit 1"
    box.run(gone)
    ready(box, 230)
    assert box.run("systemctl is-active acu-host@230 acu@230.service acu@230.socket").split() == ["active"] * 3
    box.run("systemctl start acu.target; systemctl stop acu.target")
    box.run(gone)
    assert box.run("systemctl is-active acu@230.service acu@230.socket", check=False).split() == ["inactive"] * 2
    box.run(f"rm -f /etc/acu/231.yaml; {INSTALL} 230 --uninstall --purge")


def test_what_does_not_start_leaves_nothing_or_the_former(box: Booted) -> None:
    file = "/srv/checkout/acu/daemon.py"
    box.run(f"cp {file} /srv/whole; sed -i '1i raise SystemExit(7)' {file}")
    told = box.run(f"{INSTALL} 230", check=False)
    assert "the daemon does not start; what it says stands above." in told
    assert not {"acu", "acu-host", "acu-daemon"} & set(box.run("ls /run /var/lib /var/cache").split())
    assert box.run("systemctl --plain --no-legend list-units 'acu@*' 'acu-host@*'") == ""
    assert box.run("ls -A /opt /usr/local/lib /etc/systemd/system | grep acu", check=False) == ""
    box.run(f"cp /srv/whole {file}; {INSTALL} 230")
    ready(box, 230)
    box.run(f"sed -i '1i raise SystemExit(7)' {file}")
    assert "it failed: what this run did is undone" in box.run(f"{INSTALL} 230", check=False)
    ready(box, 230)
    box.run(f"cp /srv/whole {file}; rm -f /etc/acu/231.yaml; {INSTALL} 230 --uninstall --purge")
