"""acu.config: layers, places, and problems that name what to change."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from acu.config import (
    AcuConfig,
    NetworkConfig,
    client_sockets,
    default_model_cache,
    default_socket,
    exposure_problems,
    find_file,
    load,
    model_names,
    split_address,
)
from acu.errors import ConfigError
from agentflow.config import ModelConfig


def write(path: Path, text: str) -> Path:
    """A configuration file."""
    path.write_text(textwrap.dedent(text))
    return path


def problems(tmp_path: Path, text: str, **environ: str) -> tuple[str, ...]:
    """The problems that a file has."""
    with pytest.raises(ConfigError) as refused:
        load({"HOME": str(tmp_path), **environ}, file=write(tmp_path / "acu.yaml", text))
    return refused.value.problems


def test_without_a_file_the_small_models_are_served_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    loaded = load({"HOME": str(tmp_path)}, gpu_present=False)
    assert {key: model.model for key, model in loaded.config.models.items()} == {
        "large": "smollm2-135m-instruct",
        "embed": "all-minilm-l6-v2",
    }
    assert loaded.file is None
    assert loaded.config.network.bind_addr == "127.0.0.1:8228"


def test_without_a_file_a_gpu_gets_the_seven_billion_model(tmp_path: Path) -> None:
    loaded = load({"HOME": str(tmp_path)}, gpu_present=True)
    assert loaded.config.models["large"].model == "qwen2.5-7b-instruct-awq"


def test_a_variable_wins_over_the_file_and_a_flag_over_both(tmp_path: Path) -> None:
    file = write(tmp_path / "acu.yaml", "daemon: {log_level: debug, drain_timeout_s: 5}\nscheduler: {queue_limit: 7}")
    loaded = load(
        {"HOME": str(tmp_path), "ACU_DAEMON__LOG_LEVEL": "error", "ACU_SCHEDULER__QUEUE_LIMIT": "8"},
        file=file,
        flags={"scheduler.queue_limit": ("--queue-limit", 9)},
    )
    assert loaded.config.daemon.log_level == "error"
    assert loaded.config.daemon.drain_timeout_s == 5.0
    assert loaded.config.scheduler.queue_limit == 9
    assert loaded.origins["daemon.log_level"] == "ACU_DAEMON__LOG_LEVEL"
    assert loaded.origins["daemon.drain_timeout_s"] == f"{file}:1"
    assert loaded.origins["scheduler.queue_limit"] == "--queue-limit"
    assert "scheduler.deadline_s" not in loaded.origins


def test_a_models_section_replaces_the_default_models_and_a_variable_changes_one_field(tmp_path: Path) -> None:
    file = write(tmp_path / "acu.yaml", "models: {only: {model: my-model}}")
    loaded = load({"HOME": str(tmp_path), "ACU_MODELS__ONLY__MAX_RUNNING": "3"}, file=file)
    assert list(loaded.config.models) == ["only"]
    assert loaded.config.models["only"].max_running == 3


def test_an_empty_variable_means_null(tmp_path: Path) -> None:
    assert load({"HOME": str(tmp_path), "ACU_NETWORK__BIND_ADDR": ""}).config.network.bind_addr is None


def test_every_problem_is_told_at_once_with_its_line_and_the_nearest_key(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        scheduler:
          queue_limt: 3
          deadline_s: soon
        network: {socket_mode: 660}
        models:
          large: {max_running: 0}
        daemon: {log_level: loud}
        """,
    )
    file = tmp_path / "acu.yaml"
    assert found == (
        f"scheduler.queue_limt: unknown key; did you mean queue_limit? ({file}:2)",
        f"scheduler.deadline_s: 'soon': expected number above 0, up to 86400 ({file}:3)",
        f"network.socket_mode: 660: expected text of the form ^0?[0-7]{{3}}$ ({file}:4)",
        f"models.large.max_running: 0: expected integer 1..4096 or null ({file}:6)",
        "models.large.model: is required",
        f"daemon.log_level: 'loud': expected debug / info / warning / error ({file}:7)",
    )


def test_unknown_variables_are_refused_by_name_and_the_exempt_ones_are_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"HOME": str(tmp_path), "ACU_FOO": "1", "ACU_DAEMON__LOG_LEVL": "info"})
    assert refused.value.problems == (
        "ACU_FOO: unknown variable; a field's is ACU_SECTION__FIELD",
        "daemon.log_levl: unknown key; did you mean log_level? (ACU_DAEMON__LOG_LEVL)",
    )
    load({"HOME": str(tmp_path), "ACU_TEST_X": "1", "ACU_DAEMON_PID": "1", "ACU_CONFIG": ""})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("network: {bind_addr: 'localhost'}", "network.bind_addr: 'localhost': expected ADDRESS:PORT"),
        ("network: {bind_addr: '127.0.0.1:99999'}", "network.bind_addr: '127.0.0.1:99999': expected ADDRESS:PORT"),
        ("network: {bind_addr: 'box:80'}", "network.bind_addr: 'box:80': 'box' is not an IP address"),
        ("network: {bind_addr: null, unix_socket: null}", "network: bind_addr and unix_socket are both null"),
        ("network: {tls_cert_file: a.pem}", "network.tls_key_file: TLS needs both"),
        ("network: {bind_addr: '0.0.0.0:8228'}", "network.bind_addr: 0.0.0.0 can be reached from other machines"),
        ("network: {bind_addr: '[::]:8228', api_keys_file: k}", "set network.tls_cert_file, network.tls_key_file"),
        ("models: {a: {model: m}, b: {model: m}}", "models.b: the name 'm' belongs to models.a too"),
        ("models: {a: {model: m, engine: encoder}}", "models.a.engine: 'encoder' makes vectors"),
        ("models: {Large: {model: m}}", "models.Large: 'Large': expected text of the form"),
        ("network: 3", "network: 3: expected a section with keys bind_addr"),
        ("models: [a]", "models: ['a']: expected a mapping from names to sections"),
    ],
)
def test_contradictions_name_the_field_and_what_to_do(tmp_path: Path, text: str, problem: str) -> None:
    assert any(problem in found for found in problems(tmp_path, text)), problems(tmp_path, text)


