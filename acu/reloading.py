"""Reloading, on SIGHUP: API keys at once; of everything else it is told what changed, and needs a restart.

Nothing that lies on disk may end the daemon: what cannot be read leaves in use what was read before. `reload` reads
files, so it belongs into a thread; its `Outcome` says what happened, for the log and for systemd.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from acu.config import LoadedConfig
from acu.errors import AcuError

if TYPE_CHECKING:
    from acu.http.auth import Keys

log = logging.getLogger("acu.daemon")


class Outcome(Struct, frozen=True):
    """What a reload came to. `kept` maps what stays as it was to the reason; `needs_restart` are dotted paths."""

    kept: dict[str, str]
    renewed: tuple[str, ...]
    needs_restart: tuple[str, ...]

    @property
    def event(self) -> str:
        """In a few words."""
        if not self.kept:
            return "reloaded"
        return "reloaded in part" if self.renewed else "nothing was reloaded"

    @property
    def line(self) -> str:
        """In one line."""
        kept = [f"{what} stay: {' '.join(why.split())}" for what, why in self.kept.items()]
        restart = [f"a restart is needed for {', '.join(self.needs_restart)}"] if self.needs_restart else []
        return "; ".join([self.event, *kept, *restart])

    def tell(self) -> None:
        """Log it."""
        extra: dict[str, object] = {"kept": self.kept} if self.kept else {}
        if self.needs_restart:
            extra["needs_restart"] = list(self.needs_restart)
        log.log(logging.ERROR if self.kept else logging.INFO, self.event, extra=extra)


def reload(keys: Keys | None, running: LoadedConfig, read_config: Callable[[], LoadedConfig]) -> Outcome:
    """Read the key file and the configuration again. Raises nothing."""
    kept: dict[str, str] = {}
    renewed: list[str] = []
    needs_restart: list[str] = []
    if keys is not None:
        why = reload_keys(keys)
        if why is None:
            renewed.append("the API keys")
        else:
            kept["the old API keys"] = why
    try:
        needs_restart = changed_fields(running, read_config())
        renewed.append("the configuration")
    except AcuError as error:
        kept["the running settings"] = str(error)
    except Exception as error:
        log.exception("the configuration could not be read again")
        kept["the running settings"] = f"the configuration could not be read: {type(error).__name__}"
    return Outcome(kept, tuple(renewed), tuple(needs_restart))


def reload_keys(keys: Keys) -> str | None:
    """Why the old keys stay, or None when those of the file are in use now."""
    from acu.http.errors import KeyFileError

    try:
        keys.reload()
    except KeyFileError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001
        return f"the file could not be read: {type(error).__name__}"  # no more of it: it could show keys
    return None


def changed_fields(running: LoadedConfig, fresh: LoadedConfig) -> list[str]:
    """Dotted paths of the sections' fields that differ."""
    before, after = (msgspec.to_builtins(loaded.config) for loaded in (running, fresh))
    return [
        f"{section}.{field}"
        for section in before
        for field in sorted({*before[section], *after[section]})
        if before[section].get(field) != after[section].get(field)
    ]
