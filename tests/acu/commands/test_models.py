"""acu models: what it removes, and what it leaves alone because a daemon serves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from acu import models
from tests.acu.models.modelfiles import write_model
from tests.acu.running import DaemonFactory, RunningDaemon, acu


@pytest.fixture
def serving(tmp_path: Path, clean_environ: dict[str, str], daemon: DaemonFactory) -> RunningDaemon:
    """A daemon that serves the model `kept` of a cache in which there is `spare` as well; it need not load."""
    cache = Path(clean_environ["XDG_CACHE_HOME"]) / "acu" / "models"
    for name in ("kept", "spare"):
        models.pull(name, cache, folder=write_model(tmp_path / "sources" / name))
    config = {"models": {"embed": {"model": "kept", "engine": "encoder"}}}
    return daemon(config, scripted=False, ready=False)


def cached(environ: dict[str, str]) -> tuple[str, ...]:
    """What is in the cache."""
    return models.names(Path(environ["XDG_CACHE_HOME"]) / "acu" / "models")


def test_a_model_that_a_daemon_serves_is_not_removed(serving: RunningDaemon) -> None:
    config = ("-c", str(serving.config))
    done = acu("models", "rm", "spare", "kept", *config, environ=serving.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"kept is served by the daemon at {serving.socket} (pid {serving.pid}); stop it first" in done.stderr
    assert done.stderr.count("\n") == 1
    assert cached(serving.environ) == ("kept", "spare")
    done = acu("models", "rm", "spare", *config, environ=serving.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "spare: removed\n", "")
    done = acu("models", "rm", "kept", "--force", "--socket", str(serving.socket), environ=serving.environ)
    assert (done.returncode, done.stdout) == (0, "kept: removed\n")
    assert cached(serving.environ) == ()


def test_the_same_name_in_another_cache_is_removed(serving: RunningDaemon, tmp_path: Path) -> None:
    other = {**serving.environ, "XDG_CACHE_HOME": str(tmp_path / "other")}
    models.pull("kept", tmp_path / "other" / "acu" / "models", folder=tmp_path / "sources" / "kept")
    done = acu("models", "rm", "kept", "-c", str(serving.config), environ=other)
    assert (done.returncode, done.stderr) == (0, "")
    assert cached(serving.environ) == ("kept", "spare")


def test_without_a_daemon_it_removes(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    cache = Path(clean_environ["XDG_CACHE_HOME"]) / "acu" / "models"
    models.pull("mine", cache, folder=write_model(tmp_path / "mine"))
    done = acu("models", "rm", "mine", environ=clean_environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine: removed\n", "")
    again = acu("models", "rm", "mine", environ=clean_environ)
    assert (again.returncode, again.stdout) == (1, "")
    assert "there is nothing to remove" in again.stderr
