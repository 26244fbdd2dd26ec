"""Which addresses tools may reach: the table."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest

from agentflow.tools.address import Addresses, AddressRefused, Origin, is_inside, origin
from agentflow.tools.errors import InvalidTool, ToolUnavailable

INSIDE = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255",
    "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254", "169.254.0.1", "172.16.0.1", "172.31.255.255",
    "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.7",
    "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1", "::7f00:1", "fc00::1",
    "fd00:ec2::254", "fdff::1", "fe80::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "3fff::1", "100::1",
    "5f00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::", "2002:a9fe:a9fe::",
    "2002:c0a8:101::1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "::ffff:0:127.0.0.1",
]  # fmt: skip
OUTSIDE = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
    "128.0.0.1", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.1", "192.167.255.255",
    "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888",
    "2a00::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1",
]  # fmt: skip


async def never(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"{host} was resolved")


@pytest.mark.parametrize("address", INSIDE)
async def test_what_is_not_the_world_outside_is_refused_unless_it_is_allowed(address: str) -> None:
    assert is_inside(ipaddress.ip_address(address))
    with pytest.raises(AddressRefused, match="private network"):
        await Addresses([], never).checked(address, 80)
    written = f"[{address}]:80" if ":" in address else f"{address}:80"
    allowed = Addresses([written], never)
    assert await allowed.checked(address, 80) == (str(ipaddress.ip_address(address)),)
    with pytest.raises(AddressRefused):
        await allowed.checked(address, 81)


@pytest.mark.parametrize("address", OUTSIDE)
async def test_the_world_outside_may_be_reached(address: str) -> None:
    assert not is_inside(ipaddress.ip_address(address))
    assert await Addresses([], never).checked(address, 443) == (str(ipaddress.ip_address(address)),)


@pytest.mark.parametrize(
    "host",
    [
        "127.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "1",
        "0x", "a.1", "a.0x1", "1.2.3.4.5", "256.1.1.1", "[::1", "fe80::1%eth0 x", "::g", "a b", "a..b", "-a", "a/b", "é.fr",
        "\uff11\uff12\uff17.0.0.1", "", ".", "a" * 300, "a\nb", "a@b", "a\\b", "*", "a,b",
    ],
)  # fmt: skip
async def test_a_host_in_an_unusual_form_is_refused_and_not_resolved(host: str) -> None:
    with pytest.raises(AddressRefused):
        await Addresses([], never).checked(host, 80)


async def test_a_name_is_resolved_once_and_only_addresses_that_may_be_reached_are_told() -> None:
    asked = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["10.0.0.1", "8.8.8.8", "::ffff:127.0.0.1", "2606:4700::1111"]

    assert await Addresses([], resolve).checked("API.Example.com", 443) == ("8.8.8.8", "2606:4700::1111")
    assert asked == [("api.example.com", 443)]


async def test_a_name_inside_is_refused_unless_it_is_allowed_by_its_name_and_port() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1", "::1"]

    addresses = Addresses(["LocalHost:8080", "db.internal:80"], resolve)
    assert await addresses.checked("localhost", 8080) == ("127.0.0.1", "::1")
    assert await addresses.checked("localhost.", 8080) == ("127.0.0.1", "::1")
    for host, port in (("localhost", 8081), ("other.internal", 8080), ("rebound.example.com", 443)):
        with pytest.raises(AddressRefused, match="private network"):
            await addresses.checked(host, port)


async def test_a_refusal_says_what_would_allow_it() -> None:
    told = r'where tools reach only what the configuration allows: add reach: \["{}"\] to tools\.http\.stock\.'
    addresses = Addresses(["127.0.0.1:81", "localhost:81"], never, "tools.http.stock")
    with pytest.raises(AddressRefused, match=told.format(r"127\.0\.0\.1:80")):
        await addresses.checked("127.0.0.1", 80)
    for url, written in (
        ("http://127.0.0.1/x", r"127\.0\.0\.1:80"),
        ("http://[::1]:8080", r"\[::1\]:8080"),
        ("https://LOCALHOST", "localhost:443"),
        ("http://a.localhost.:1", r"a\.localhost\.:1"),
    ):
        with pytest.raises(InvalidTool, match=told.format(written)):
            addresses.check(origin(url))
    for url in (
        "http://127.0.0.1:81",
        "http://localhost.:81",
        "http://8.8.8.8",
        "http://any.test",
        "http://nolocalhost",
    ):
        addresses.check(origin(url))


async def test_a_name_without_an_address_may_have_one_later() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("unknown")

    with pytest.raises(ToolUnavailable, match=r"gone\.example\.com has no address"):
        await Addresses([], resolve).checked("gone.example.com", 443)


@pytest.mark.parametrize(
    "entry",
    [
        "", "localhost", "localhost:", ":80", "localhost:0", "localhost:65536", "localhost:x", "::1:80", "[::1]", "127.1:80",
        "a b:80", "h:8²",
    ],
)  # fmt: skip
def test_what_is_allowed_is_written_as_host_and_port(entry: str) -> None:
    with pytest.raises(InvalidTool, match="host:port"):
        Addresses([entry], never)


def test_a_url_has_an_origin() -> None:
    assert origin("https://API.example.com/v1?x=1") == Origin("https", "api.example.com", 443)
    assert origin("http://[::1]:8080") == Origin("http", "::1", 8080)
    assert str(origin("http://[::1]:8080/x")) == "http://[::1]:8080"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a/", "file:///etc/passwd", "//a/b", "a", "", "http://", "http://:80/", "http://a:x/", "http://a:99999/",
        "http://user:pa55word@a/", "http://@a/", "http://127.1/", "http://0x7f000001/", "http://[::1/", "http://a b/",
        "http://a\\@b/", "http://a/\n", "gopher://a", "HTTP:a",
    ],
)  # fmt: skip
def test_a_url_that_leads_nowhere_good_is_refused_and_its_password_not_told(url: str) -> None:
    with pytest.raises(InvalidTool) as caught:
        origin(url)
    assert "pa55word" not in str(caught.value)
