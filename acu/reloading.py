"""Reloading, on SIGHUP: API keys and the TLS certificate at once; of all else it is told what changed, and needs a restart.
The audit log is opened again at its path, so that logrotate may move its file away.

Nothing that lies on disk may end the daemon: what cannot be read leaves in use what was read before. `reload` reads
files, so it belongs into a thread; its `Outcome` says what happened, for the log and for systemd.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from acu.config import LoadedConfig, NetworkConfig
from acu.errors import AcuError
from acu.ground import tls_doubt
from acu.process.certificate import Pair, read_pair
from acu.telemetry.logs import printable

if TYPE_CHECKING:
    from acu.http.auth import Keys
    from acu.telemetry.auditlog import AuditLog

LONGEST_LINE = 500  # characters; a datagram to systemd has its bound, and a file may say anything

log = logging.getLogger("acu.daemon")


class Outcome(Struct, frozen=True):
    """What a reload came to.

    `renewed` names what is new in use, `kept` maps what stays as it was to the reason, and `needs_restart` are the dotted
    paths of the fields that the configuration has otherwise now: it is compared, and nothing of it taken over. `certificate`
    is to be shown from now on, and `doubt` says why clients will refuse it.
    """

    renewed: tuple[str, ...] = ()
    kept: dict[str, str] = {}
    needs_restart: tuple[str, ...] = ()
    certificate: Pair | None = None
    doubt: str | None = None

    @property
    def event(self) -> str:
        """In a few words."""
        if not self.kept:
            return "reloaded"
        return "reloaded in part" if self.renewed else "nothing was reloaded"

    @property
    def line(self) -> str:
        """In one line that any terminal bears, of LONGEST_LINE characters at most."""
        kept = [f"{what} stay: {' '.join(why.split())}" for what, why in self.kept.items()]
        restart = [f"a restart is needed for {', '.join(self.needs_restart)}"] if self.needs_restart else []
        line = printable("; ".join([self.event, *kept, *restart]))
        return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 3] + "..."

    def tell(self) -> None:
        """Log it."""
        found = {"renewed": self.renewed, "kept": self.kept, "needs_restart": self.needs_restart}
        extra = {name: value for name, value in found.items() if value}
        log.log(logging.ERROR if self.kept else logging.INFO, self.event, extra=extra)
        if self.doubt is not None:
            log.warning(self.doubt)


def reload(
    keys: Keys | None,
    running: LoadedConfig,
    read_config: Callable[[], LoadedConfig],
    audit: AuditLog | None = None,
) -> Outcome:
    """Read the key file and open the audit log again, and compare the configuration with the running one. Raises nothing.

    The certificate is only read and judged here: the caller shows the outcome's, on the thread that makes the handshakes.
    """
    renewed: list[str] = []
    kept: dict[str, str] = {}
    needs_restart: list[str] = []
    if keys is not None:
        why = reload_keys(keys)
        if why is None:
            renewed.append("the API keys")
        else:
            kept["the old API keys"] = why
    if audit is not None:
        try:
            audit.reopen()
            renewed.append("the audit log")
        except OSError as error:
            kept["the audit log and its old file"] = f"{running.config.daemon.audit_log}: {error.strerror}"
    network, pair, doubt = running.config.network, None, None
    if network.tls_cert_file is not None:
        pair, why = reread_pair(network)
        if pair is not None:
            renewed.append("the TLS certificate")
            doubt = tls_doubt(network, pair)
        else:
            kept["the old TLS certificate and key"] = why
    try:
        needs_restart = changed_fields(running, read_config())
    except AcuError as error:
        kept["the running settings"] = str(error)
    except Exception as error:
        log.exception("the configuration could not be read again")
        kept["the running settings"] = f"the configuration could not be read: {type(error).__name__}"
    return Outcome(tuple(renewed), kept, tuple(needs_restart), pair, doubt)


def reload_keys(keys: Keys) -> str | None:
    """Why the old keys stay, or None when those of the file are in use now."""
    try:
        keys.reload()
    except AcuError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001
        return f"the file could not be read: {type(error).__name__}"  # no more of it: it could show keys
    return None


def reread_pair(network: NetworkConfig) -> tuple[Pair | None, str]:
    """The certificate and key that can be used now, or None and why the old ones stay."""
    try:
        return read_pair(network), "none is configured"
    except AcuError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001
        return None, f"the files could not be read: {type(error).__name__}"


def changed_fields(running: LoadedConfig, fresh: LoadedConfig) -> list[str]:
    """Dotted paths of the sections' fields that differ."""
    before, after = (msgspec.to_builtins(loaded.config) for loaded in (running, fresh))
    return [
        f"{section}.{field}"
        for section in before
        for field in sorted({*before[section], *after[section]})
        if before[section].get(field) != after[section].get(field)
    ]
