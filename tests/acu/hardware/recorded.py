"""Recorded machines: a folder each under machines/, of files as sysfs, procfs and /dev have them, and what NVML answers.

`machine_root(name)` is given where code takes a `root`, and
`recorded_nvml(name)` where it takes the module pynvml: the same functions, with pynvml's own errors. nvml.json holds:

    init        the name of the error of nvmlInit, where there is no driver
    system      {function: value} of functions without a handle
    devices     a list: {function: value} of functions that take a handle; {"error": NAME} is raised. Memory in bytes.
                Where an object is returned its fields are given; `NAME_v2` answers NAME with a version

A test may change what a device answers, `nvml.devices[0]["nvmlDeviceGetMemoryInfo_v2"]["used"] = ...` (or `hold(0, MiB)`),
and let a function fail, `nvml.failing["nvmlInit"] = "NVML_ERROR_GPU_IS_LOST"` (`"*"`: each). A handle is refused after the last
nvmlShutdown, as the real library does; `opened` counts those that nvmlInit made and nvmlShutdown did not end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

MACHINES = Path(__file__).parent / "machines"
NAMES = ("a10g", "a10g-far", "two-gpus", "none")


def machine_root(name: str) -> Path:
    """The folder that stands for `/` of a recorded machine."""
    return MACHINES / name


def recorded_nvml(name: str) -> RecordedNvml:
    """A fresh NVML of a recorded machine, to be given for the module pynvml."""
    document = json.loads((MACHINES / name / "nvml.json").read_text(encoding="utf-8"))
    return RecordedNvml(document["system"], document["devices"], document.get("init"))


class RecordedNvml:
    """Answers as the module pynvml does on a recorded machine; any other name is pynvml's own (constants, error classes)."""

    def __init__(self, system: dict[str, Any], devices: list[dict[str, Any]], no_driver: str | None = None) -> None:
        self.system = system
        self.devices = devices
        self.failing: dict[str, str] = {"nvmlInit": no_driver} if no_driver else {}
        self.opened = 0
        self.calls: list[str] = []

    def hold(self, index: int, used_mb: int) -> None:
        """From now on, `used_mb` MiB of the card are in use, besides what the driver reserves."""
        device = self.devices[index]
        for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
            info = device[name]
            reserved = device["nvmlDeviceGetMemoryInfo_v2"]["reserved"]
            info["used"] = (used_mb << 20) + (0 if "reserved" in info else reserved)
            info["free"] = info["total"] - reserved - (used_mb << 20)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or not hasattr(pynvml, name) or isinstance(getattr(pynvml, name), int):
            return getattr(pynvml, name)

        def answer(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            error = self.failing.get(name) or self.failing.get("*")
            if error:
                raise _error(error)
            return self._function(name)(*arguments, **named)

        return answer

    def _function(self, name: str) -> Callable[..., Any]:
        own: dict[str, Callable[..., Any]] = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount": lambda: len(self._live(self.devices)),
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetHandleByUUID": lambda uuid: self._find("nvmlDeviceGetUUID", uuid),
            "nvmlDeviceGetHandleByPciBusId": lambda bdf: self._find("nvmlDeviceGetPciInfo", bdf),
        }
        if name in own:
            return own[name]
        if name.startswith("nvmlSystem"):
            return lambda: self._live(self.system)[name]
        return lambda device, *arguments, **named: self._of_device(name, device, [*arguments, *named.values()])

    def _init(self) -> None:
        self.opened += 1

    def _shutdown(self) -> None:
        self._live(None)
        self.opened -= 1

    def _live(self, value: Any) -> Any:
        if not self.opened:
            raise _error("NVML_ERROR_UNINITIALIZED")
        return value

    def _handle(self, index: int) -> dict[str, Any]:
        self._live(None)
        if index >= len(self.devices):
            raise _error("NVML_ERROR_INVALID_ARGUMENT")
        return self.devices[index]

    def _find(self, name: str, wanted: str) -> dict[str, Any]:
        self._live(None)
        for device in self.devices:
            found = device[name]
            words = found.values() if isinstance(found, dict) else [found]
            if str(wanted).lower() in [str(word).lower() for word in words]:
                return device
        raise _error("NVML_ERROR_NOT_FOUND")

    def _of_device(self, name: str, device: dict[str, Any], more: list[Any]) -> Any:
        self._live(None)
        if name == "nvmlDeviceGetMemoryInfo" and more and more[0] is not None:
            name = "nvmlDeviceGetMemoryInfo_v2"
        if name not in device:
            raise _error("NVML_ERROR_NOT_SUPPORTED")
        answer = device[name]
        if isinstance(answer, dict) and set(answer) == {"error"}:
            raise _error(answer["error"])
        return _object(answer)


def _object(answer: Any) -> Any:
    """JSON as pynvml returns it: objects with fields, lists of them."""
    if isinstance(answer, dict):
        return SimpleNamespace(**answer)
    return [_object(one) for one in answer] if isinstance(answer, list) else answer


def _error(name: str) -> Exception:
    """The error that pynvml raises for a code, of its own subclass."""
    return pynvml.NVMLError(getattr(pynvml, name))  # type: ignore[no-any-return]