def test_a_socket_path_that_the_kernel_cannot_take_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, f"network: {{unix_socket: /{'x' * 107}}}")
    assert "longer than the 107 bytes" in found
    load({"HOME": str(tmp_path)}, file=write(tmp_path / "ok.yaml", f"network: {{unix_socket: /{'x' * 106}}}"))


def test_relative_paths_count_from_the_files_folder_and_tilde_is_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    file = write(
        tmp_path / "acu.yaml",
        """\
        network: {api_keys_file: keys.yaml, unix_socket: ~/s.sock}
        models: {large: {model: ./weights, script: ../s.yaml}, small: {model: org/name}}
        """,
    )
    config = load({"HOME": "/home/somebody"}, file=file).config
    assert config.network.api_keys_file == str(tmp_path / "keys.yaml")
    assert config.network.unix_socket == "/home/somebody/s.sock"
    assert config.models["large"].model == str(tmp_path / "weights")
    assert config.models["large"].script == str(tmp_path.parent / "s.yaml")
    assert config.models["small"].model == "org/name"


def test_the_file_is_the_named_one_then_the_variable_then_the_users_own(tmp_path: Path) -> None:
    own = tmp_path / ".config" / "acu" / "acu.yaml"
    own.parent.mkdir(parents=True)
    own.touch()
    environ = {"HOME": str(tmp_path)}
    assert find_file(environ, None) == own
    assert find_file({**environ, "ACU_CONFIG": "/etc/x.yaml"}, None) == Path("/etc/x.yaml")
    assert find_file({**environ, "ACU_CONFIG": "/etc/x.yaml"}, Path("/etc/y.yaml")) == Path("/etc/y.yaml")


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load({"HOME": str(tmp_path)}, file=tmp_path / "nowhere.yaml")


def test_the_socket_lies_in_the_runtime_folder_of_the_user_then_of_the_service_then_in_tmp(tmp_path: Path) -> None:
    assert default_socket({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "acu" / "acu.sock"
    service = {"XDG_RUNTIME_DIR": str(tmp_path / "none"), "RUNTIME_DIRECTORY": "/run/acu:/run/other"}
    assert default_socket(service) == Path("/run/acu/acu.sock")
    assert default_socket({}) == Path(f"/tmp/acu-{os.geteuid()}/acu.sock")
    assert client_sockets({})[-1] == Path("/run/acu/acu.sock")


def test_models_are_cached_where_the_service_says_or_in_the_users_cache(tmp_path: Path) -> None:
    assert default_model_cache({"CACHE_DIRECTORY": "/var/cache/acu", "HOME": "/x"}) == Path("/var/cache/acu/models")
    assert default_model_cache({"STATE_DIRECTORY": "/var/lib/acu", "HOME": "/x"}) == Path("/var/lib/acu/models")
    assert default_model_cache({"XDG_CACHE_HOME": "/c", "HOME": "/x"}) == Path("/c/acu/models")
    assert default_model_cache({"HOME": "/x"}) == Path("/x/.cache/acu/models")


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("127.0.0.1", 65535))],
)
def test_an_address_is_split(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


def test_only_loopback_may_lie_open() -> None:
    assert exposure_problems(NetworkConfig(), "127.8.8.8") == []
    assert exposure_problems(NetworkConfig(), "::1") == []
    full = NetworkConfig(api_keys_file="k", tls_cert_file="c", tls_key_file="t")
    assert exposure_problems(full, "192.168.0.1") == []
    assert exposure_problems(NetworkConfig(api_keys_file="k"), "192.168.0.1") != []


def test_a_model_is_known_by_its_served_name_its_key_and_its_own_name() -> None:
    assert model_names("large", ModelConfig(model="org/My-Model")) == ("My-Model", "large")
    named = ModelConfig(model="m", served_name="gpt", aliases=("gpt", "best"))
    assert model_names("large", named) == ("gpt", "large", "m", "best")


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        AcuConfig().network = NetworkConfig()  # type: ignore[misc]


@pytest.mark.parametrize("path", ['"/x/\\ud800"', '"/x/\\0"', '"~\\0"', '"~\\ud800/x"'])
def test_a_text_that_no_path_can_be_is_refused(tmp_path: Path, path: str) -> None:
    (found,) = problems(tmp_path, f"network: {{unix_socket: {path}}}")
    assert found.startswith("network.unix_socket: ")
    assert "NUL or half of a surrogate pair" in found


def test_a_path_below_the_home_of_nobody_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "network: {unix_socket: ~no-such-user/x}")
    assert found.startswith("network.unix_socket: '~no-such-user/x': this user's home folder is not known")


def test_a_variable_that_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"HOME": str(tmp_path), "ACU___X": "1", "ACU_SCHEDULER__QUEUE_LIMIT": ""})
    assert refused.value.problems == (
        "ACU___X: unknown variable; a field's is ACU_SECTION__FIELD",
        "scheduler.queue_limit: null: expected integer 1..100000 (ACU_SCHEDULER__QUEUE_LIMIT)",
    )
