"""Ground: what the daemon stands on, looked at before it starts anything.

Whatever is wrong with the machine or the files that the configuration names is found here, and raises StartRefused with
every problem: the field, its value and what to do. `survey` takes milliseconds, imports nothing heavy, makes nothing, and
opens nothing for writing. What comes later, once the sockets are bound: the API keys, whose reader comes with the HTTP face
(`read_keys`), and the audit log, which must not be made by a start that is refused (`open_audit_log`). `check` looks at
all of it for `acu config check`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from acu.config import AcuConfig, LoadedConfig, NetworkConfig
from acu.data.folder import check_data_folder, check_data_unused, folder_warning
from acu.errors import AcuError, ModelError, StartRefused
from acu.hardware import Report, probe_machine
from acu.hardware.pin import Bound, placement_for
from acu.models import in_use
from acu.process import systemd
from acu.process.certificate import Pair, Tls, read_pair
from acu.refusals import Refusals
from acu.served import Plan, hot_warning, plan_models
from acu.telemetry.auditlog import AuditLog

if TYPE_CHECKING:
    from acu.http.auth import Keys

SPARE_DISK_BYTES = 16 << 20


class Ground(Struct, frozen=True):
    """The configuration, and everything that was found for it. `environ` is what the process was started with.

    `bound` is where it was bound to afterwards.
    """

    loaded: LoadedConfig
    handover: systemd.Handover
    report: Report
    plans: tuple[Plan, ...]
    tls: Tls | None
    environ: dict[str, str] = {}
    bound: Bound = Bound()

    @property
    def config(self) -> AcuConfig:
        """The configuration."""
        return self.loaded.config

    @property
    def tls_until(self) -> float | None:
        """Until when the certificate is valid that is shown, as Unix time; None without TLS."""
        return None if self.tls is None else self.tls.pair.until


def survey(loaded: LoadedConfig, environ: MutableMapping[str, str]) -> Ground:
    """Look at everything but the keys. Raises StartRefused."""
    handover = systemd.take_over(environ)
    report = probe_machine()
    refusals = Refusals()
    plans, tls = _look(loaded.config, report, refusals, loaded.file)
    with refusals.noted():
        check_data_unused(loaded.config.data_plane.path)
    refusals.tell()
    return Ground(loaded=loaded, handover=handover, report=report, plans=plans, tls=tls, environ=dict(environ))


def check(
    config: AcuConfig,
    warn: Callable[[str], None],
    tools: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> None:
    """Look at everything that a start would refuse, besides its sockets. `warn` is told what it would warn of, also where there
    is what it would refuse. Raises StartRefused. `file`: of the configuration.

    `tools`: the environment that agents' tools get a part of; None: tools are not looked at. It takes seconds, for Python modules
    are imported, each by a process of its own.
    """
    refusals = Refusals()
    with refusals.noted():
        read_keys(config.network.api_keys_file)
    report = probe_machine()
    plans, tls = _look(config, report, refusals, file)
    if tls is not None and (doubt := tls_doubt(config.network, tls.pair)):
        warn(doubt)
    if lies_open := folder_warning(config.data_plane.path):
        warn(lies_open)
    for plan in plans:
        for warning in plan.ignored:
            warn(warning)
    with contextlib.suppress(StartRefused):  # which is noted by now
        if plans and (hot := hot_warning(plans, config, report)):
            warn(hot)
    with contextlib.suppress(StartRefused):
        for lacking in placement_for(config, report).short:
            warn(lacking)
    if tools is not None and config.agents:
        from acu.agency import check_tools

        for warning in asyncio.run(check_tools(config, tools, refusals)):
            warn(warning)
    refusals.tell()


def _look(
    config: AcuConfig, report: Report, refusals: Refusals, file: Path | None
) -> tuple[tuple[Plan, ...], Tls | None]:
    """The models' plans and the server side of TLS, which hold only where `refusals` has got nothing."""
    plans: tuple[Plan, ...] = ()
    tls: Tls | None = None
    with refusals.noted():
        tls = read_tls(config.network)
    with refusals.noted():
        plans = plan_models(config, report)
        hot_warning(plans, config, report)
    with refusals.noted():
        placement_for(config, report)
    with refusals.noted():
        check_audit_log(config.daemon.audit_log)
    with refusals.noted():
        check_data_folder(config, file)
    return plans, tls


@contextlib.contextmanager
def models_kept(plans: Iterable[Plan]) -> Iterator[None]:
    """Keep `acu models rm` from the models while the daemon lives. Raises StartRefused for one that is gone by now."""
    with contextlib.ExitStack() as held:
        for plan in plans:
            if plan.files is None:
                continue
            try:
                held.enter_context(in_use(plan.files.path))
            except ModelError as error:
                raise StartRefused(f"models.{plan.key}.model: {error}") from error
        yield


def read_keys(path: str | None) -> Keys | None:
    """The API keys, or None when none are asked. Raises StartRefused."""
    if path is None:
        return None
    from acu.http.auth import Keys  # with aiohttp, which a start imports only once its sockets are bound

    try:
        return Keys(Path(path))
    except AcuError as error:
        raise StartRefused(f"network.api_keys_file: {error}") from error


def read_tls(network: NetworkConfig) -> Tls | None:
    """The server side of TLS, or None when it is not configured. Raises StartRefused."""
    pair = read_pair(network)
    return None if pair is None else Tls(pair)


def tls_doubt(network: NetworkConfig, pair: Pair) -> str | None:
    """What is to be warned of a certificate that can be used, and which clients will refuse."""
    doubt = pair.doubt(time.time())
    return None if doubt is None else f"network.tls_cert_file: {network.tls_cert_file} {doubt}"


def check_audit_log(path: str | None) -> None:
    """Whether the audit log can be written, as far as looking tells. Raises StartRefused."""
    if path is None:
        return
    file = Path(path)
    try:
        place = file if file.exists() else file.parent
        mode, disk = place.stat().st_mode, os.statvfs(place)
    except OSError as error:
        raise _unwritable(path, error.strerror) from error
    if place == file and stat.S_ISDIR(mode):
        raise _unwritable(path, "Is a directory")
    if place != file and not stat.S_ISDIR(mode):
        raise _unwritable(path, "Not a directory")
    if not os.access(place, os.W_OK if place == file else os.W_OK | os.X_OK, effective_ids=True):
        raise _unwritable(path, "Permission denied, or a read-only file system")
    free = disk.f_bavail * disk.f_frsize
    if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and free < SPARE_DISK_BYTES:
        raise StartRefused(
            f"daemon.audit_log: {free >> 20} MiB are free on the disk of {path}, and {SPARE_DISK_BYTES >> 20} MiB are "
            "needed; free some, or choose another disk"
        )


def open_audit_log(path: str | None) -> AuditLog | None:
    """The audit log, open for appending, or None. Raises StartRefused."""
    if path is None:
        return None
    try:
        return AuditLog(path)
    except OSError as error:
        raise _unwritable(path, error.strerror) from error


def _unwritable(path: str, why: str | None) -> StartRefused:
    return StartRefused(f"daemon.audit_log: {path} cannot be written: {why}; choose a writable file, or null")
