"""Ground: what the daemon stands on, looked at before it starts anything.

Whatever is wrong with the machine or the files that the configuration names is found here, and raises StartRefused with
the field, its value and what to do. Takes milliseconds, imports nothing heavy.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import MutableMapping
from pathlib import Path

from msgspec import Struct

from acu import systemd
from acu.auditlog import AuditLog
from acu.config import AcuConfig, LoadedConfig, NetworkConfig
from acu.errors import StartRefused
from acu.hardware import Report, probe_machine
from acu.served import Plan, plan_models

SPARE_DISK_BYTES = 16 << 20


class Ground(Struct, frozen=True):
    """The configuration, and everything that was found for it."""

    loaded: LoadedConfig
    handover: systemd.Handover
    report: Report
    plans: tuple[Plan, ...]
    tls: ssl.SSLContext | None
    audit: AuditLog | None

    @property
    def config(self) -> AcuConfig:
        """The configuration."""
        return self.loaded.config


def survey(loaded: LoadedConfig, environ: MutableMapping[str, str]) -> Ground:
    """Look at everything. Raises StartRefused."""
    config = loaded.config
    handover = systemd.take_over(environ)
    report = probe_machine()
    return Ground(
        loaded=loaded,
        handover=handover,
        report=report,
        plans=plan_models(config, report),
        tls=tls_context(config.network),
        audit=open_audit_log(config.daemon.audit_log),
    )


def tls_context(network: NetworkConfig) -> ssl.SSLContext | None:
    """The server side of TLS, or None when it is not configured. Raises StartRefused."""
    if network.tls_cert_file is None or network.tls_key_file is None:
        return None
    for field, path in (("tls_cert_file", network.tls_cert_file), ("tls_key_file", network.tls_key_file)):
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise StartRefused(f"network.{field}: {path} cannot be read: {error.strerror}; name a PEM file") from error
    if Path(network.tls_key_file).stat().st_mode & 0o007:
        raise StartRefused(
            f"network.tls_key_file: {network.tls_key_file} is open to everybody; run chmod o= {network.tls_key_file}"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A password prompt would hold the start up for ever: an encrypted key is refused instead.
        context.load_cert_chain(network.tls_cert_file, network.tls_key_file, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise StartRefused(
            f"network.tls_cert_file: {network.tls_cert_file} and {network.tls_key_file} are not a certificate and its "
            f"unencrypted key, in PEM ({reason}); replace them"
        ) from error
    return context


def open_audit_log(path: str | None) -> AuditLog | None:
    """The audit log, open for appending, or None. Raises StartRefused."""
    if path is None:
        return None
    try:
        audit = AuditLog(path)
        disk = os.statvfs(path)
    except OSError as error:
        raise StartRefused(
            f"daemon.audit_log: {path} cannot be written: {error.strerror}; choose a writable file, or null"
        ) from error
    free = disk.f_bavail * disk.f_frsize
    if free < SPARE_DISK_BYTES:
        audit.close()
        raise StartRefused(
            f"daemon.audit_log: {free >> 20} MiB are free on the disk of {path}, and {SPARE_DISK_BYTES >> 20} MiB are "
            "needed; free some, or choose another disk"
        )
    return audit
