"""The machine: what it has. Probing is here, verdicts on what was found are elsewhere."""

from acu.hardware.probe import Gpu, Report, gpu_present, probe_machine

__all__ = ["Gpu", "Report", "gpu_present", "probe_machine"]
