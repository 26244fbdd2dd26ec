"""acu config: the schema, the check, the effective values, and the reference that documents every field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from acu.commands.config import reference
from acu.config import AcuConfig
from acu.config.fields import fields_of
from tests.acu.certificates import make_certificate
from tests.acu.models import headerfiles
from tests.acu.running import ROOT, DaemonFactory, acu
from tests.acu.test_served import model_folder

PLAYED = "models: {large: {model: any, engine: scripted}}\n"  # a model that needs no files


def test_every_field_is_documented() -> None:
    lacking = [field.path for field in fields_of(AcuConfig) if len(field.description) < 10]
    assert lacking == []


def test_times_and_sizes_say_their_unit() -> None:
    units = {"_s": "second", "_mb": "MiB"}
    for field in fields_of(AcuConfig):
        for suffix, word in units.items():
            if field.path.endswith(suffix):
                assert word.lower() in field.description.lower(), field.path


def test_the_references_tables_have_a_sections_own_fields_before_its_sections() -> None:
    heading = ""
    for line in reference().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        if line.startswith(("| `instructions` ", "| `tools` | list of text of", "| `tool_mode` ")):
            assert heading == "agents"
    assert "## agents.NAME.thresholds" in reference()


def test_the_reference_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "configuration.md"
    assert page.read_text() == reference().rstrip() + "\n", "run: acu config reference > docs/configuration.md"


def test_the_schema_takes_what_the_reader_takes_and_refuses_unknown_keys(clean_environ: dict[str, str]) -> None:
    done = acu("config", "schema", environ=clean_environ)
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    jsonschema.validate({"models": {"large": {"model": "m", "max_running": 2}}}, schema)
    mistakes: tuple[dict[str, Any], ...] = (
        {"netwrk": {}},
        {"network": {"socket_mode": "abc"}},
        {"models": {"large": {"model": "m", "max_running": 0}}},
        {"models": {"large": {"max_running": 2}}},
    )
    for wrong in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_check_says_valid_or_every_problem(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(PLAYED + "daemon: {log_level: debug}\n")
    bad.write_text("daemon: {log_levl: debug}\nscheduler: {queue_limit: -1}\n" + PLAYED)
    done = acu("config", "check", str(good), environ=clean_environ)
    assert (done.returncode, done.stdout) == (0, f"{good}: valid\n")
    done = acu("config", "check", str(bad), environ=clean_environ)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"acu: daemon.log_levl: unknown key; did you mean log_level? ({bad}:1)",
        f"acu: scheduler.queue_limit: -1: expected integer 1..100000 ({bad}:2)",
    ]


@pytest.mark.parametrize("option", [(), ("-c",)])
def test_check_looks_at_what_serve_would_variables_included(
    tmp_path: Path, clean_environ: dict[str, str], option: tuple[str, ...]
) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(PLAYED)
    environ = {**clean_environ, "ACU_SCHEDULER__QUEUE_LIMIT": "abc"}
    done = acu("config", "check", *option, str(good), environ=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == acu("serve", "-c", str(good), environ=environ).stderr
    assert done.stderr.endswith("(ACU_SCHEDULER__QUEUE_LIMIT)\n")
    environ |= {"ACU_SCHEDULER__QUEUE_LIMIT": "64", "ACU_DAEMON__LOG_LEVEL": "error"}
    done = acu("config", "check", *option, str(good), environ=environ)
    told = f"{good}, with ACU_DAEMON__LOG_LEVEL, ACU_SCHEDULER__QUEUE_LIMIT: valid\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")


def test_check_goes_on_beside_what_is_ill_typed(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    file = tmp_path / "acu.yaml"
    file.write_text("""
daemon: {log_levl: debug, audit_log: /nowhere/log}
scheduler: {queue_limit: abc}
models:
  large: {model: any, engine: scripted}
  small: {model: no-such-model, max_running: many}
agents:
  desk: {answr: result, tools: [calculater]}
  other: {model: larg}
tools:
  installed: false
  python: {away: {module: away.py}}
