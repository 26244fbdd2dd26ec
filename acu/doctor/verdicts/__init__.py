"""The doctor's checks, a file a topic: each is listed once, here, in the order in which they are shown."""

from __future__ import annotations

from acu.doctor.verdicts import disk, gpu, health, kernel, machine, models, network, numa, versions

CHECKS = (
    *gpu.CHECKS,
    *health.CHECKS,
    *numa.CHECKS,
    *kernel.CHECKS,
    *disk.CHECKS,
    *models.CHECKS,
    *machine.CHECKS,
    *network.CHECKS,
    *versions.CHECKS,
)

__all__ = ["CHECKS"]
