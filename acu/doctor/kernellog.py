"""The kernel's log, for what the NVIDIA driver says of its cards: Xids, the numbers of what went wrong with them.

It is read without waiting and without taking anything from other readers; with kernel.dmesg_restrict only root may.
"""

from __future__ import annotations

import os
import re
import stat

from acu.doctor.examination import Xid
from acu.doctor.sight import Sight

KMSG = "dev/kmsg"
RECORD = 8192  # the kernel's most of one
MOST_RECORDS = 200_000
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def read_xids(sight: Sight) -> tuple[Xid, ...] | None:
    """What the driver has reported since the boot, or since the log begins; None where the log cannot be read."""
    counts: dict[tuple[str, int], int] = {}
    try:
        file = os.open(sight.root / KMSG, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        stream = stat.S_ISCHR(os.fstat(file).st_mode)
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(file, RECORD if stream else RECORD << 10)
            except BlockingIOError:
                break
            except BrokenPipeError:  # it was overwritten while we read
                continue
            if not record:
                break
            for bus, code in XID.findall(record.decode(errors="replace")):
                key = (bus.lower() if "." in bus else f"{bus.lower()}.0", int(code))
                counts[key] = counts.get(key, 0) + 1
    finally:
        os.close(file)
    return tuple(Xid(bdf, code, times) for (bdf, code), times in counts.items())
