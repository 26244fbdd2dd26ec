"""Fixtures: the real daemon, `python -m acu serve --engine scripted`, started, waited for, stopped and looked after."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, isolated_environ, wait_until_it_answers


@pytest.fixture
def clean_environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which no configuration, socket or model of the user is found."""
    return isolated_environ(tmp_path)


@pytest.fixture
def daemon(tmp_path: Path, clean_environ: dict[str, str]) -> Iterator[DaemonFactory]:
    """Starts daemons; each that still runs at the end of the test is stopped, with exit code 0 and nothing left.

    `config` is laid over the test's own configuration, `script` is the scripted engine's, `flags` are more words of
    the command line; `scripted=False` takes the configured engines. With `ready=False` it returns as soon as it accepts.
    """
    with _daemons(tmp_path, clean_environ) as start:
        yield start


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonFactory]:
    """As `daemon`, for daemons that a module's tests share: they ask and change nothing that another would see."""
    folder = tmp_path_factory.mktemp("shared")
    with _daemons(folder, isolated_environ(folder)) as start:
        yield start


@contextmanager
def _daemons(folder: Path, clean_environ: dict[str, str]) -> Iterator[DaemonFactory]:
    started: list[RunningDaemon] = []

    def start(
        config: Mapping[str, Any] | None = None,
        *,
        script: Mapping[str, Any] | None = None,
        flags: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        scripted: bool = True,
        ready: bool = True,
    ) -> RunningDaemon:
        number = len(started)
        document: dict[str, Any] = {
            "network": {"bind_addr": "127.0.0.1:0", "unix_socket": str(folder / f"d{number}" / "acu.sock")}
        }
        for section, values in (config or {}).items():
            document[section] = document.get(section, {}) | dict(values)
        path = folder / f"acu{number}.yaml"
        path.write_text(yaml.safe_dump(document))
        if script is not None:
            (folder / f"script{number}.yaml").write_text(yaml.safe_dump(dict(script)))
            flags = (*flags, "--script", str(folder / f"script{number}.yaml"))
        if scripted:
            flags = ("--engine", "scripted", *flags)
        log = folder / f"log{number}"
        own_environ = {**clean_environ, **(environ or {})}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "acu", "serve", "-c", str(path), *flags],
                cwd=ROOT,
                env=own_environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        running = RunningDaemon(process, Path(document["network"]["unix_socket"]), log, path, own_environ)
        started.append(running)
        wait_until_it_answers(running, ready=ready)
        return running

    yield start
    for running in started:
        if running.checked:
            continue
        if running.process.poll() is None:
            running.stop()
        else:
            pytest.fail(f"the daemon ended by itself with {running.process.returncode}: {running.log.read_text()}")
