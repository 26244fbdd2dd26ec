"""The daemon's life with real processes and real signals: drain, force, reload, kill, and what is left afterwards."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from acu.config import AcuConfig
from acu.daemon import warn_of_ignored
from acu.errors import AcuError, ApiError
from acu.hardware import probe_machine
from acu.served import plan_models
from acu.terminal.client import Answer
from agentflow.config import ModelConfig
from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, until
from tests.acu.test_served import model_folder

SLOW = {"answer": "x" * 400, "tokens_per_s": 200.0}  # two seconds an answer
ENDLESS = {"answer": "x" * 30_000, "tokens_per_s": 20.0}


def open_stream(running: RunningDaemon, text: str = "go") -> Answer:
    """A streamed answer that has begun."""
    body = {"model": "large", "messages": [{"role": "user", "content": text}], "stream": True}
    return running.client().stream("/v1/chat/completions", body)


def post(path: str, fields: dict[str, Any]) -> bytes:
    """A request as bytes."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Reader(threading.Thread):
    """Reads a stream to its end, in a thread; keeps the text, the finish reason and the error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.text = ""
        self.finish: str | None = None
        self.error: AcuError | None = None
        self._answer = answer
        self.start()

    def run(self) -> None:
        """Read."""
        try:
            with self._answer as answer:
                for event in answer.events():
                    for choice in event["choices"]:
                        self.text += choice["delta"].get("content") or ""
                        self.finish = choice["finish_reason"] or self.finish
        except AcuError as error:
            self.error = error


def test_a_signal_drains_new_work_is_refused_and_no_stream_is_cut(daemon: DaemonFactory) -> None:
    running = daemon(script=SLOW)
    readers = [Reader(open_stream(running)) for _ in range(20)]
    until(lambda: running.running() == 20, "20 runs")
    running.signal(signal.SIGTERM)
    until(lambda: running.status()["service"]["draining"], "draining")

    readiness = running.client().get("/readyz", accept=(503,))
    assert (readiness["ready"], readiness["reason"]) == (False, "The daemon is shutting down.")
    with pytest.raises(ApiError) as refused, open_stream(running) as late:
        list(late.events())
    assert refused.value.status == 503
    assert refused.value.retry_after_s is not None

    for reader in readers:
        reader.join()
        assert (reader.error, reader.text, reader.finish) == (None, "x" * 400, "stop")
    assert running.wait() == 0
    assert running.events()[-1] == "stopped"


def test_what_outlasts_the_drain_is_aborted_with_an_error_in_its_stream(daemon: DaemonFactory) -> None:
    running = daemon({"daemon": {"drain_timeout_s": 0.5}}, script=ENDLESS)
    reader = Reader(open_stream(running))
    until(lambda: bool(reader.text), "a first token")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    reader.join()
    assert isinstance(reader.error, ApiError)
    assert reader.finish is None
    assert 0 < len(reader.text) < 30_000


def test_a_second_signal_forces(daemon: DaemonFactory) -> None:
    running = daemon({"daemon": {"drain_timeout_s": 3600}}, script=ENDLESS)
    reader = Reader(open_stream(running))
    until(lambda: bool(reader.text), "a first token")
    running.signal(signal.SIGTERM)
    until(lambda: running.status()["service"]["draining"], "draining")
    running.signal(signal.SIGINT)
    assert running.wait() == 0
    reader.join()
    assert isinstance(reader.error, ApiError)
    assert "asked to stop again: running requests are aborted" in running.events()


def test_idle_connections_do_not_hold_up_the_end(daemon: DaemonFactory) -> None:
    running = daemon({"daemon": {"drain_timeout_s": 3600}})
    idle = [socket.socket(socket.AF_UNIX) for _ in range(50)]
    for connection in idle:
        connection.connect(str(running.socket))
    idle[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert idle[0].recv(4096).startswith(b"HTTP/1.1 200")
    running.stop()
    for connection in idle:
        connection.close()


def test_a_client_that_does_not_read_does_not_hold_up_the_end(daemon: DaemonFactory) -> None:
    running = daemon({"daemon": {"drain_timeout_s": 1}}, script={"answer": "0123456789" * 60_000})
    messages = [{"role": "user", "content": "x"}]
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(str(running.socket))
        deaf.sendall(post("/v1/chat/completions", {"model": "large", "messages": messages, "stream": True}))
        until(lambda: running.running() == 1, "the run")
        running.stop()


def test_a_client_that_reads_slowly_gets_its_whole_answer_before_the_end(daemon: DaemonFactory) -> None:
    running = daemon({"daemon": {"drain_timeout_s": 60}}, script={"dimensions": 4096})
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(running.socket))
        slow.sendall(post("/v1/embeddings", {"model": "embed", "input": ["x"] * 256}))
        received = slow.recv(1024)  # megabytes will follow, and nothing runs any more
        running.signal(signal.SIGTERM)
        while part := slow.recv(32_768):
            received += part
            time.sleep(0.1)  # in all longer than connections are given to close (twice 5 s)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert [len(row["embedding"]) for row in json.loads(body)["data"]] == [4096] * 256
    assert running.wait() == 0


def test_the_address_that_is_listened_on_is_a_name_that_is_served(daemon: DaemonFactory) -> None:
    running = daemon({"network": {"bind_addr": "127.0.0.2:0"}})
    assert running.url.startswith("http://127.0.0.2:")
    assert models_status(running, None) == 200


def test_a_signal_in_the_middle_of_a_start_ends_it_in_order(daemon: DaemonFactory) -> None:
    running = daemon(script={"start_s": 3600.0}, ready=False)
    assert running.client().get("/readyz", accept=(503,))["ready"] is False
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_at_any_moment_of_the_start_leaves_no_socket(
    tmp_path: Path, clean_environ: dict[str, str], number: signal.Signals
) -> None:
    path = tmp_path / "acu.sock"
    command = [sys.executable, "-m", "acu", "serve", "--engine", "scripted", "--no-tcp", "--socket", str(path)]
    for delay_ms in (100, 200, 300, 400, 600, 900, 1400):
        process = subprocess.Popen(command, cwd=ROOT, env=clean_environ, stderr=subprocess.DEVNULL)
        time.sleep(delay_ms / 1000)
        process.send_signal(number)
        if number is signal.SIGHUP:  # either before it is handled (the default ends the process), or it reloads
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        # 1: ctrl-C while the interpreter itself starts, before any of our code
        assert code in {0, -number, -signal.SIGTERM, *([1] if number is signal.SIGINT else [])}
        assert not path.exists()


def test_requests_that_come_while_the_model_loads_wait_for_it(daemon: DaemonFactory) -> None:
    running = daemon(script={"start_s": 2.0, "answer": "worth waiting"}, ready=False)
    with open_stream(running) as answer:
        text = "".join(choice["delta"].get("content") or "" for event in answer.events() for choice in event["choices"])
    assert text == "worth waiting"


def test_after_kill_9_a_new_daemon_takes_over_the_stale_socket(daemon: DaemonFactory, tmp_path: Path) -> None:
    network = {"network": {"unix_socket": str(tmp_path / "same.sock")}}
    first = daemon(network)
    first.process.kill()
    first.process.wait()
    first.checked = True
    assert first.socket.exists()
    second = daemon(network)
    assert second.status()["daemon"]["pid"] == second.pid


def test_a_second_daemon_on_the_same_socket_refuses_and_the_first_goes_on(daemon: DaemonFactory) -> None:
    running = daemon()
    command = [
        sys.executable,
        "-m",
        "acu",
        "serve",
        "--engine",
        "scripted",
        "--no-tcp",
        "--socket",
        str(running.socket),
    ]
    done = subprocess.run(command, cwd=ROOT, env=running.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "another daemon already serves" in done.stderr
    assert running.status()["service"]["ready"]


def test_an_occupied_port_is_refused_and_leaves_no_socket(daemon: DaemonFactory, tmp_path: Path) -> None:
    running = daemon()
    address = running.url.removeprefix("http://")
    path = tmp_path / "other.sock"
    command = [sys.executable, "-m", "acu", "serve", "--engine", "scripted", "--bind", address, "--socket", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=running.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{address} is in use by" in done.stderr
    assert f"(pid {running.pid})" in done.stderr
    assert not path.exists()


def test_the_daemon_survives_the_engines_death_and_says_so(daemon: DaemonFactory) -> None:
    script = {"rules": [{"match": "^die$", "answer": "x" * 50, "die_after_tokens": 5}], "answer": "alive"}
    running = daemon({"scheduler": {"restart_backoff_s": 0.1}}, script=script)
    reader = Reader(open_stream(running, "die"))
    reader.join()
    assert isinstance(reader.error, ApiError)
    until(lambda: running.status()["service"]["ready"], "ready again")
    again = Reader(open_stream(running, "hello"))
    again.join()
    assert again.text == "alive"
    metrics = metric_lines(running)
    assert metrics['acu_engine_restarts_total{engine="scripted/0",model_name="scripted"}'] == 1.0
    assert metrics['acu_runs_failed_total{model_name="scripted",reason="engine_died"}'] == 1.0


def test_nothing_heavy_is_imported_before_the_daemon_accepts(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    program = """
import json, os, sys
from acu import cli
def loaded(addresses):
    print(json.dumps(sorted(sys.modules)), flush=True)
    os.unlink(sys.argv[1])
    os._exit(0)
