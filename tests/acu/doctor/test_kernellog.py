"""acu.doctor.kernellog: the driver's reports in the kernel's log, as the driver writes them, and this machine's own log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acu.doctor.examination import Xid
from acu.doctor.kernellog import read_xids
from acu.doctor.sight import Sight

LOG = """\
6,1042,7312345,-;nvidia 0000:ca:00.0: enabling device (0140 -> 0142)
3,2201,91234567,-;NVRM: Xid (PCI:0000:CA:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000.
3,2202,91234999,-;NVRM: Xid (PCI:0000:ca:00): 31, pid=4712, name=python3, Ch 00000009, intr 00000000.
3,2203,99234999,-;NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
4,2204,99235000,-;a user says \xff NVRM: Xid (PCI:): 1
"""


def test_each_cards_xids_are_counted(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(LOG)
    assert read_xids(Sight(tmp_path)) == (Xid("0000:ca:00.0", 31, 2), Xid("0000:17:00.0", 79, 1))
    (tmp_path / "dev/kmsg").write_text("")
    assert read_xids(Sight(tmp_path)) == ()


def test_no_log_is_told_from_an_empty_one(tmp_path: Path) -> None:
    assert read_xids(Sight(tmp_path)) is None


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's log is closed")
def test_this_machines_log_is_read_to_its_end_without_waiting() -> None:
    assert read_xids(Sight()) is not None
