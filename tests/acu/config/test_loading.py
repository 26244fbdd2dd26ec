"""acu.config.loading: layers, the file that is read, and problems that name what to change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from acu.config import find_file, load
from acu.errors import ConfigError
from tests.acu.config.files import problems, write
from tests.acu.running import ROOT


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


def test_a_variable_that_holds_a_section_is_the_origin_of_all_that_is_in_it_and_of_nothing_else(tmp_path: Path) -> None:
    file = write(
        tmp_path / "acu.yaml", "models:\n  large: {model: m, sampling: {top_p: 0.5, min_p: 0.1}}\n  b: {model: n}"
    )
    environ = {"HOME": str(tmp_path), "ACU_MODELS__LARGE__SAMPLING": "{min_p: 0.2, top_k: 5}"}
    loaded = load(environ, file=file)
    variable = "ACU_MODELS__LARGE__SAMPLING"
    assert {path.rpartition(".")[2]: origin for path, origin in loaded.origins.items() if ".sampling." in path} == {
        "min_p": variable,
        "top_k": variable,
    }
    assert loaded.origins["models.large.model"] == f"{file}:2"
    loaded = load({**environ, "ACU_MODELS__LARGE": "{model: other}", "ACU_MODELS__B__MAX_RUNNING": "3"}, file=file)
    assert loaded.origins["models.large.model"] == "ACU_MODELS__LARGE"
    assert loaded.origins["models.large.sampling.top_k"] == variable, "the longer name comes later, and wins"
    assert loaded.origins["models.b.model"] == f"{file}:3"
    assert loaded.origins["models.b.max_running"] == "ACU_MODELS__B__MAX_RUNNING"


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
        f"models.large.model: is required: Catalogue name (`acu models list`), path of a local folder, or hub id ({file}:6)",
        f"daemon.log_level: 'loud': expected debug / info / warning / error ({file}:7)",
    )


def test_an_apis_document_does_not_say_where_it_is(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "tools: {http: {stock: {document: stock.yaml}}}")
    assert found.startswith("tools.http.stock.url: is required: Where the API is: what its paths are appended to.")
    assert "The document's `servers` are not used" in found


def test_unknown_variables_are_refused_by_name_and_the_exempt_ones_are_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"HOME": str(tmp_path), "ACU_FOO": "1", "ACU_DAEMON__LOG_LEVL": "info"})
    assert refused.value.problems == (
        "ACU_FOO: unknown variable; a field's is ACU_SECTION__FIELD",
        "daemon.log_levl: unknown key; did you mean log_level? (ACU_DAEMON__LOG_LEVL)",
    )
    load({"HOME": str(tmp_path), "ACU_TEST_X": "1", "ACU_DAEMON_PID": "1", "ACU_CONFIG": "", "ACU_API_KEY": "k"})


def test_an_unknown_section_of_a_variable_names_the_variable(tmp_path: Path) -> None:
    assert problems(tmp_path, "", ACU_NETWRK__X="1") == ("netwrk: unknown key; did you mean network? (ACU_NETWRK__X)",)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("port", "bind_addr (ADDRESS:PORT)"),
        ("host", "bind_addr (ADDRESS:PORT)"),
        ("socket", "unix_socket"),
        ("api_keys", "api_keys_file"),
    ],
)
def test_a_key_that_is_called_otherwise_elsewhere_names_ours(tmp_path: Path, key: str, meant: str) -> None:
    (problem,) = problems(tmp_path, f"network: {{{key}: 8331}}")
    assert problem == f"network.{key}: unknown key; did you mean {meant}? ({tmp_path / 'acu.yaml'}:1)"
    (elsewhere,) = problems(tmp_path, f"telemetry: {{{key}: 8331}}")
    assert meant not in elsewhere


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("service_owner", "'service_owner': expected a list; write [service_owner]"),
        ('"calc*"', "'calc*': expected a list; write [\"calc*\"]"),
        ("no tool", "'no tool': expected list of text of the form ^[a-zA-Z0-9_.*-]{1,128}$"),
        ("3", "3: expected list of text of the form ^[a-zA-Z0-9_.*-]{1,128}$"),
    ],
)
def test_a_text_in_the_place_of_a_list_is_told_how_to_write_it(tmp_path: Path, value: str, told: str) -> None:
    (problem,) = problems(tmp_path, f"agents: {{desk: {{tools: {value}}}}}")
    assert problem == f"agents.desk.tools: {told} ({tmp_path / 'acu.yaml'}:1)"


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


def test_a_variable_that_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"HOME": str(tmp_path), "ACU___X": "1", "ACU_SCHEDULER__QUEUE_LIMIT": ""})
    assert refused.value.problems == (
        "ACU___X: unknown variable; a field's is ACU_SECTION__FIELD",
        "scheduler.queue_limit: null: expected integer 1..100000 (ACU_SCHEDULER__QUEUE_LIMIT)",
    )


def test_values_of_a_section_that_do_not_go_together_are_told_in_its_own_words(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "data_plane:\n  cold: {bucket: b, endpoint: 'http://box:9000'}\n")
    assert problem == (
        "data_plane.cold: the endpoint is http: use https, or set allow_http to true on a network you trust "
        f"({tmp_path / 'acu.yaml'}:2)"
    )


def test_what_a_start_says_of_a_field_is_located_at_the_value_that_it_tells(tmp_path: Path) -> None:
    file = write(
        tmp_path / "acu.yaml",
        """\
        agents:
          desk:
            model: large
            tools: [calculator,
              calculater]
          scribe: {}
        """,
    )
    loaded = load({"HOME": str(tmp_path), "ACU_TOOLS__PYTHON__MINE__MODULE": "my.tools"}, file=file)
    for said, origin in (
        ("agents.desk.tools: no tool 'calculater'", f"{file}:5"),
        ("agents.desk.tools: no tool begins with 'calc'", f"{file}:4"),
        ("agents.desk: large is too small", f"{file}:3"),
        ("agents.desk: enlarge it", f"{file}:2"),
        ("agents.scribe: no model", f"{file}:6"),
        ("tools.python.mine: my.tools cannot be imported", "ACU_TOOLS__PYTHON__MINE__MODULE"),
        ("models.large: is not there", None),
        ("a sentence without a field", None),
    ):
        assert loaded.located(said) == (f"{said} ({origin})" if origin else said)


def test_variables_that_the_scripts_know_are_no_unknown_fields(tmp_path: Path) -> None:
    told = "\n".join(path.read_text() for path in (ROOT / "scripts").iterdir() if path.is_file())
    known = set(re.findall(r"\$\{(ACU_[A-Z]+(?:_[A-Z]+)*):?-", told)) - {
        "ACU_REPORT",
        "ACU_ONLY",
        "ACU_FIELDS",
        "ACU_PART",
    }
    assert {"ACU_SUBNET", "ACU_RUN_DIR"} <= known  # those that people set; the four are between the scripts
    load({"HOME": str(tmp_path), **dict.fromkeys(known, "1")})