""")
    done = acu("config", "check", str(file), environ=clean_environ)
    assert done.returncode == 2
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "daemon.log_levl",
        "scheduler.queue_limit",
        "models.small.max_running",
        "agents.desk.answr",
        "models.small.model",
        "daemon.audit_log",
        "tools.python.away",
    ]
    file.write_text(
        file.read_text().replace("many", "1").replace("no-such-model, ", "no-such-model, engine: scripted, ")
    )
    done = acu("config", "check", str(file), environ=clean_environ)
    assert "agents.other.model: 'larg' is not served" in done.stderr
    file.write_text(file.read_text().replace("larg}", "large}").partition("  python:")[0])
    done = acu("config", "check", str(file), environ=clean_environ)
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "daemon.log_levl",
        "scheduler.queue_limit",
        "agents.desk.answr",
        "daemon.audit_log",
        "agents.desk.tools",
    ]


def test_check_tells_everything_that_serve_would_refuse_and_changes_nothing(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    certificate, key = make_certificate(tmp_path)
    key.chmod(0o644)
    keys, script = tmp_path / "keys.yaml", tmp_path / "script.yaml"
    keys.write_text("- {name: one, key: sk-one-000000000000}\n")
    keys.chmod(0o644)
    script.write_text("answr: x\n")
    document: dict[str, Any] = {
        "network": {"api_keys_file": str(keys), "tls_cert_file": str(certificate), "tls_key_file": str(key)},
        "models": {
            "gone": {"model": "smollm2-135m-instruct"},
            "unknown": {"model": "smolm2"},
            "template": {"model": "t", "engine": "scripted", "chat_template": str(tmp_path / "none.jinja")},
            "played": {"model": "p", "engine": "scripted", "script": str(script)},
        },
        "daemon": {"audit_log": str(tmp_path / "no" / "audit")},
    }
    file = tmp_path / "acu.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    before = tree(tmp_path)
    done = acu("config", "check", str(file), environ=clean_environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "network.api_keys_file",
        "network.tls_key_file",
        "models.gone.model",
        "models.unknown.model",
        "models.template.chat_template",
        "models.played.script",
        "daemon.audit_log",
    ]
    assert tree(tmp_path) == before
    served = acu("serve", "-c", str(file), environ=clean_environ)
    assert served.returncode == 2
    assert set(served.stderr.splitlines()) == set(done.stderr.splitlines()[1:]), "all but the keys, which come later"

    key.chmod(0o600)
    keys.chmod(0o600)
    script.write_text("answer: x\n")
    document["models"] = {"played": {"model": "p", "engine": "scripted", "script": str(script)}}
    document["daemon"] = {"audit_log": str(tmp_path / "audit")}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    before = tree(tmp_path)
    done = acu("config", "check", str(file), environ=clean_environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}: valid\n", "")
    assert tree(tmp_path) == before


def test_check_looks_at_no_port_and_no_socket(
    tmp_path: Path, clean_environ: dict[str, str], daemon: DaemonFactory
) -> None:
    running = daemon()
    busy = {"bind_addr": running.url.removeprefix("http://"), "unix_socket": str(running.socket)}
    file = tmp_path / "busy.yaml"
    file.write_text(PLAYED + yaml.safe_dump({"network": busy}))
    assert acu("config", "check", str(file), environ=clean_environ).returncode == 0
    assert running.status()["service"]["ready"]


def test_check_says_that_a_model_does_not_fit(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    folder = headerfiles.model_folder(tmp_path / "model", {}, [("w", "U8", (8 << 40,))])
    file = tmp_path / "acu.yaml"
    file.write_text(f"models: {{embed: {{model: {folder}, engine: encoder}}}}\n")
    done = acu("config", "check", str(file), environ=clean_environ)
    assert done.returncode == 2
    assert done.stderr.startswith(f"acu: models: the weights of models.embed ({folder}) need 8388608 MiB of memory")


def test_check_warns_of_recommended_sampling_that_cannot_be_used(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "generation_config.json").write_text('{"top_k": "\\u001b[2J"}')
    file = tmp_path / "acu.yaml"
    file.write_text(f"models: {{large: {{model: {folder}}}}}\n")
    done = acu("config", "check", str(file), environ=clean_environ)
    assert (done.returncode, done.stdout) == (0, f"{file}: valid\n")
    assert done.stderr.startswith(f"acu: {folder}/generation_config.json: top_k '\\x1b[2J' is ignored: Expected ")
    assert done.stderr.count("\n") == 1


def tree(folder: Path) -> list[tuple[str, int, int]]:
    """Every path below a folder, with its mode and when it was last written."""
    found = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(str(path), status.st_mode, status.st_mtime_ns) for path, status in found]


def test_show_tells_where_each_value_came_from(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    file = tmp_path / "acu.yaml"
    file.write_text("models:\n  large: {model: m, engine_args: {a: {b: 1}}}\n")
    environ = {**clean_environ, "ACU_CONFIG": str(file), "ACU_DAEMON__LOG_LEVEL": "error"}
    shown = json.loads(acu("config", "show", "--json", environ=environ).stdout)
    assert shown["file"] == str(file)
    assert shown["config"]["daemon"]["log_level"] == "error"
    assert shown["origins"]["daemon.log_level"] == "ACU_DAEMON__LOG_LEVEL"
    assert shown["origins"]["daemon.log_format"] == "default"
    assert shown["origins"]["models.large.model"] == f"{file}:2"
    assert shown["origins"]["models.large.engine_args.a.b"] == f"{file}:2"
    assert shown["origins"]["models.large.dtype"] == "default"
    environ["ACU_MODELS__LARGE"] = "{model: n, sampling: {top_k: 5}}"
    origins = json.loads(acu("config", "show", "--json", environ=environ).stdout)["origins"]
    assert origins["models.large.model"] == origins["models.large.sampling.top_k"] == "ACU_MODELS__LARGE"
    assert origins["models.large.sampling.top_p"] == "default"
    table = acu("config", "show", environ=environ).stdout
    assert f"# file: {file}" in table
    assert "daemon.log_level" in table


def test_the_shown_configuration_is_itself_valid(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    file = tmp_path / "again.yaml"
    file.write_text(PLAYED)
    shown = json.loads(acu("config", "show", "--json", "-c", str(file), environ=clean_environ).stdout)
    file.write_text(yaml.safe_dump(shown["config"]))
    assert acu("config", "check", str(file), environ=clean_environ).returncode == 0


def test_get_prints_one_effective_value_that_a_shell_can_use(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    def get(*words: str) -> tuple[int, str]:
        done = acu("config", "get", *words, environ=clean_environ)
        return done.returncode, done.stdout or done.stderr

    assert get("network.unix_socket") == (0, f"{clean_environ['XDG_RUNTIME_DIR']}/acu/acu.sock\n")
    file = tmp_path / "acu.yaml"
    file.write_text("network: {unix_socket: own.sock, allowed_hosts: [box]}\n")
    assert get("network.unix_socket", "-c", str(file)) == (0, f"{tmp_path}/own.sock\n")
    assert get("network.allowed_hosts", "-c", str(file)) == (0, '["box"]\n')
    assert get("network.max_connections") == (0, "4096\n")
    assert get("network.api_keys_file") == (0, "null\n")
    assert get("network.unix_soket") == (
        2,
        "acu: network.unix_soket: unknown key 'unix_soket'; did you mean unix_socket?\n",
    )
    assert get("network.unix_socket.x") == (2, "acu: network.unix_socket.x: network.unix_socket has no fields\n")


@pytest.mark.parametrize(
    "words", [("show",), ("show", "--json"), ("get", "data_plane"), ("get", "data_plane.cold.secret_access_key")]
)
def test_a_secret_is_shown_to_nobody(words: tuple[str, ...], tmp_path: Path, clean_environ: dict[str, str]) -> None:
    file = tmp_path / "acu.yaml"
    file.write_text("data_plane: {cold: {bucket: b, access_key_id: mine, secret_access_key: s3cr3t}}\n")
    done = acu("config", *words, "-c", str(file), environ=clean_environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "s3cr3t" not in done.stdout
    assert "(hidden)" in done.stdout


def test_check_looks_at_the_tools_of_agents_unless_told_not_to(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    (tmp_path / "mine.py").write_text(
        'from agentflow.tools.function import tool\n\n@tool\ndef greet(name: str) -> str:\n    """Greets."""\n    return name\n'
    )
    (tmp_path / "shop.yaml").write_text("{[")
    file = tmp_path / "acu.yaml"
    place = f"data_plane: {{path: {tmp_path / 'data'}}}\n"
    wrong = """
