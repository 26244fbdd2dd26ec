"""The machine: what it has. Probing is here, verdicts on what was found are elsewhere."""

from acu.hardware.probe import gpu_present, probe_machine
from acu.hardware.report import Gpu, Report

__all__ = ["Gpu", "Report", "gpu_present", "probe_machine"]
