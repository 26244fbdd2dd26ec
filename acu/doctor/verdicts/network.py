"""Verdicts on the addresses that the daemon listens on."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from acu.doctor.examination import Address, Examination
from acu.doctor.findings import Check, Sign


def _is_tcp(address: Address) -> bool:
    return not address.address.startswith(("/", "unix:"))


def address(examination: Examination) -> Iterator[Sign]:
    """Addresses that somebody else has."""
    for one in examination.addresses:
        if one.held_by is None or one.answers:
            continue
        detail = f" ({one.detail})" if one.detail else ""
        if _is_tcp(one):
            port = one.address.rpartition(":")[2]
            do, run = "End it, or set network.bind_addr to another port.", f"ss -ltnp {quote(f'sport = :{port}')}"
        else:
            path = one.address.removeprefix("unix:")
            do, run = "End it, or set network.unix_socket to another path.", f"ss -lxp src {quote(path)}"
        yield Sign(
            "error", f"{one.address} is held by {one.held_by}, which does not answer as an ACU{detail}", do, (run,)
        )


def daemon(examination: Examination) -> Iterator[Sign]:
    """Nobody answers yet."""
    free = [one.address for one in examination.addresses if one.held_by is None and not one.answers]
    if len(free) == len(examination.addresses):
        yield Sign(
            "note",
            f"no ACU answers at {', '.join(free)}",
            "Start it, by this, by scripts/acu-up 0, or by systemctl start acu@0.",
            ("acu serve",),
        )


def full(examination: Examination) -> Iterator[Sign]:
    """An ACU that takes no more connections."""
    for one in examination.addresses:
        if one.full:
            yield Sign(
                "warning",
                f"the ACU at {one.address} has all its connections taken",
                "See who holds them; end what is not wanted, or set network.max_connections to more.",
                (
                    f"ss -tnp state established {quote('sport = :' + one.address.rpartition(':')[2])}"
                    if _is_tcp(one)
                    else f"ss -xp src {quote(one.address.removeprefix('unix:'))}",
                ),
            )


def _answering(examination: Examination) -> str:
    return "an ACU answers at " + ", ".join(one.address for one in examination.addresses if one.answers)


CHECKS = (
    Check(
        id="network.address",
        worst="error",
        looks_at="who holds the configured addresses",
        verdict=address,
        well="nobody else holds the daemon's addresses",
        applies=lambda e: bool(e.addresses),
        why="The daemon does not start while another process has its address.",
    ),
    Check(
        id="network.daemon",
        worst="note",
        looks_at="whether an ACU answers",
        verdict=daemon,
        well=_answering,
        applies=lambda e: bool(e.addresses) and not any(True for _ in address(e)),
        why="Clients are refused until it runs.",
    ),
    Check(
        id="network.full",
        worst="warning",
        looks_at="whether an ACU that answers has connections left",
        verdict=full,
        well="the ACU that answers takes more connections",
        applies=lambda e: any(one.answers for one in e.addresses),
        why="New clients are told 503 until others go.",
    ),
)
