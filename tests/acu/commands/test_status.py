"""acu status, against the real daemon."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from acu.commands.status import duration, render
from tests.acu.certificates import make_certificate
from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, acu


@pytest.fixture(scope="module")
def running(shared_daemon: DaemonFactory) -> RunningDaemon:
    """A daemon that is asked and left as it is."""
    return shared_daemon()


def test_the_table_shows_models_engines_and_the_machine(running: RunningDaemon) -> None:
    done = acu("status", "-c", str(running.config), environ=running.environ)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("ready", "scripted/0", "scripted-embed/0", "smollm2-135m-instruct", f"pid {running.pid}", "no GPU"):
        assert word in done.stdout.replace("\n", " "), done.stdout
    assert str(running.socket) in done.stdout.replace("\n", "").replace(" ", "")


def test_the_json_is_the_daemons_whole_report(running: RunningDaemon) -> None:
    done = acu("status", "--socket", str(running.socket), "--json", environ=running.environ)
    report = json.loads(done.stdout)
    assert report["daemon"]["pid"] == running.pid
    assert [model["name"] for model in report["service"]["models"]] == ["scripted", "scripted-embed"]


def test_a_daemon_that_is_not_ready_is_exit_code_1(daemon: DaemonFactory) -> None:
    running = daemon(script={"start_s": 3600.0}, ready=False)
    done = acu("status", "--socket", str(running.socket), environ=running.environ)
    assert done.returncode == 1
    assert "not ready" in done.stdout
    assert "starting" in done.stdout


def test_over_tcp_without_a_key_the_report_is_refused_in_one_line(running: RunningDaemon) -> None:
    done = acu("status", "--url", running.url, environ=running.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "acu: This needs the scope 'admin', which the caller does not have: ask over the unix socket as the daemon's user "
        "(no --url), or with a key that has it (--api-key-file FILE)\n"
    )


def test_where_a_key_is_needed_the_error_says_how_to_give_it_and_the_variable_does(
    daemon: DaemonFactory, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: ops, key: sk-ops-0000000000000, scopes: [admin]}\n")
    keys.chmod(0o600)
    running = daemon({"network": {"api_keys_file": str(keys)}})
    done = acu("status", "--url", running.url, environ=running.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("acu: An API key is needed: ")
    assert done.stderr.endswith(": --api-key-file FILE gives one\n")
    done = acu("status", "--url", running.url, "--api-key", "wrong", environ=running.environ)
    assert done.stderr == "acu: The API key is not valid: --api-key-file FILE gives one\n"
    environ = {**running.environ, "ACU_API_KEY": "sk-ops-0000000000000"}
    assert acu("status", "--url", running.url, environ=environ).returncode == 0


def test_the_wrong_scheme_of_a_url_is_hinted_at(running: RunningDaemon, daemon: DaemonFactory, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    secured = daemon({"network": {"tls_cert_file": str(certificate), "tls_key_file": str(key)}})
    done = acu("status", "--url", secured.url, environ=secured.environ)
    assert done.returncode == 3
    assert "if it speaks TLS, write https:// in --url" in done.stderr
    done = acu("status", "--url", running.url.replace("http:", "https:"), environ=running.environ)
    assert done.returncode == 1
    assert "if it speaks none, write http:// in --url" in done.stderr


def test_a_url_that_is_none_and_one_where_nobody_listens(clean_environ: dict[str, str]) -> None:
    assert "is no URL" in acu("status", "--url", "box", environ=clean_environ).stderr
    done = acu("status", "--url", "http://127.0.0.1:1", environ=clean_environ)
    assert done.returncode == 3
    assert "no daemon listens on http://127.0.0.1:1" in done.stderr


def test_watch_goes_on_until_it_is_interrupted(running: RunningDaemon) -> None:
    command = [sys.executable, "-m", "acu", "status", "--socket", str(running.socket), "--watch", "--json"]
    process = subprocess.Popen(command, cwd=ROOT, env=running.environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first, second = json.loads(process.stdout.readline()), json.loads(process.stdout.readline())
    assert second["daemon"]["uptime_s"] > first["daemon"]["uptime_s"]
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130


def test_watch_through_a_pipe_is_plain_and_ends_with_the_pipe(running: RunningDaemon) -> None:
    command = f"{sys.executable} -m acu status --socket {running.socket} --watch | head -n 40; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=running.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("scripted-embed/0") > 1
    assert "\x1b" not in done.stdout


def test_output_that_cannot_be_written_is_one_line(running: RunningDaemon) -> None:
    command = [sys.executable, "-m", "acu", "status", "--socket", str(running.socket)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, cwd=ROOT, env=running.environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "acu: the output cannot be written: No space left on device\n")


def test_a_duration_is_told_in_the_units_that_fit() -> None:
    assert [duration(s) for s in (5, 65, 3725)] == ["5 s", "1 min 5 s", "1 h 2 min"]


def report_of(**engine: Any) -> dict[str, Any]:
    """The status of a daemon with one model, whose engine is as given."""
    stats = {"prefix_cache_queries": 10, "prefix_cache_hits": 5, "kv_cache_usage": 0.25}
    whole = {"id": "qwen2.5-7b-instruct-awq/0", "state": "starting", "stage": "loading weights", "fraction": 0.4}
    whole |= {"stats": stats, "restarts": 12, "info": None, "last_error": None, **engine}
    model = {"name": "qwen2.5-7b-instruct-awq", "role": "chat", "aliases": ["large"], "running": 128, "queued": 256}
    model |= {"max_model_len": 32768, "engines": [whole], "sampling": {"temperature": 0.2, "top_p": 0.9}}
    service = {"draining": False, "ready": False, "reason": "it loads", "models": [model]}
    service |= {"running": 128, "queued": 256, "queued_tokens": 1000}
    return {"service": service, "daemon": {"preloading": "reading qwen2.5-7b-instruct-awq: 40% at 900 MB/s"}}


def shown(report: dict[str, Any], width: int) -> list[str]:
    """The table's lines on a terminal of this width."""
    output = io.StringIO()
    Console(file=output, width=width).print(render(report))
    return output.getvalue().splitlines()


