"""The BIOS settings: each is tied to checks of the doctor, both ways, and bios-checklist.md is what the table says."""

from __future__ import annotations

import re

import pytest

from acu.doctor.bios import checklist, entries, vendor_of
from acu.doctor.menus import GENERATIONS, SETTINGS, SOURCES
from acu.doctor.verdicts import CHECKS
from tests.acu.doctor.verdicts.boxes import WELL, but
from tests.acu.running import ROOT

PAGE = (ROOT / "bios-checklist.md").read_text(encoding="utf-8")
IDS = {check.id for check in CHECKS}
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (?!setting|---)", line)]


def test_the_page_is_what_the_table_says() -> None:
    assert checklist() == PAGE, "acu doctor --reference bios > bios-checklist.md"


def test_each_line_of_the_page_names_checks_that_exist() -> None:
    assert len(ROWS) == len(SETTINGS) * (1 + len(GENERATIONS))
    for row in ROWS:
        named = re.findall(r"`([a-z]+\.[a-z-]+)`", row)
        assert named, row
        assert set(named) <= IDS, row


def test_each_check_whose_remedy_is_in_the_bios_has_a_line_on_the_page() -> None:
    with_line = {check for setting in SETTINGS for check in setting.checks}
    for check in CHECKS:
        if check.id in with_line:
            assert f"`{check.id}`" in PAGE
    signs = {check.id: " ".join(sign.do for sign in check.verdict(WELL)) for check in CHECKS}
    assert all("BIOS" not in text for text in signs.values())  # a well box has nothing to set


def test_each_finding_that_speaks_of_the_bios_says_which_entry() -> None:
    from tests.acu.doctor.verdicts.cases import SEEN

    verdicts = {check.id: check.verdict for check in CHECKS}
    for name, cases in SEEN.items():
        for case in cases:
            for sign in verdicts[name](case.box):
                if "BIOS" in sign.do and name not in {"gpu.present", "machine.virtual"}:
                    assert entries(name, WELL), f"{name} has no line in bios-checklist.md: {sign.do}"


def test_every_vendor_has_every_setting() -> None:
    for setting in SETTINGS:
        assert set(setting.entries) == set(GENERATIONS), setting.name
        assert set(setting.checks) <= IDS


@pytest.mark.parametrize(
    ("told", "vendor"),
    [
        ("Dell Inc.", "Dell"),
        ("HPE", "HPE"),
        ("Hewlett-Packard", "HPE"),
        ("Hewlett Packard Enterprise", "HPE"),
        ("LENOVO", "Lenovo"),
        ("Lenovo", "Lenovo"),
        ("Supermicro", "Supermicro"),
        ("Super Micro Computer, Inc.", "Supermicro"),
        ("Inspur", "Inspur"),
        ("IEIT SYSTEMS", "Inspur"),
        ("Giga Computing", None),
        ("", None),
    ],
)
def test_the_vendor_is_known_by_what_dmi_says(told: str, vendor: str | None) -> None:
    assert vendor_of(but(firmware={"vendor": told})) == vendor


def test_a_finding_gets_the_entry_of_the_boxs_own_vendor() -> None:
    assert entries("numa.interleaving", WELL) == ("Dell: Memory Settings > Node Interleaving: Disabled",)
    (entry,) = entries("numa.mirroring", but(firmware={"vendor": "Supermicro"}))
    assert entry.startswith("Supermicro: Chipset Configuration > North Bridge > Memory Configuration > ")
    assert entry.endswith(" > Memory RAS Configuration > Mirror mode: Disable")
    assert entries("numa.interleaving", but(firmware={"vendor": "Inspur"})) == (
        "Inspur: Processor > Common RefCode Configuration > Numa: Enabled (name not confirmed)",
    )
    assert entries("kernel.files", WELL) == ()


def test_a_virtual_machine_has_no_bios_to_set_and_an_unknown_vendor_gets_the_names_alone() -> None:
    assert entries("numa.interleaving", but(firmware={"virtual": "KVM"})) == ()
    assert entries("numa.mirroring", but(firmware={"vendor": "Giga Computing"})) == (
        "Memory mirroring and sparing: Off, so that all memory that is installed can be used (bios-checklist.md)",
    )


def test_each_source_with_an_address_confirms_a_name_and_what_is_not_confirmed_says_so() -> None:
    named = [entry.seen_in for setting in SETTINGS for entry in setting.entries.values()]
    for source in SOURCES:
        assert any(source in seen_in for seen_in in named), source
        assert f"- {source}: " in PAGE
    assert sum(row.endswith("| - |") for row in ROWS) == named.count("")
