"""Findings: what the doctor says of an examination, and how bad it is.

A `Check` looks at one thing, under an id that stays (`numa.gpu-node`), and its verdict is a pure function of the examination: it
yields a `Sign` for each thing that is not well, and none where all is. `applies` says whether there is anything to look at:
the width of a card's link is neither well nor bad on a box without a card, or where it could not be read. `judge` puts the
checks' answers together. No I/O here, and nothing that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from msgspec import Struct

from acu.doctor.examination import Examination

Level = Literal["error", "warning", "note"]
SEVERITY: Final[dict[Level, int]] = {"error": 2, "warning": 1, "note": 0}
"""How bad a level is; the worst of all findings is the exit code of `acu doctor`."""


def size(mb: float) -> str:
    """MiB for people: in GiB from ten of them on."""
    return f"{mb / 1024:.0f} GiB" if mb >= 10 * 1024 else f"{mb:.0f} MiB"


class Sign(Struct, frozen=True):
    """One thing that a verdict found: what was seen, and what to do; `run` are commands for root's shell."""

    level: Level
    seen: str
    do: str
    run: tuple[str, ...] = ()


def always(_: Examination) -> bool:
    """For a check that every box can be asked for."""
    return True


class OfSetting(Struct, frozen=True):
    """The verdict on one setting of the kernel, by its name for sysctl: values that are `bad` are to be `best`.

    `seen` may hold `{value}`; `do` says what the first of two commands does, the second keeps it over a boot; `where` it matters.
    """

    name: str
    level: Level
    bad: Callable[[int], bool]
    best: int
    seen: str
    do: str
    where: Callable[[Examination], bool] = always

    def known(self, examination: Examination) -> bool:
        """Whether this kernel has it, on a box where it matters."""
        return self.name in examination.kernel.settings and self.where(examination)

    def __call__(self, examination: Examination) -> Iterator[Sign]:
        """Look at its value."""
        value = examination.kernel.settings.get(self.name)
        if value is not None and self.bad(value) and self.where(examination):
            keep = f"echo {self.name}={self.best} >> /etc/sysctl.d/90-acu.conf"
            yield Sign(self.level, self.seen.format(value=value), self.do, (f"sysctl -w {self.name}={self.best}", keep))


Verdict = Callable[[Examination], Iterator[Sign]]


class Check(Struct, frozen=True, kw_only=True):
    """One check. `well` is what is true where nothing is found, `why` what comes of it where something is.

    `worst` is the worst level of what it finds.
    """

    id: str
    worst: Level
    verdict: Verdict
    well: str | Callable[[Examination], str]
    why: str
    looks_at: str
    applies: Callable[[Examination], bool] = always

    @property
    def topic(self) -> str:
        """The part of the box that it belongs to: the id's first word."""
        return self.id.partition(".")[0]

    def well_on(self, examination: Examination) -> str:
        """What to say of a box on which it found nothing."""
        return self.well if isinstance(self.well, str) else self.well(examination)


class Finding(Struct, frozen=True):
    """One thing that is not well. `run` are commands, `bios` the settings of the box's own firmware that bear on it."""

    check: str
    level: Level
    seen: str
    why: str
    do: str
    run: tuple[str, ...] = ()
    bios: tuple[str, ...] = ()


class Well(Struct, frozen=True):
    """A check that found nothing, and what that means."""

    check: str
    text: str


class Judgement(Struct, frozen=True):
    """What all checks say of one examination: findings with the worst first, else in the order of the checks."""

    findings: tuple[Finding, ...]
    well: tuple[Well, ...]
    skipped: tuple[str, ...]

    @property
    def severity(self) -> int:
        """0 where nothing is worse than a note, 1 for warnings, 2 for errors."""
        return max((SEVERITY[finding.level] for finding in self.findings), default=0)


def judge(
    examination: Examination,
    checks: tuple[Check, ...],
    bios: Callable[[str, Examination], tuple[str, ...]] = lambda _check, _examination: (),
) -> Judgement:
    """Ask every check. `bios` gives what the box's firmware has to set for the check of that id."""
    findings: list[Finding] = []
    well: list[Well] = []
    skipped: list[str] = []
    for check in checks:
        if not check.applies(examination):
            skipped.append(check.id)
            continue
        signs = tuple(check.verdict(examination))
        entries = bios(check.id, examination) if signs else ()
        findings += [Finding(check.id, sign.level, sign.seen, check.why, sign.do, sign.run, entries) for sign in signs]
        if not signs:
            well.append(Well(check.id, check.well_on(examination)))
    findings.sort(key=lambda finding: -SEVERITY[finding.level])
    return Judgement(tuple(findings), tuple(well), tuple(skipped))
