"""Daemon: the composition root, and the one owner of the process's life.

Start, in this order: the ground is surveyed (see ground.py), the process bound to its NUMA node, sockets are bound and listen,
the folder of data is claimed, event loop, keys, audit log, HTTP face, READY to systemd, logs, engines. Until READY everything
that can be wrong raises StartRefused and leaves nothing behind; clients that connected meanwhile are served from READY on, and
wait while models load. Nothing heavy (structlog, vLLM, torch) is imported before the sockets accept, and the HTTP face not
before they listen: hence the imports in functions.

End, on SIGTERM or SIGINT: no new work (503), what runs or waits may finish, and be read by its clients, for
`drain_timeout_s`, then the rest is aborted with an error in its stream; sockets closed and removed; connections closed; data
written and closed; engines stopped; exit code 0. A second signal cuts the drain short. When even that takes too long,
LastResort ends the process. SIGHUP reads the API keys and the TLS certificate again, opens the audit log again, and tells
what else changed and needs a restart (see reloading.py).

Signals are held from before the sockets are bound until the loop handles them: none is lost, and none kills half a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from acu import __version__, reloading
from acu.agency import AgencyRoom, Later
from acu.config import AcuConfig, LoadedConfig
from acu.data.folder import data_claimed
from acu.data.plane import Data
from acu.ground import Ground, models_kept, open_audit_log, read_keys, survey, tls_doubt
from acu.hardware.cardkeeper import CardKeeper
from acu.hardware.locality import Locality
from acu.hardware.pin import bind
from acu.models.preloading import Preloading
from acu.process import descriptors, sockets, systemd
from acu.process.lastresort import LastResort
from acu.process.pulse import RecentLag, beat, settle_memory
from acu.process.signals import HANDLED_SIGNALS, STOP_SIGNALS, signals_held
from acu.served import Plan, build, card_memory
from acu.telemetry.logs import LogThread, log_style
from acu.telemetry.tracing import open_tracing

if TYPE_CHECKING:
    from acu.data.jobs import DataJobs
    from acu.http.audit import Hooks
    from acu.http.auth import Keys
    from acu.http.server import FaceRunner
    from acu.http.settings import HttpSettings
    from acu.telemetry.auditlog import AuditLog
    from acu.telemetry.metrics import Telemetry
    from agentflow.engine.supervisor import Supervisor
    from agentflow.service import Service
    from agentflow.status import ServiceStatus

STOP_ENGINES_S = 10.0
CLOSE_CONNECTIONS_S = 5.0
LAST_RESORT_S = 30.0  # after the drain, for closing connections and stopping engines
FORCED_S = 10.0  # the same after a second signal
STATUS_EVERY_S = 0.5

log = logging.getLogger("acu.daemon")


def serve(
    loaded: LoadedConfig,
    environ: MutableMapping[str, str],
    *,
    reload: Callable[[], LoadedConfig],
    announce: Callable[[list[str]], None],
) -> int:
    """Run the daemon until a signal ends it; returns the exit code. Raises StartRefused.

    `reload` reads the configuration again, for SIGHUP; `announce` gets the addresses once they accept.
    """
    with contextlib.ExitStack() as held:
        held.enter_context(signals_held([signal.SIGHUP]))
        ground = survey(loaded, environ)
        ground = msgspec.structs.replace(ground, bound=bind(ground.config, ground.report))
        held.enter_context(models_kept(ground.plans))
        if ground.report.gpus:  # for the engines' processes; what the operator has set stays
            environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            environ.setdefault("CUDA_VISIBLE_DEVICES", str(loaded.config.gpu.device_id))
        options = loaded.config.daemon
        logs = LogThread(log_style(options.log_format, under_systemd=ground.handover.under_systemd))
        logs.install(options.log_level)
        warn_of_ignored(ground.plans)
        if ground.tls is not None and (doubt := tls_doubt(ground.config.network, ground.tls.pair)) is not None:
            log.warning(doubt)
        held.enter_context(signals_held())  # not before: who looks at a disk that does not answer must be able to end
        max_connections = descriptors.make_room(ground.config.network.max_connections)
        listeners = sockets.open_listeners(ground.config, ground.handover)
        last_resort = LastResort(lambda: sockets.close_all(listeners))
        try:
            held.enter_context(data_claimed(ground.config.data_plane.path))
            import uvloop

            settings = http_settings(ground.config, listeners, max_connections)
            return uvloop.run(Daemon(ground, listeners, settings, logs, last_resort, reload).run(announce))
        except BaseExceptionGroup:
            log.exception("the daemon failed")
            return 1
        finally:
            sockets.close_all(listeners)
            logs.stop()
            last_resort.disarm()


def warn_of_ignored(plans: tuple[Plan, ...]) -> None:
    """Log what models recommend and cannot be used."""
    for plan in plans:
        for why in plan.ignored:
            log.warning("recommended sampling ignored", extra={"model": plan.names[0], "why": why})


def log_engine(supervisor: Supervisor[Any]) -> None:
    """Tell of each engine that came up or failed."""
    status = supervisor.status()
    if status.state == "ready":
        log.info("engine ready", extra={"engine": status.id, "restarts": status.restarts})
    elif status.state == "backing_off":
        log.error("engine failed", extra={"engine": status.id, "why": status.last_error, "then": status.stage})


class Daemon:
    """Everything that lives as long as the process."""

    def __init__(
        self,
        ground: Ground,
        listeners: list[sockets.Listener],
        settings: HttpSettings,
        logs: LogThread,
        last_resort: LastResort,
        reload: Callable[[], LoadedConfig],
    ) -> None:
        self._ground = ground
        self._listeners = listeners
        self._settings = settings
        self._logs = logs
        self._last_resort = last_resort
        self._reload_config = reload
        self._notifier = systemd.Notifier(ground.handover.notify_address)
        self._keys: Keys | None = None
        self._audit: AuditLog | None = None
        self._data: Data | None = None
        self._started_at = time.monotonic()
        self._lag = RecentLag()
        self._locality = Locality(ground.bound)
        self._card = CardKeeper(ground.config, ground.report, card_memory(ground.plans, ground.config, ground.report))
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()
        self._reload_asked = asyncio.Event()
        self._refused = ""  # what the last reload could not take, and why
        self._preloading = Preloading([plan.files.path for plan in ground.plans if plan.files is not None])

    async def run(self, announce: Callable[[list[str]], None]) -> int:
        """From bound sockets to an orderly end. Raises StartRefused."""
        self._handle_signals()
        self._keys = read_keys(self._ground.config.network.api_keys_file)
        self._tracing = open_tracing(self._ground.config.telemetry)
        self._audit = open_audit_log(self._ground.config.daemon.audit_log)  # makes the file: no refusal comes after it
        try:
            return await self._serve(announce)
        finally:
            if self._audit is not None:
                self._audit.close()

    async def _serve(self, announce: Callable[[list[str]], None]) -> int:
        """Answer until a signal comes, and end."""
        from acu.data.jobs import DataJobs
        from acu.http.app import Face
        from acu.http.server import make_runner
        from acu.telemetry.metrics import Telemetry
        from agentflow.service import Service

        config, audit = self._ground.config, self._audit
        telemetry = Telemetry(
            __version__,
            dropped_logs=lambda: self._logs.dropped,
            dropped_audits=lambda: 0 if audit is None else audit.dropped,
            tracing=self._tracing,
        )
        later = Later()
        room = await AgencyRoom.open(config, self._ground.environ, later)
        models, agency = tuple(map(build, self._ground.plans)), room.agency._replace(watcher=telemetry.on_part)
        service = Service(models, config.scheduler, telemetry.on_run_end, log_engine, agency)
        embedder = next((plan.names[0] for plan in self._ground.plans if plan.role == "embed"), None)
        self._data = data = Data(config, service, embedder)
        later.data, later.service = data, service
        jobs = DataJobs(data.opened, data.status, data.library, runs=service.agents)
        telemetry.watch_data(lambda: None if data.plane is None else data.plane.status())
        face = Face(self._settings, service, self._keys, self._hooks(telemetry, jobs), data.library)
        runner = make_runner(face, shutdown_timeout=CLOSE_CONNECTIONS_S)
        telemetry.watch(
            service.status,
            lambda: runner.connections,
            lambda: self._locality.shares,
            self._card.status,
            lambda: self._ground.tls_until,
        )
        async with asyncio.TaskGroup() as tasks:
            own: list[asyncio.Task[None]] = []
            try:
                await self._listen(runner, announce)

                def observe(lag_s: float) -> None:
                    telemetry.loop_lag.observe(lag_s)
                    self._lag.observe(lag_s)

                pulse = beat(observe, self._notifier, self._ground.handover.watchdog_s)
                reloads, numa = self._reload_when_asked(), self._locality.watch(service.status)
                own.extend(map(tasks.create_task, (pulse, self._tell_status(service), reloads, numa)))
                self._preloading.start()
                await service.start(tasks)
                self._card.start(tasks, service)
                data.start(tasks)
                room.start(tasks, service)
                await self._stopping.wait()
                runner.begin_drain()
                await self._drain(service, runner)
            finally:
                await self._end(service, runner, data, jobs)
                await room.close()
                await telemetry.close()
                for task in own:
                    task.cancel()
        log.info("stopped")
        return 0

    async def _listen(self, runner: FaceRunner, announce: Callable[[list[str]], None]) -> None:
        """Answer on every socket, and say so."""
        await runner.setup()
        tls = None if self._ground.tls is None else self._ground.tls.context
        for listener in self._listeners:
            await runner.listen(listener.sock, tls if listener.is_tcp else None)
        addresses = [listener.label for listener in self._listeners]
        self._notifier.ready(f"accepting on {', '.join(addresses)}; loading models")
        announce(addresses)
        self._logs.start()
        if self._audit is not None:
            self._audit.start()
        file = self._ground.loaded.file
        log.info("accepting", extra={"on": addresses, "version": __version__, "config": str(file) if file else None})

    # The end

    async def _drain(self, service: Service, runner: FaceRunner) -> None:
        """Let what runs finish and be read, for as long as the configuration grants and nobody forces."""
        self._card.stop()
        timeout_s = self._ground.config.daemon.drain_timeout_s
        status = service.status()
        log.info("draining", extra={"running": status.running, "queued": status.queued, "timeout_s": timeout_s})

        async def finished_and_read() -> None:
            await service.drain(timeout_s)
            await runner.settled()

        drain = asyncio.ensure_future(finished_and_read())
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait({drain, forced}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, forced):
            task.cancel()
        await asyncio.gather(drain, forced, return_exceptions=True)
        service.abort_all()

    async def _end(self, service: Service, runner: FaceRunner, data: Data, jobs: DataJobs) -> None:
        """Close everything, in the order in which nobody notices: sockets, connections, data, engines."""
        self._last_resort.within(FORCED_S if self._forced.is_set() else LAST_RESORT_S)
        for listener in self._listeners:
            listener.remove_file()
        await service.leave_runs()
        service.abort_all()
        await runner.cleanup()
        await jobs.close()
        await data.close()
        await service.stop(STOP_ENGINES_S)
        self._notifier.close()
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)

    # Signals

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)

    def _on_stop(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._stopping.is_set():
            drain_s = self._ground.config.daemon.drain_timeout_s
            self._last_resort.within(drain_s + LAST_RESORT_S)
            self._notifier.stopping("draining", drain_s + LAST_RESORT_S)
            log.info("asked to stop", extra={"signal": name})
            self._stopping.set()
        else:
            self._last_resort.within(FORCED_S)
            log.warning("asked to stop again: running requests are aborted", extra={"signal": name})
            self._forced.set()

    def _on_reload(self) -> None:
        """SIGHUP. During the drain it is too late: systemd would take the end for a reload."""
        if self._stopping.is_set():
            return
        self._notifier.reloading(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        self._reload_asked.set()

    async def _reload_when_asked(self) -> None:
        """Reload after a SIGHUP; those that come meanwhile are answered together, by one more.

        A thread reads the files; systemd's status line keeps what was refused.
        """
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            outcome = await asyncio.to_thread(
                reloading.reload, self._keys, self._ground.loaded, self._reload_config, self._audit
            )
            if outcome.certificate is not None and self._ground.tls is not None:
                self._ground.tls.show(outcome.certificate)  # on the loop, which makes the handshakes
            outcome.tell()
            self._refused = outcome.line if outcome.kept else ""
            if not self._stopping.is_set():
                self._notifier.ready(outcome.line)

    # What is told

    def _hooks(self, telemetry: Telemetry, jobs: DataJobs) -> Hooks:
        from acu.http.audit import Hooks

        return Hooks(
            on_response=telemetry.on_response,
            render_metrics=lambda full: telemetry.render(full=full),
            audit=None if self._audit is None else self._audit.write,
            daemon_status=self._status,
            preloading=lambda: self._preloading.line,
            data=lambda: jobs,
        )

    def _status(self) -> dict[str, Any]:
        """The daemon's part of /acu/v1/status."""
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            "config_file": str(self._ground.loaded.file) if self._ground.loaded.file else None,
            "addresses": [listener.label for listener in self._listeners],
            "loop_lag_p99_ms": self._lag.p99_ms(),
            "preloading": self._preloading.line or None,
            "data": None if self._data is None else self._data.status(),
            "machine": msgspec.to_builtins(self._ground.report),
            "numa": self._locality.told(),
            "gpu_memory": self._card.told(),
        }

    async def _tell_status(self, service: Service) -> None:
        """Keep systemd's status line up to date, and log when readiness changes."""
        was_ready = False
        while True:
            status = service.status()
            if not self._stopping.is_set():
                parts = (status_line(status), self._preloading.line, self._refused)
                self._notifier.status("; ".join(filter(None, parts)))
            if status.ready != was_ready:
                was_ready = status.ready
                if was_ready:
                    settle_memory()
                log.info("ready" if was_ready else "not ready", extra={} if was_ready else {"why": status.reason})
            await asyncio.sleep(STATUS_EVERY_S)


def http_settings(config: AcuConfig, listeners: list[sockets.Listener], max_connections: int) -> HttpSettings:
    """The face's limits. The addresses that are listened on are names that the Host header may carry."""
    from acu.http.settings import HttpSettings

    network = config.network
    return HttpSettings(
        max_body_bytes=network.max_body_mb << 20,
        header_timeout_s=network.header_timeout_s,
        body_timeout_s=network.body_timeout_s,
        idle_timeout_s=network.idle_timeout_s,
        slow_reader_s=config.scheduler.slow_reader_s,
        max_connections=max_connections,
        allowed_hosts=(*network.allowed_hosts, *(listener.host for listener in listeners if listener.host)),
    )


def status_line(status: ServiceStatus) -> str:
    """One line on how the daemon is."""
    if not status.ready:
        return f"not ready: {status.reason}"
    names = ", ".join(model.name for model in status.models)
    return f"serving {names}; {status.running} running, {status.queued} waiting"