agents:
  desk: {tools: [greet, calculater]}
tools:
  installed: false
  python: {mine: {module: mine.py}, gone: {module: "mine.py:gone"}, away: {module: away.py}}
  http: {shop: {document: shop.yaml, url: "https://shop.test"}, lost: {document: lost.yaml, url: "https://shop.test"}}
  mcp: {notes: {command: [no-such-server]}, keyed: {command: [sh], variables: {KEY: {file: key.txt}}}}
"""
    file.write_text(PLAYED + place + wrong)
    done = acu("config", "check", str(file), environ=clean_environ)
    assert done.returncode == 2
    for field in (
        "tools.python.gone", "tools.python.away", "tools.http.shop.document", "tools.http.lost.document",
        "tools.mcp.notes", "tools.mcp.keyed",
    ):  # fmt: skip
        assert f"{field}: " in done.stderr
    assert "tools.python.mine" not in done.stderr
    assert acu("config", "check", "--no-tools", str(file), environ=clean_environ).returncode == 0
    file.write_text(PLAYED + place + wrong.partition("tools:\n")[0] + "tools: {python: {mine: {module: mine.py}}}\n")
    done = acu("config", "check", str(file), environ=clean_environ)
    assert "agents.desk.tools: There is no tool 'calculater'. Did you mean 'calculator'?" in done.stderr
    file.write_text(file.read_text().replace("calculater", "calculator"))
    done = acu("config", "check", str(file), environ=clean_environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "data").exists()


def test_check_tells_each_problem_of_a_tool_once_and_drives_no_terminal(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    (tmp_path / "evil.py").write_text("raise BaseException('\\x1b[2J evil')\n")
    file = tmp_path / "acu.yaml"
    file.write_text(PLAYED + "agents: {desk: {}}\ntools: {installed: false, python: {evil: {module: evil.py}}}\n")
    done = acu("config", "check", str(file), environ=clean_environ)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("acu: tools.python.evil: ")
    assert "\\x1b[2J evil" in line


def test_check_and_serve_say_where_what_is_wrong_stands(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    (tmp_path / "broken.py").write_text("import not_there_at_all\n")
    file = tmp_path / "acu.yaml"
    file.write_text(
        PLAYED
        + """daemon:
  audit_log: /nowhere/log
