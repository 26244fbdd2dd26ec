"""Verdicts on the card's health: its memory, its clocks, and what its driver has reported to the kernel's log."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Final

from acu.doctor.examination import Examination, Xid
from acu.doctor.findings import Check, Level, Sign
from acu.doctor.verdicts.gpu import card_of
from acu.hardware.report import Gpu

HELD: Final[tuple[tuple[int, Level, str, str], ...]] = (
    (
        64 | 32,
        "warning",
        "it is too hot",
        "See the box's fans and air flow; a card without fans of its own needs the server's.",
    ),
    (
        128 | 8,
        "warning",
        "the board slows it down, for heat or power",
        "See the power supplies, the card's cables and heat.",
    ),
    (4, "note", "it is at its power limit", "At full load that is usual; `nvidia-smi -q -d POWER` tells the limits."),
)
"""NVML's reasons for clocks below the highest, by their bits, the worst first."""
FATAL: Final = {
    48: "a memory error that cannot be corrected",
    64: "memory that could not be replaced",
    79: "the card fell off the bus",
    95: "a memory error that is not contained",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
}
OF_PROGRAMS: Final = {
    13: "a program's error",
    31: "a program's access to wrong memory",
    43: "a program that was stopped",
    45: "a program that was ended",
}
CALM: Final = {63: "memory was replaced by spare rows"}


def _named(card: Gpu) -> str:
    return f"GPU {card.index} ({card.name})"


def memory(examination: Examination) -> Iterator[Sign]:
    """Memory that fails."""
    card = card_of(examination)
    if card is None:
        return
    look = f"nvidia-smi -i {card.index} -q -d ECC,ROW_REMAPPER"
    pending, failed = card.remapping or (False, False)
    if failed:
        yield Sign(
            "error",
            f"memory of {_named(card)} is broken, and has no spare rows left for it",
            "Have the card replaced.",
            (look,),
        )
    elif pending:
        yield Sign(
            "warning",
            f"broken memory of {_named(card)} is replaced by spare rows only after a reset",
            "Stop the ACU, and reset the card when nobody uses it, or restart the box.",
            (look, f"nvidia-smi -i {card.index} -r"),
        )
    elif card.ecc_errors:
        yield Sign(
            "warning",
            f"memory of {_named(card)} had {card.ecc_errors} error(s) since the boot that could not be corrected",
            "Watch it: if there are more after a restart of the box, have the card replaced.",
            (look,),
        )


def clocks(examination: Examination) -> Iterator[Sign]:
    """Clocks that are held down now."""
    card = card_of(examination)
    if card is None:
        return
    for bits, level, why, do in HELD:
        if (card.clocks_held or 0) & bits:
            look = (f"nvidia-smi -i {card.index} -q -d PERFORMANCE,TEMPERATURE,POWER",)
            yield Sign(level, f"{_named(card)} is slower than it could be now: {why}", do, look)
            return


def xids(examination: Examination) -> Iterator[Sign]:
    """What the driver reported of the card, each number once."""
    for xid in _of_card(examination):
        level: Level = "note" if xid.code in OF_PROGRAMS | CALM else "error" if xid.code in FATAL else "warning"
        means = (FATAL | OF_PROGRAMS | CALM).get(xid.code, "see NVIDIA's list of Xids")
        yield Sign(
            level,
            f"the driver reported Xid {xid.code} of GPU {examination.needs.gpu_id}, {xid.times} time(s): {means}",
            "Restart the box; if it comes again, see the card's seat, power and heat, and have it replaced."
            if xid.code in FATAL
            else "See what was said, and when: whether it came with an engine's end.",
            (f"dmesg -T | grep {quote(f'): {xid.code},')}",),
        )


def _of_card(examination: Examination) -> tuple[Xid, ...]:
    card = card_of(examination)
    return tuple(xid for xid in examination.xids or () if card is not None and xid.bdf == card.bdf)


CHECKS = (
    Check(
        id="health.memory",
        worst="error",
        looks_at="the card's memory: errors that could not be corrected, rows that are to be replaced",
        verdict=memory,
        well="the card's memory has no errors",
        applies=lambda e: (card := card_of(e)) is not None and not (card.ecc_errors is None and card.remapping is None),
        why="Each such error ends the engine that met it, and with it every request.",
    ),
    Check(
        id="health.clocks",
        worst="warning",
        looks_at="whether heat or power holds the card's clocks down now",
        verdict=clocks,
        well="nothing holds the card's clocks down",
        applies=lambda e: (card := card_of(e)) is not None and card.clocks_held is not None,
        why="Every token takes longer, by up to several times.",
    ),
    Check(
        id="health.xid",
        worst="error",
        looks_at="Xids of the card in the kernel's log",
        verdict=xids,
        well="the driver has reported nothing of the card",
        applies=lambda e: card_of(e) is not None and e.xids is not None,
        why="An Xid is the driver's word that the card, its link or a program on it failed; after the worst ones the card does "
        "not compute until the box is restarted.",
    ),
)