import acu.commands.serve
acu.commands.serve.tell = loaded
cli.main(["serve", "--engine", "scripted", "--no-tcp", "--socket", sys.argv[1]])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s.sock")],
        cwd=ROOT,
        env=clean_environ,
        capture_output=True,
        text=True,
        check=False,
    )
    modules = set(json.loads(done.stdout))
    assert "aiohttp" in modules
    heavy = {"vllm", "torch", "transformers", "numpy", "rich", "structlog", "huggingface_hub", "prompt_toolkit"}
    assert modules & heavy == set()


def test_sighup_reloads_the_keys_and_names_what_needs_a_restart(daemon: DaemonFactory, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: one, key: sk-one-000000000000}\n")
    keys.chmod(0o600)
    running = daemon({"network": {"api_keys_file": str(keys)}})
    assert models_status(running, "sk-one-000000000000") == 200
    assert models_status(running, "sk-two-000000000000") == 401

    keys.write_text("- {name: two, key: sk-two-000000000000}\n")
    running.config.write_text(running.config.read_text() + "scheduler: {queue_limit: 5}\n")
    running.signal(signal.SIGHUP)
    until(lambda: "reloaded" in running.events(), "the reload")
    assert models_status(running, "sk-one-000000000000") == 401
    assert models_status(running, "sk-two-000000000000") == 200
    reload = next(line for line in running.log_lines() if line["event"] == "reloaded")
    assert reload["needs_restart"] == ["scheduler.queue_limit"]


