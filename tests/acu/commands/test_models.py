"""acu models: what it removes, and what it leaves alone because a daemon serves it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from acu import models
from acu.commands.models import listing, meant, table
from agentflow.config import ModelConfig
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
    done = acu("models", "rm", "kept", "spare", environ=serving.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("acu: kept is served by a daemon: stop that first")
    assert "--force" in done.stderr
    assert done.stderr.count("\n") == 1
    assert cached(serving.environ) == ("kept", "spare")
    done = acu("models", "rm", "spare", environ=serving.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "spare: removed\n", "")
    done = acu("models", "rm", "kept", "--force", environ=serving.environ)
    assert (done.returncode, done.stdout) == (0, "kept: removed\n")
    assert cached(serving.environ) == ()


def test_a_daemon_without_a_socket_keeps_its_model_until_it_ends(serving: RunningDaemon) -> None:
    """It is not asked: what counts is that it lives."""
    aside = serving.socket.rename(serving.socket.with_name("elsewhere"))
    assert acu("models", "rm", "kept", environ=serving.environ).returncode == 1
    aside.unlink()
    serving.signal(signal.SIGKILL)
    serving.process.wait()
    serving.checked = True
    done = acu("models", "rm", "kept", environ=serving.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "kept: removed\n", "")


def test_the_same_name_in_another_cache_is_removed(serving: RunningDaemon, tmp_path: Path) -> None:
    other = {**serving.environ, "XDG_CACHE_HOME": str(tmp_path / "other")}
    models.pull("kept", tmp_path / "other" / "acu" / "models", folder=tmp_path / "sources" / "kept")
    done = acu("models", "rm", "kept", environ=other)
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


def test_a_name_of_the_configuration_is_taken_as_the_model_that_it_means(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    cache = Path(clean_environ["XDG_CACHE_HOME"]) / "acu" / "models"
    models.pull("mine", cache, folder=write_model(tmp_path / "mine"))
    config = tmp_path / "acu.yaml"
    config.write_text("models: {large: {model: mine, served_name: shown, aliases: [other]}}\n")
    for name in ("mine", "large", "shown", "other"):
        done = acu("models", "verify", name, "-c", str(config), environ=clean_environ)
        assert (done.returncode, done.stdout.partition(":")[0]) == (0, "mine"), done
        done = acu("models", "preload", name, "-c", str(config), environ=clean_environ)
        assert (done.returncode, done.stdout.partition(":")[0]) == (0, "mine"), done
    done = acu("models", "rm", "other", "-c", str(config), environ=clean_environ)
    assert (done.returncode, done.stdout) == (0, "mine: removed\n")


def test_a_models_own_name_goes_before_one_of_the_configuration(tmp_path: Path) -> None:
    models.pull("org--mine", tmp_path / "cache", folder=write_model(tmp_path / "mine"))
    taken = ("org--mine", "org/mine", "all-minilm-l6-v2")
    configured = {"large": ModelConfig(model="else", aliases=(*taken, "free"))}
    assert [meant(name, configured, tmp_path / "cache") for name in taken] == list(taken)
    assert meant("free", configured, tmp_path / "cache") == "else"
    assert meant("unknown", configured, tmp_path / "cache") == "unknown"


@pytest.mark.parametrize(("width", "last"), [(None, "LANGUAGES"), (80, "LANGUAGES"), (79, "LICENCE"), (20, "STATE")])
def test_the_list_leaves_out_what_a_narrow_terminal_has_no_room_for(
    width: int | None, last: str, tmp_path: Path
) -> None:
    lines = table(listing(tmp_path), width).splitlines()
    assert lines[0].split()[-1] == last
    assert all(line.split()[0] == row["name"] for line, row in zip(lines[1:], listing(tmp_path), strict=True))
    if width is not None and width >= 79:
        assert max(map(len, lines)) <= width
