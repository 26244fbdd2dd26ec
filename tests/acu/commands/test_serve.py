"""acu serve: the command line over the configuration, and pulling what is missing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from acu import models
from acu.commands.serve import add_arguments, configuration, pull_missing
from acu.config import AcuConfig, GpuConfig, LoadedConfig
from acu.errors import ModelNotFound, SourceUnreachable, StartRefused
from agentflow.config import ModelConfig
from tests.acu.models.fakehub import FakeHub, serving
from tests.acu.models.modelfiles import write_model


def loaded(tmp_path: Path, *words: str) -> LoadedConfig:
    """The configuration of `acu serve` with these words."""
    file = tmp_path / "acu.yaml"
    file.write_text("models: {large: {model: m}, embed: {model: e}}\ndaemon: {log_level: warning}\n")
    parser = argparse.ArgumentParser()
    add_arguments(parser.add_subparsers())
    return configuration(parser.parse_args(["serve", "-c", str(file), *words]))


def test_flags_lie_over_the_file_and_are_the_origin_of_what_they_set(tmp_path: Path) -> None:
    found = loaded(tmp_path, "--bind", "127.0.0.1:1", "--socket", "/s", "--log-level", "debug", "--log-format", "json")
    assert (found.config.network.bind_addr, found.config.network.unix_socket) == ("127.0.0.1:1", "/s")
    assert (found.config.daemon.log_level, found.config.daemon.log_format) == ("debug", "json")
    assert found.origins["daemon.log_level"] == "--log-level"
    assert loaded(tmp_path).config.daemon.log_level == "warning"


def test_no_tcp_means_no_address(tmp_path: Path) -> None:
    found = loaded(tmp_path, "--no-tcp")
    assert found.config.network.bind_addr is None
    assert found.origins["network.bind_addr"] == "--no-tcp"


def test_the_scripted_engine_takes_every_models_place_with_one_script(tmp_path: Path) -> None:
    found = loaded(tmp_path, "--engine", "scripted", "--script", "/script.yaml").config.models
    assert {key: (model.engine, model.script) for key, model in found.items()} == {
        "large": ("scripted", "/script.yaml"),
        "embed": ("scripted", "/script.yaml"),
    }
    with pytest.raises(StartRefused, match="add --engine scripted"):
        loaded(tmp_path, "--script", "/script.yaml")


# --pull


def pull(cache: Path, **served: ModelConfig) -> None:
    """`acu serve --pull` with these models."""
    config = AcuConfig(gpu=GpuConfig(model_cache_dir=str(cache)), models=served)
    pull_missing(LoadedConfig(config, None, {}))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    """A hub with the one model org/tiny."""

    class Hub(FakeHub):
        files = {path.name: path.read_bytes() for path in write_model(tmp_path / "original").iterdir()}  # noqa: RUF012
        lies, refusals, cdn, requested, tokens = {}, {}, None, [], []

    with serving(Hub) as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield Hub


def test_what_is_missing_or_damaged_is_pulled_and_what_is_there_is_left_alone(
    tmp_path: Path, hub: type[FakeHub]
) -> None:
    cache = tmp_path / "cache"
    mine = models.pull("mine", cache, folder=write_model(tmp_path / "mine"))
    served = {"large": ModelConfig(model="org/tiny"), "small": ModelConfig(model="mine")}
    pull(cache, **served, played=ModelConfig(model="none", engine="scripted"))
    assert models.names(cache) == ("mine", "org--tiny")
    asked = len(hub.requested)
    pull(cache, **served)
    assert len(hub.requested) == asked
    assert models.locate("mine", cache) == mine
    (cache / "org--tiny" / "config.json").write_text("")
    pull(cache, **served)
    models.verify("org/tiny", cache)


def test_a_folder_is_not_pulled_and_its_own_problem_is_for_the_start_to_tell(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "unsafe")
    (folder / "weights.bin").touch()
    pull(tmp_path / "cache", large=ModelConfig(model=str(folder)), small=ModelConfig(model="./none"))
    assert not (tmp_path / "cache").exists()


def test_a_name_that_nobody_knows_and_a_hub_that_refuses_are_told(tmp_path: Path, hub: type[FakeHub]) -> None:
    with pytest.raises(ModelNotFound, match="smollm2"):
        pull(tmp_path / "cache", large=ModelConfig(model="smolm2-135m"))
    with pytest.raises(SourceUnreachable, match="org/none"):
        pull(tmp_path / "cache", large=ModelConfig(model="org/none"))
