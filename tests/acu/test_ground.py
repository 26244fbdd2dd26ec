"""acu.ground: what is looked at before a start, and what a look leaves alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from acu import models
from acu.config import AcuConfig, DaemonConfig, LoadedConfig, NetworkConfig, NumaConfig
from acu.errors import ModelInUse, StartRefused
from acu.ground import (
    check,
    check_audit_log,
    models_kept,
    open_audit_log,
    read_keys,
    read_tls,
    survey,
)
from acu.hardware import probe_machine
from acu.hardware.numa import read_nodes
from acu.served import plan_models
from agentflow.config import ModelConfig
from dataplane.config import DataPlaneConfig
from tests.acu.certificates import make_certificate
from tests.acu.models.modelfiles import write_model
from tests.acu.test_served import model_folder

PLAYED = {"large": ModelConfig(model="any", engine="scripted")}  # a model that needs no files


def warnings(config: AcuConfig) -> list[str]:
    """What `check` warns of. Raises StartRefused."""
    found: list[str] = []
    check(config, found.append)
    return found


def refused(config: AcuConfig) -> list[str]:
    """The fields that `survey` and `check`, which must agree, refuse."""
    with pytest.raises(StartRefused) as by_survey:
        survey(LoadedConfig(config, None, {}), {})
    with pytest.raises(StartRefused) as by_check:
        warnings(config)
    assert by_survey.value.problems == by_check.value.problems
    return [problem.partition(":")[0] for problem in by_check.value.problems]


def test_a_look_tells_everything_and_makes_nothing(tmp_path: Path) -> None:
    config = AcuConfig(
        network=NetworkConfig(tls_cert_file=str(tmp_path / "none"), tls_key_file=str(tmp_path / "none")),
        models={"large": ModelConfig(model=str(tmp_path / "no-model"))},
        daemon=DaemonConfig(audit_log=str(tmp_path / "no" / "audit")),
    )
    assert refused(config) == ["network.tls_cert_file", "models.large.model", "daemon.audit_log"]
    good = AcuConfig(models=PLAYED, daemon=DaemonConfig(audit_log=str(tmp_path / "audit")))
    assert warnings(good) == []
    ground = survey(LoadedConfig(good, None, {}), {})
    assert [plan.key for plan in ground.plans] == ["large"]
    assert list(tmp_path.iterdir()) == []


def test_the_keys_are_looked_at_by_the_check_and_read_later_by_a_start(tmp_path: Path) -> None:
    config = AcuConfig(models=PLAYED, network=NetworkConfig(api_keys_file=str(tmp_path / "none")))
    with pytest.raises(StartRefused, match=r"network\.api_keys_file: .*none: No such file"):
        warnings(config)
    survey(LoadedConfig(config, None, {}), {})
    with pytest.raises(StartRefused, match=r"network\.api_keys_file: "):
        read_keys(config.network.api_keys_file)
    assert read_keys(None) is None


@pytest.mark.parametrize("field", ["tls_cert_file", "tls_key_file"])
def test_a_fifo_for_a_certificate_or_its_key_is_refused_without_waiting(field: str, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    files: dict[str, Any] = {"tls_cert_file": str(certificate), "tls_key_file": str(key)}
    assert read_tls(NetworkConfig(**files)) is not None
    os.mkfifo(tmp_path / "fifo", 0o600)
    files[field] = str(tmp_path / "fifo")
    with pytest.raises(StartRefused, match=rf"network\.{field}: .*it is not a regular file"):
        read_tls(NetworkConfig(**files))


def test_a_certificate_that_has_expired_is_warned_of_and_served(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, until_hours=-1)
    network = NetworkConfig(tls_cert_file=str(certificate), tls_key_file=str(key))
    [warning] = warnings(AcuConfig(models=PLAYED, network=network))
    assert warning.startswith(f"network.tls_cert_file: {certificate} expired on ")
    assert read_tls(network) is not None


def test_an_audit_log_is_made_when_it_is_opened_and_not_when_it_is_looked_at(tmp_path: Path) -> None:
    path = str(tmp_path / "audit")
    check_audit_log(path)
    assert not Path(path).exists()
    audit = open_audit_log(path)
    assert audit is not None
    audit.close()
    assert Path(path).stat().st_mode & 0o777 == 0o600
    check_audit_log(path)
    assert open_audit_log(None) is None
    with pytest.raises(StartRefused, match="Is a directory"):
        check_audit_log(str(tmp_path))


def test_recommended_sampling_that_cannot_be_used_is_a_warning_of_the_check(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"top_p": 7}))
    (warning,) = warnings(AcuConfig(models={"large": ModelConfig(model=str(folder))}))
    assert warning.startswith(f"{folder}/generation_config.json: top_p 7 is ignored: ")
    embed = ModelConfig(model=str(folder), role="embed", engine="encoder")
    assert warnings(AcuConfig(models={"large": embed})) == [], "a model for embeddings samples nothing"


def test_a_hot_layer_that_the_node_has_no_room_for_is_a_warning_and_one_beyond_all_of_it_is_refused(
    tmp_path: Path,
) -> None:
    models = {"large": ModelConfig(model=str(model_folder(tmp_path / "model")))}
    hot, numa = DataPlaneConfig(hot_layer_mem_mb=3_000), NumaConfig(memory_mb=4_000)
    (warning,) = warnings(AcuConfig(models=models, data_plane=hot, numa=numa))
    assert warning.startswith("data_plane.hot_layer_mem_mb: 3000 MiB and the engines' ")
    assert warnings(AcuConfig(models=models, data_plane=hot)) == []
    less = AcuConfig(models=models, data_plane=hot, numa=NumaConfig(memory_mb=2_999))
    assert refused(less) == ["data_plane.hot_layer_mem_mb"]


def test_models_are_kept_while_the_daemon_lives_and_one_that_went_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = models.pull("mine", cache, folder=write_model(tmp_path / "source")).path
    config = AcuConfig(models={**PLAYED, "embed": ModelConfig(model=str(folder), engine="encoder")})
    plans = plan_models(config, probe_machine())
    with models_kept(plans), pytest.raises(ModelInUse):
        models.remove("mine", cache)
    models.remove("mine", cache)
    with pytest.raises(StartRefused, match=r"models\.embed\.model: .* was removed"), models_kept(plans):
        pass


def test_a_folder_of_data_that_cannot_be_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")

    def with_data(path: Path) -> AcuConfig:
        return AcuConfig(models=PLAYED, data_plane=DataPlaneConfig(path=str(path)))

    assert warnings(with_data(tmp_path / "not" / "there" / "yet")) == []
    assert refused(with_data(file)) == ["data_plane.path"]
    with pytest.raises(StartRefused, match=r"data_plane\.path: .*cannot be a folder, since .*file is none"):
        warnings(with_data(file / "data"))
    assert refused(with_data(tmp_path)) == ["data_plane.path"], "it has a file in it that is not ours"
    assert refused(with_data(Path("/"))) == ["data_plane.path"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_folder_of_data_in_which_everybody_may_write_is_a_warning_of_the_check(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    config = AcuConfig(models=PLAYED, data_plane=DataPlaneConfig(path=str(tmp_path)))
    (warning,) = warnings(config)
    assert warning.startswith("data_plane.path: everybody may write in ")
    survey(LoadedConfig(config, None, {}), {})
    assert tmp_path.stat().st_mode & 0o777 == 0o777


def test_a_node_that_is_not_there_is_refused_and_what_cannot_be_bound_is_a_warning_of_the_check() -> None:
    nodes = read_nodes()
    if not nodes:
        pytest.skip("this kernel has no NUMA")
    missing = AcuConfig(models=PLAYED, numa=NumaConfig(node=nodes[-1].id + 1))
    assert refused(missing) == ["numa.node"]
    usable = next(node for node in nodes if set(node.cpus) & os.sched_getaffinity(0))
    large = AcuConfig(models=PLAYED, numa=NumaConfig(node=usable.id, memory_mb=usable.memory_mb * 2))
    assert f"numa.memory_mb is {usable.memory_mb * 2}, and node {usable.id} has {usable.memory_mb} MiB" in warnings(
        large
    )