def test_at_80_columns_every_engine_keeps_its_name_on_one_line() -> None:
    lines = [line.split() for line in shown(report_of(), 80)]
    assert ["qwen2.5-7b-instruct-awq/0", "starting", "128", "256", "32768", "25%", "50%", "12"] in lines
    assert ["loading", "weights", "40%"] in lines
    assert ["weights", "reading", "qwen2.5-7b-instruct-awq:", "40%", "at", "900", "MB/s"] in lines


def test_a_ready_engine_tells_what_the_stages_of_its_start_took() -> None:
    took = {"importing": 9.14, "loading": 0.5, "warming": 1.25}
    ready = [line.strip() for line in shown(report_of(state="ready", stage="", fraction=None, start_s=took), 120)]
    assert "was ready after 10.9 s: importing 9.1, loading 0.5, warming 1.2" in ready
    assert not any("was ready" in line for line in shown(report_of(start_s=took), 120))  # one that starts


def test_agents_are_shown_with_their_tools_with_what_waits_and_with_servers_that_are_not_there() -> None:
    report = report_of()
    assert not any("agent/" in line for line in shown(report, 80))
    desk = {"name": "desk", "model": "large", "tools": ["calculator", "pay"], "running": 3, "waiting": 1}
    ops = {"name": "ops", "model": "large", "tools": [], "running": 0, "waiting": 0}
    report["service"]["agents"] = {"agents": [desk, ops], "mcp_problems": {"letters": "it ended [1]\x1b"}}
    lines = [line.strip() for line in shown(report, 120)]
    assert "agent/desk  on large; 3 running, 1 of them waiting for a person: acu runs list --status waiting" in lines
    assert {"tools: calculator, pay", "agent/ops   on large; 0 running", "tools: none"} <= set(lines)
    assert "MCP letters not there: it ended [1]\\x1b" in lines