tools:
  installed: false
  python:
    gone:
      workers: 1
      module: gone_module
    broken:
      module: broken.py
  http:
    shop:
      url: https://shop.test
      document: lost.yaml
  mcp:
    notes:
      environment: []
      command:
        - no-such-server
agents:
  desk:
    tools:
      - calculator
      - calculater
"""
    )
    at = PLAYED.count("\n")
    done = acu("config", "check", str(file), environ=clean_environ)
    places = [
        (line.removeprefix("acu: ").partition(":")[0], line.rpartition(" ")[2]) for line in done.stderr.splitlines()
    ]
    assert places == [
        ("agents.desk.tools", f"({file}:{at + 23})"),
        ("daemon.audit_log", f"({file}:{at + 2})"),
        ("tools.http.shop.document", f"({file}:{at + 14})"),
        ("tools.python.gone", f"({file}:{at + 8})"),
        ("tools.python.broken", f"({file}:{at + 10})"),
        ("tools.mcp.notes", f"({file}:{at + 19})"),
    ]
    file.write_text(file.read_text().replace("/nowhere/log", f"{tmp_path}/log").partition("  mcp:")[0])
    with file.open("a") as more:
        more.write("agents:\n  desk:\n    tools:\n      - calculator\n      - calculater\n")
    served = acu("serve", "-c", str(file), "--no-tcp", "--socket", str(tmp_path / "s"), environ=clean_environ)
    assert served.returncode == 2
    assert f"({file}:{at + 14})" in served.stderr


def test_check_warns_of_a_name_that_only_a_server_could_have(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    file = tmp_path / "acu.yaml"
    servers = "{letters: {command: [sh]}}"
    file.write_text(
        PLAYED + f"agents: {{desk: {{tools: [calculater]}}}}\ntools: {{installed: false, mcp: {servers}}}\n"
    )
    done = acu("config", "check", str(file), environ=clean_environ)
    assert (done.returncode, done.stdout) == (0, f"{file}: valid\n")
    told = "not checked, may come from MCP server letters: calculater (did you mean calculator?)"
    assert done.stderr == f"acu: agents.desk.tools: {told} ({file}:{PLAYED.count(chr(10)) + 1})\n"
    file.write_text(file.read_text().replace("[sh]", "[no-such-server]"))
    done = acu("config", "check", str(file), environ=clean_environ)
    assert done.returncode == 2
    assert [line.partition(": ")[2].partition(": ")[0] for line in done.stderr.splitlines()] == [
        "agents.desk.tools",
        "tools.mcp.letters",
    ]
