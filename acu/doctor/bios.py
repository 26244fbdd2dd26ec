"""BIOS settings: which of them the doctor's checks show from Linux, and what the box's own vendor calls them.

bios-checklist.md is written from the table in menus.py (`acu doctor --reference bios`), and a finding of the doctor names the
entries of its box's own vendor.
"""

from __future__ import annotations

from typing import Final

from acu.doctor.examination import Examination
from acu.doctor.menus import GENERATIONS, SETTINGS, SOURCES, Vendor

WORDS: Final[dict[str, Vendor]] = {
    "dell": "Dell",
    "hewlett": "HPE",
    "hpe": "HPE",
    "hp": "HPE",
    "lenovo": "Lenovo",
    "supermicro": "Supermicro",
    "super": "Supermicro",
    "inspur": "Inspur",
    "ieit": "Inspur",
}
"""Words of DMI's sys_vendor, and whose they are. Inspur's newer boxes say IEIT SYSTEMS."""


def vendor_of(examination: Examination) -> Vendor | None:
    """Whose firmware a box has; None where it is nobody's of these, or a virtual machine's."""
    if examination.firmware.virtual:
        return None
    words = examination.firmware.vendor.lower().replace("-", " ").replace(",", " ").split()
    return next((WORDS[word] for word in words if word in WORDS), None)


def entries(check: str, examination: Examination) -> tuple[str, ...]:
    """What the box's vendor calls the settings that the check shows, a line each; of an unknown vendor just their names."""
    settings = [setting for setting in SETTINGS if check in setting.checks]
    if examination.firmware.virtual or not settings:
        return ()
    vendor = vendor_of(examination)
    if vendor is None:
        return tuple(f"{setting.name}: {setting.why} (bios-checklist.md)" for setting in settings)
    found = [setting.entries[vendor] for setting in settings if not setting.entries[vendor].menu.startswith("(none")]
    return tuple(f"{vendor}: {entry}" + ("" if entry.seen_in else " (name not confirmed)") for entry in found)


HEAD = """\
# BIOS checklist

What to set in the firmware of a box for ACU, by vendor, and how to see from Linux that it is so. ACU never changes any of it:
`acu doctor` reports what it finds, under the names in the column *check*, and prints the entry of the box's own vendor with
each finding. This page is the output of `acu doctor --reference bios`.

Menus differ by generation and by BIOS version. *Confirmed by* says where a name was read; "-" means that it is from memory and
could not be confirmed: look for it near that place. Change one thing at a time, and run `acu doctor` after each boot.

## How to verify from Linux

BDF is the card's address: `nvidia-smi --query-gpu=pci.bus_id --format=csv`, or `lspci -d 10de:`.

| setting | wanted | command | check |
|---|---|---|---|
"""


def checklist() -> str:
    """bios-checklist.md."""
    lines = [HEAD.rstrip("\n")]
    lines += [f"| {one.name} | {one.why} | {_cell(one.verify)} | {_ids(one.checks)} |" for one in SETTINGS]
    for vendor, generations in GENERATIONS.items():
        lines += [
            "",
            f"## {vendor}",
            "",
            generations,
            "",
            "| setting | menu | set to | check | confirmed by |",
            "|---|---|---|---|---|",
        ]
        for setting in SETTINGS:
            entry = setting.entries[vendor]
            lines.append(
                f"| {setting.name} | {entry.menu} | {entry.value} | {_ids(setting.checks)} | {entry.seen_in or '-'} |"
            )
    lines += ["", "## What the names were confirmed by", ""]
    lines += [f"- {name}: {address}" for name, address in SOURCES.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text in a table: a bar would end its cell, within backticks too."""
    return text.replace("|", "\\|")


def _ids(checks: tuple[str, ...]) -> str:
    return ", ".join(f"`{check}`" for check in checks)