def test_a_reload_says_what_it_kept_and_why(daemon: DaemonFactory, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: two, key: sk-two-000000000000}\n")
    keys.chmod(0o600)
    running = daemon({"network": {"api_keys_file": str(keys)}})

    def reload(event: str) -> dict[str, Any]:
        before = running.events().count(event)
        running.signal(signal.SIGHUP)
        until(lambda: running.events().count(event) == before + 1, event)
        assert models_status(running, "sk-two-000000000000") == 200, "what cannot be read leaves the old keys in use"
        return [line for line in running.log_lines() if line["event"] == event][-1]

    for broken in ("not keys", '- !!int "zz"', "[" * 3000, '- {name: x, key: "\\ud800sk-00000000000000"}'):
        keys.write_text(broken)
        line = reload("nothing was reloaded")
        assert line["level"] == "error"
        assert list(line["kept"]) == ["the old API keys"]
        assert str(keys) in line["kept"]["the old API keys"]
    keys.unlink()
    os.mkfifo(keys, 0o600)
    assert "is not a regular file" in reload("nothing was reloaded")["kept"]["the old API keys"]
    good = running.config.read_text()
    running.config.write_text(good + "daemn: {}\n")
    kept = reload("nothing was reloaded")["kept"]
    assert "daemn: unknown key; did you mean daemon?" in kept["the running settings"]
    assert list(kept) == ["the old API keys", "the running settings"]
    keys.unlink()
    keys.write_text("- {name: two, key: sk-two-000000000000}\n")
    keys.chmod(0o600)
    line = reload("reloaded in part")
    assert (line["renewed"], list(line["kept"])) == (["the API keys"], ["the running settings"])
    running.config.write_text(good)
    assert "kept" not in reload("reloaded")
    assert "sk-" not in running.log.read_text()


def test_recommended_sampling_that_cannot_be_used_is_logged_with_the_models_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = model_folder(tmp_path / "mine")
    (folder / "generation_config.json").write_text('{"top_p": 7}')
    warn_of_ignored(plan_models(AcuConfig(models={"large": ModelConfig(model=str(folder))}), probe_machine()))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert vars(record)["model"] == "mine"
    assert "generation_config.json: top_p 7 is ignored" in vars(record)["why"]


