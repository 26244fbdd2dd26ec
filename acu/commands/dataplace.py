"""Where `acu data` finds the data plane: in a running daemon, or, when none runs, in its folder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from acu.commands.options import sockets_of, target_of
from acu.config import load, process_environment
from acu.errors import DaemonSilent, DaemonUnreachable, DataError, UnknownAnswer
from acu.http.wire.data import DataWork, kind_of
from acu.terminal.client import Client, Target

if TYPE_CHECKING:
    from dataplane.config import DataPlaneConfig
    from dataplane.store import DataPlane

PATH = "/acu/v1/data"
TIMEOUT_S = 30.0
POLL_S = 0.2
LEAVE_S, LEAVE_POLL_S = 1.0, 0.005
Told = Callable[[str, int, int], None]
T = TypeVar("T")


class Place(Protocol):
    """A data plane that can be asked."""

    def status(self) -> dict[str, Any]:
        """How it is."""

    def perform(self, work: DataWork, told: Told) -> dict[str, Any]:
        """Do something, and return what came of it. Raises DataError, and what a Client raises."""


class InDaemon:
    """The data plane of a running daemon. What is begun goes on if this process ends."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def status(self) -> dict[str, Any]:
        """As the daemon tells it."""
        report: dict[str, Any] = self._client.get(f"{PATH}/status")
        return report

    def perform(self, work: DataWork, told: Told) -> dict[str, Any]:
        """Begin a job, and wait for its end."""
        kind = kind_of(work)
        job = self._client.post(f"{PATH}/{kind}", msgspec.to_builtins(work), accept=(202,))
        try:
            while job["state"] == "running":
                told(job["stage"] or kind, job["done"], job["total"])
                time.sleep(POLL_S)
                job = self._client.get(f"{PATH}/jobs/{job['id']}")
            if job["state"] == "failed":
                raise DataError(str(job["error"]))
            result: dict[str, Any] = job["result"]
        except (KeyError, TypeError) as error:
            raise UnknownAnswer(f"{PATH}/{kind}") from error
        return result


class InFolder:
    """The data plane in a folder, which no daemon has open. It is open while something is done."""

    def __init__(self, config: DataPlaneConfig) -> None:
        self._config = config
        self.folder = Path(config.path)

    def status(self) -> dict[str, Any]:
        """As it is once it has been opened."""

        from acu.data.work import uploads
        from dataplane.errors import DataPlaneError

        async def ask(plane: DataPlane) -> dict[str, Any]:
            await plane.gauges.measure()
            with contextlib.suppress(DataPlaneError):  # the archive is away: what it has is not known then
                await plane.cold.look()
            found: dict[str, Any] = msgspec.to_builtins(plane.status())
            found["cold"]["every_s"] = self._config.archive_every_s
            state = "open" if found["failed"] is None else "takes no writes"
            return {"state": state, "why": found["failed"], "plane": found, "uploads": await uploads(plane)}

        return {"folder": str(self.folder), **self._opened(ask)}

    def perform(self, work: DataWork, told: Told) -> dict[str, Any]:
        """Open, do it, and close."""
        from acu.data.work import perform

        return self._opened(lambda plane: perform(plane, work, told))

    def _opened(self, ask: Callable[[DataPlane], Awaitable[T]]) -> T:
        from dataplane.truth.rocks import check_not_lost

        with data_errors():
            check_not_lost(self.folder / "rocks")
        if not (self.folder / "rocks").is_dir():
            raise self._nothing()
        from dataplane.store import opened

        # Nothing is archived but what the command asks for.
        config = msgspec.structs.replace(self._config, archive_every_s=None)

        async def run() -> T:
            async with opened(config) as plane:
                return await ask(plane)

        with data_errors(" If one runs that did not answer here, say where it listens: --socket PATH or --url URL."):
            return ran(run())

    def _nothing(self) -> DataError:
        """There are no data. An archive says that there were."""
        archive = archive_of(self._config)
        if archive is None:
            return DataError(f"there is no data plane in {self.folder}: nothing has been stored there yet")
        return DataError(
            f"there is no data plane in {self.folder}. If it was lost, its archive is {archive}: bring it back with "
            "`acu data restore --from-bucket` before a daemon begins anew there"
        )


def place_of(args: argparse.Namespace) -> Place:
    """The daemon that the options mean, if it answers; else the folder of the configuration.

    Raises DaemonUnreachable if a daemon was named that does not answer.
    """
    client = Client(target_of(args), TIMEOUT_S)
    try:
        client.get(f"{PATH}/status")
    except DaemonSilent:
        raise
    except DaemonUnreachable:
        if args.url is not None or args.socket is not None:
            raise
        return InFolder(configured(args))
    return InDaemon(client)


def check_stopped(args: argparse.Namespace, config: DataPlaneConfig) -> None:
    """Raise DataError if a daemon answers whose data belong into the configured folder, also while it has none yet."""
    try:
        report = Client(Target(sockets=sockets_of(args)), TIMEOUT_S).get(f"{PATH}/status")
    except DaemonSilent:
        raise
    except DaemonUnreachable:
        return
    try:
        folder = Path(report["folder"])
    except (KeyError, TypeError) as error:
        raise UnknownAnswer(f"{PATH}/status") from error
    if folder.resolve() == Path(config.path).resolve():
        raise DataError(
            f"a running daemon keeps its data in {config.path}, or will as soon as it has some. Stop the daemon that uses it, "
            "then restore again; nothing was changed."
        )


def configured(args: argparse.Namespace) -> DataPlaneConfig:
    """The data plane's section of the configuration, with `auto` replaced."""
    return load(process_environment(), file=args.config).config.data_plane


def archive_of(config: DataPlaneConfig) -> str | None:
    """Where an archive of the data may be: the bucket, which is not asked, or a folder that has something; else None."""
    from dataplane.cold.tier import cold_folder, default_cold_folder

    cold = config.cold
    if cold.bucket is not None:
        return f"the bucket {cold.bucket}, prefix {cold.prefix}"
    folder = cold_folder(cold, default_cold_folder(Path(config.path)))
    try:
        return f"the folder {folder}" if any((folder / cold.prefix).iterdir()) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # one that may not be read may have one
        return f"the folder {folder}"


def ran(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a loop of its own, and let go of threads that are not the interpreter's before it may end.

    The threads of obstore call into Python to hand over what they have read. One that comes back from there, and finds
    the interpreter ending, aborts the process.
    """
    try:
        return asyncio.run(work)
    finally:
        until = time.monotonic() + LEAVE_S
        time.sleep(LEAVE_POLL_S)  # one that waits for its turn has it
        while _foreign_frames() and time.monotonic() < until:
            time.sleep(LEAVE_POLL_S)


def _foreign_frames() -> bool:
    """Whether a thread that Python did not start runs Python code."""
    own = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    return any(ident not in own for ident in sys._current_frames())


@contextlib.contextmanager
def data_errors(hint: str = "") -> Iterator[None]:
    """The data plane's errors as the commands' own. `hint`: what else to do where another process has the folder open."""
    from dataplane.errors import DataPlaneError, Locked

    try:
        yield
    except Locked as error:
        raise DataError(f"{error}{hint}") from error
    except DataPlaneError as error:
        raise DataError(str(error)) from error
