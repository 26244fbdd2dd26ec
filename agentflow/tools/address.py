"""Addresses: which hosts tools may reach. Pure, but for the resolver that is passed in.

The world outside may be reached. What is not outside may only be where the configuration names it as `host:port`: this
machine, private networks, link-local addresses (clouds tell secrets there), carriers' shared ones, multicast, what is reserved,
and the ways to write any of these in IPv6. A host that is allowed by its name is allowed at whatever address it has.

A name is resolved once, and whoever connects does so to an address that was checked: a second look-up could say something else.
An IPv4 address counts only in its usual form: 127.1, 0x7f000001 and 017700000001 are refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from agentflow.tools.errors import InvalidTool, ToolFailed, ToolUnavailable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name, for a port, the best first. Raises OSError."""

PORTS: Final = {"http": 80, "https": 443}

_INSIDE_4: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this machine, for most systems
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' shared addresses; 100.100.100.200 is a cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's own services, at a public address
        "169.254.0.0/16",  # link-local; 169.254.169.254 is most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # 192.0.0.192 is a cloud's metadata
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_OUTSIDE_6: Final = ipaddress.IPv6Network("2000::/3")
_INSIDE_6: Final = tuple(
    ipaddress.IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20")
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_LOOKS_NUMERIC: Final = re.compile(r"(?:[0-9]+|0[xX][0-9a-fA-F]*)\.?")
_NAME: Final = re.compile(
    r"[a-zA-Z0-9_](?:[a-zA-Z0-9_-]*[a-zA-Z0-9_])?(?:\.[a-zA-Z0-9_](?:[a-zA-Z0-9_-]*[a-zA-Z0-9_])?)*\.?"
)
_LONGEST_NAME: Final = 253
_LOCAL: Final = re.compile(r"(?:.*\.)?localhost\.?")
"""Names that are this machine, whoever is asked."""


class AddressRefused(ToolFailed):
    """The address may not be reached, or is written in a way that is not accepted."""


class Origin(NamedTuple):
    """What a URL leads to; `host` in lower case, and an IPv6 address without its brackets."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def origin(url: str) -> Origin:
    """Of a URL in the configuration. Raises InvalidTool, without a password that it may have in it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidTool("A URL of the tools' configuration is none: correct it.") from error
    if parts.scheme not in PORTS or not host:
        raise InvalidTool(f"{_shown(host)}: a tool's URL must begin with http:// or https://, and name a host.")
    if "@" in parts.netloc:
        raise InvalidTool(f"{_shown(host)}: give no user and password in a URL; put a header into a secret file.")
    if re.search(r"[\s\\\x00-\x1f]", url):
        raise InvalidTool(f"{_shown(host)}: a URL has no blanks or backslashes in it.")
    try:
        _literal(host)
    except AddressRefused as error:
        raise InvalidTool(str(error)) from error
    return Origin(parts.scheme, host, PORTS[parts.scheme] if port is None else port)


def is_inside(address: Address) -> bool:
    """Whether it is not a public address of the world outside. IPv6 that stands for an IPv4 address is as that one is."""
    if isinstance(address, ipaddress.IPv4Address):
        return any(address in network for network in _INSIDE_4)
    within = _embedded(address)
    if within is not None:
        return is_inside(within)
    return address not in _OUTSIDE_6 or any(address in network for network in _INSIDE_6)


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that packets to this one may go to: mapped, 6to4, or by the well-known prefix of NAT64."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class Addresses:
    """`allowed`: hosts inside that may be reached all the same, each as `host:port`. Raises InvalidTool for what is none.

    `source`: the section of the configuration whose `reach` that is, for messages.
    """

    def __init__(self, allowed: Iterable[str], resolve: Resolver, source: str = "the source of the tool") -> None:
        self._allowed = frozenset(_host_and_port(each) for each in allowed)
        self._resolve = resolve
        self._source = source

    def check(self, to: Origin) -> None:
        """As `checked`, as far as can be told without asking for a name. Raises InvalidTool."""
        literal = _literal(to.host)
        inside = is_inside(literal) if literal is not None else _LOCAL.fullmatch(to.host) is not None
        if inside and (_canonical(to.host), to.port) not in self._allowed:
            raise InvalidTool(self._refusal(to.host, to.port))

    async def checked(self, host: str, port: int) -> tuple[str, ...]:
        """The addresses to connect to, of which there is one at least. Raises AddressRefused, ToolUnavailable."""
        host = host.lower()
        literal = _literal(host)
        allowed = (_canonical(host), port) in self._allowed
        if literal is not None:
            found: Sequence[str] = (str(literal),)
        else:
            try:
                found = await self._resolve(host.rstrip("."), port)
            except (OSError, UnicodeError) as error:
                raise ToolUnavailable(f"The name {_shown(host)} has no address now.") from error
        usable = [address for address in map(_parsed, found) if allowed or not is_inside(address)]
        if not usable:
            raise AddressRefused(self._refusal(host, port))
        return tuple(map(str, usable))

    def _refusal(self, host: str, port: int) -> str:
        place = f"[{_shown(host)}]:{port}" if ":" in host else f"{_shown(host)}:{port}"
        return (
            f"{place} is on this machine or in a private network, where tools reach only what the configuration allows: "
            f'add reach: ["{place}"] to {self._source}.'
        )


def _literal(host: str) -> Address | None:
    """The address that the host is, or None for a name. Raises AddressRefused for neither."""
    if ":" in host:
        try:
            return ipaddress.IPv6Address(host)
        except ValueError as error:
            raise AddressRefused(f"{_shown(host)} is no IPv6 address.") from error
    if _LOOKS_NUMERIC.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        try:
            return ipaddress.IPv4Address(host)
        except ValueError as error:
            raise AddressRefused(f"{_shown(host)} is no IPv4 address of the form 192.0.2.1.") from error
    if len(host) > _LONGEST_NAME or not _NAME.fullmatch(host):
        raise AddressRefused(f"{_shown(host)} is no name of a host.")
    return None


def _parsed(text: str) -> Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise ToolUnavailable("A name has an address that cannot be used.") from error


def _canonical(host: str) -> str:
    literal = _literal(host)
    return str(literal) if literal is not None else host.lower().rstrip(".")


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 1 << 16
        or ("[" in host) != (":" in host)
    ):
        raise InvalidTool(f"{text[:100]!r} is no host:port, such as localhost:8080 or [::1]:8080.")
    try:
        return _canonical(host.removeprefix("[").removesuffix("]")), int(port)
    except AddressRefused as error:
        raise InvalidTool(f"{text[:100]!r} is no host:port: {error}") from error


def _shown(host: str) -> str:
    return ascii(host[:100])[1:-1] if host else "(no host)"