def test_the_log_is_json_off_a_terminal_and_has_one_line_a_request_without_its_content(daemon: DaemonFactory) -> None:
    running = daemon(script={"answer": "the answer is hidden"})
    Reader(open_stream(running, "a secret question")).join()
    until(lambda: any(line.get("route") == "/v1/chat/completions" for line in running.log_lines()), "the line")
    (line,) = [line for line in running.log_lines() if line.get("route") == "/v1/chat/completions"]
    assert line["status"] == 200
    assert line["model"] == "large"
    assert line["completion_tokens"] == len("the answer is hidden") + 1
    assert line["level"] == "info"
    assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["duration_ms"]
    assert "secret" not in running.log.read_text()
    assert "hidden" not in running.log.read_text()


def test_a_blocked_log_pipe_holds_up_neither_requests_nor_the_end(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    path = tmp_path / "acu.sock"
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "acu", "serve", "--engine", "scripted", "--no-tcp", "--socket", str(path)],
        cwd=ROOT,
        env=clean_environ,
        stderr=write_end,
    )
    os.close(write_end)
    running = RunningDaemon(process, path, tmp_path / "none", tmp_path / "none", clean_environ)
    until(path.exists, "the socket", 60)
    for _ in range(400):  # far more log than a pipe holds
        running.client().get("/v1/models")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    os.close(read_end)


def test_the_audit_log_says_who_did_what_and_not_what_was_said(daemon: DaemonFactory, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    running = daemon({"daemon": {"audit_log": str(audit)}}, script={"answer": "hidden"})
    Reader(open_stream(running, "a secret question")).join()
    until(lambda: "chat/completions" in audit.read_text(), "the line")
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    (line,) = [line for line in lines if line["route"] == "/v1/chat/completions"]
    assert line["uid"] == os.getuid()
    assert abs(line["time"] - time.time()) < 60
    assert "secret" not in audit.read_text()
    assert audit.stat().st_mode & 0o777 == 0o600


def test_metrics_tell_what_was_served(daemon: DaemonFactory) -> None:
    running = daemon(script={"answer": "four"})
    for _ in range(3):
        Reader(open_stream(running)).join()
    metrics = metric_lines(running)
    assert metrics['vllm:request_success_total{finished_reason="stop",model_name="scripted"}'] == 3.0
    assert metrics['vllm:generation_tokens_total{model_name="scripted"}'] == 3 * 5
    assert metrics['vllm:time_to_first_token_seconds_count{model_name="scripted"}'] == 3.0
    chat = 'gen_ai_operation_name="chat",gen_ai_request_model="scripted"'
    assert metrics[f"gen_ai_server_time_to_first_token_seconds_count{{{chat}}}"] == 3.0
    assert metrics['acu_http_requests_total{route="/v1/chat/completions",status="200"}'] == 3.0
    assert metrics["acu_ready"] == 1.0
    assert metrics["acu_open_connections"] >= 1.0
    assert metrics["process_resident_memory_bytes"] > 10e6


def test_a_stranger_on_tcp_sees_the_basic_metrics_alone(daemon: DaemonFactory) -> None:
    running = daemon()
    from acu.terminal.client import Client, Target

    connection = Client(Target(url=running.url))._connect()
    connection.request("GET", "/metrics", headers={"host": "localhost"})
    text = connection.getresponse().read().decode()
    connection.close()
    assert "acu_ready 1.0" in text
    assert "acu_http_requests" not in text


def test_no_descriptor_is_left_behind_after_many_connections(daemon: DaemonFactory) -> None:
    running = daemon()
    process = psutil.Process(running.pid)
    for _ in range(20):
        running.status()
    before = process.num_fds()
    for _ in range(300):
        running.status()
    until(lambda: process.num_fds() <= before, "descriptors are given back")


def metric_lines(running: RunningDaemon) -> dict[str, float]:
    """/metrics as a table: series with labels -> value."""
    connection = running.client()._connect()
    connection.request("GET", "/metrics", headers={"host": "localhost"})
    text = connection.getresponse().read().decode()
    connection.close()
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def models_status(running: RunningDaemon, key: str | None) -> int:
    """The status of /v1/models, over TCP, with a key."""
    from acu.terminal.client import Client, Target

    client = Client(Target(url=running.url, api_key=key))
    try:
        models: dict[str, Any] = client.get("/v1/models")
    except ApiError as error:
        return error.status
    assert models["object"] == "list"
    return 200
