"""What the doctor's checks say is put together: worst first, in the order of the checks, with the worst as the severity."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, Finding, Judgement, Level, OfSetting, Sign, Well, judge, size
from tests.acu.doctor.verdicts.boxes import WELL, but, with_settings


def checks_of(**levels: Level | None) -> tuple[Check, ...]:
    """A check for each name, which finds something of the level, nothing (None), or (`none`) does not apply."""

    def made(name: str, level: Level | None) -> Check:
        def verdict(_: Examination) -> Iterator[Sign]:
            if level is not None:
                yield Sign(level, f"{name} seen", f"{name} done.", (f"run-{name}",))

        return Check(
            id=f"test.{name}", worst="error", verdict=verdict, well=f"{name} well", why=f"{name} why", looks_at=name
        )

    return tuple(made(name, level) for name, level in levels.items())


def test_findings_come_with_the_worst_first_and_else_in_order() -> None:
    found = judge(WELL, checks_of(a="note", b="warning", c="error", d="warning", e=None))
    assert [finding.check for finding in found.findings] == ["test.c", "test.b", "test.d", "test.a"]
    assert found.findings[0] == Finding("test.c", "error", "c seen", "c why", "c done.", ("run-c",), ())
    assert found.well == (Well("test.e", "e well"),)


@pytest.mark.parametrize(
    ("levels", "severity"),
    [
        ({}, 0),
        ({"a": None}, 0),
        ({"a": "note"}, 0),
        ({"a": "warning", "b": "note"}, 1),
        ({"a": "warning", "b": "error"}, 2),
    ],
)
def test_the_worst_finding_is_the_severity(levels: dict[str, Level | None], severity: int) -> None:
    assert judge(WELL, checks_of(**levels)).severity == severity


def test_a_check_that_does_not_apply_is_not_asked_and_not_well() -> None:
    def asked(_: Examination) -> Iterator[Sign]:
        raise AssertionError

    check = Check(id="test.x", worst="note", verdict=asked, well="", why="", looks_at="", applies=lambda _: False)
    assert judge(WELL, (check,)) == Judgement((), (), ("test.x",))


def test_the_settings_of_the_firmware_go_with_what_was_found_and_are_asked_for_nothing_else() -> None:
    asked: list[str] = []

    def bios(check: str, _: Examination) -> tuple[str, ...]:
        asked.append(check)
        return (f"{check} is to be off",)

    found = judge(WELL, checks_of(a="note", b=None), bios)
    assert found.findings[0].bios == ("test.a is to be off",)
    assert asked == ["test.a"]


def test_a_setting_is_changed_now_and_for_good() -> None:
    swap = OfSetting("vm.swappiness", "note", lambda value: value > 10, 1, "it is {value}", "Lower it.")
    commands = ("sysctl -w vm.swappiness=1", "echo vm.swappiness=1 >> /etc/sysctl.d/90-acu.conf")
    assert list(swap(with_settings(vm__swappiness=11))) == [Sign("note", "it is 11", "Lower it.", commands)]
    assert list(swap(with_settings(vm__swappiness=10))) == []
    unknown = but(kernel={"settings": {}})
    assert (swap.known(unknown), list(swap(unknown))) == (False, [])


def test_sizes_are_in_gib_from_ten_of_them_on() -> None:
    assert (size(10_239), size(10_240), size(16_384), size(0)) == ("10239 MiB", "10 GiB", "16 GiB", "0 MiB")