@pytest.mark.parametrize(("width", "count"), [(80, 5), (200, 2)])
def test_what_was_chosen_breaks_between_pairs_alone(width: int, count: int) -> None:
    choices = {"device": "cpu", "dtype": "bfloat16", "kv_cache_mib": 2048, "block_size": 128, "quantization": None}
    choices |= {
        "max_batched_tokens": 2048,
        "compiled": True,
        "cores": 2,
        "preloads": ["libiomp5.so", "libtcmalloc.so.4"],
    }
    info = {"name": "vllm", "choices": choices, "max_running": 64, "kv_cache_tokens": 131072}
    lines = [line.strip() for line in shown(report_of(state="ready", stage="", info=info), width)]
    first = next(index for index, line in enumerate(lines) if line.startswith("engine: vllm"))
    last = next(index for index, line in enumerate(lines) if line.endswith("KV tokens: 131072"))
    assert last - first + 1 == count
    assert all(line.endswith(",") for line in lines[first:last])
    pairs = " ".join(lines[first : last + 1]).split(", ")
    assert pairs == [
        "engine: vllm", "device: cpu", "dtype: bfloat16", "kv cache mib: 2048", "block size: 128",
        "max batched tokens: 2048", "compiled: True", "cores: 2", "preloads: libiomp5.so libtcmalloc.so.4",
        "running at most: 64", "KV tokens: 131072",
    ]  # fmt: skip
    assert all(any(pair in line for line in lines) for pair in pairs)
    assert "default temperature: 0.2, default top p: 0.9" in lines


def card_of(**changed: Any) -> dict[str, Any]:
    """What the daemon tells of a watched card."""
    card = {"used_mb": 20_480, "baseline_mb": 18_432, "capacity_mb": 22_528, "share": 0.5, "step": "calm"}
    card |= {"taken": {"limit_prompts": 0, "drop_caches": 0, "restart_engines": 0}, "mb_per_hour": 0.0}
    return card | {"full_in_s": None, "unreadable": 0, "problem": "", **changed}


def test_a_watched_card_is_shown_with_where_it_leads_and_what_is_done_about_it() -> None:
    report = report_of()
    assert not any("GPU memory" in line for line in shown(report, 160))
    report["daemon"]["gpu_memory"] = card_of()
    (line,) = [line.strip() for line in shown(report, 160) if "GPU memory" in line]
    assert line == "GPU memory  20.0 of 22.0 GiB, 50% of the room above the 18.0 GiB after warm-up"
    report["daemon"]["gpu_memory"] = card_of(planned_mb=19_456)
    assert any("20.0 of 22.0 GiB (planned: 19.0), 50% of the room" in line for line in shown(report, 160))
    taken = {"limit_prompts": 2, "drop_caches": 1, "restart_engines": 0}
    problem = "prompts of more than 2048 tokens are refused"
    report["daemon"]["gpu_memory"] = card_of(mb_per_hour=341.2, full_in_s=21_600, taken=taken, problem=problem)
    text = " ".join(" ".join(shown(report, 200)).split())
    assert (
        "after warm-up; 341 MiB more an hour: full in 6 h 0 min; taken so far: limit prompts 2, drop caches 1 prompts of"
        in text
    )
    assert problem in text
    report["daemon"]["gpu_memory"] = card_of(used_mb=None, problem="the GPU's memory cannot be read")
    assert "22.0 GiB the GPU's memory cannot be read" in " ".join(" ".join(shown(report, 80)).split())
    report["daemon"]["gpu_memory"] = card_of(baseline_mb=None)
    assert any(line.split() == ["GPU", "memory", "22.0", "GiB"] for line in shown(report, 80))


def test_what_idle_runs_hold_is_shown_where_they_hold_something() -> None:
    report = report_of()
    (model,) = report["service"]["models"]
    model["held"] = {"runs": 0, "tokens": 0, "share": 0.1, "above": False, "passed": 0, "released": 0}
    assert not any("idle runs" in line for line in shown(report, 160))
    model["held"] |= {"runs": 12, "tokens": 5000, "share": 0.97, "released": 4}
    (line,) = [line.strip() for line in shown(report, 160) if "idle runs" in line]
    assert line == (
        "idle runs  qwen2.5-7b-instruct-awq: 12 hold 5000 tokens; with what runs that is 97% of the KV pool; 4 had to let go"
    )
