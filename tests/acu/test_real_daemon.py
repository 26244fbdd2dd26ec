"""The whole appliance with nothing scripted: the real vLLM, the real encoder, the real `openai` client, real kills.

One daemon serves the tests of what it answers; the tests that kill things start their own, and are the last.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import numpy as np
import openai
import psutil
import pytest

from acu.client import Client, Target
from acu.errors import DaemonUnreachable
from acu.models import pull
from tests.acu.running import ROOT, until

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

START_S = 400.0  # about 30 s on a machine that does nothing else

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "langs": {"type": "array", "items": {"enum": ["en", "fr", "zh"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "langs"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


@dataclass
class RealDaemon:
    """A daemon with real models; `log` is its standard error."""

    process: subprocess.Popen[bytes]
    port: int
    unix: Path
    log: Path

    def get(self, path: str) -> Any:
        return Client(Target(sockets=(self.unix,)), 30.0).get(path, accept=(200, 503))

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(DaemonUnreachable):
            return bool(self.get("/readyz")["ready"])
        return False

    def engine(self) -> Any:
        """The chat model's engine, as /acu/v1/status shows it."""
        models = self.get("/acu/v1/status")["service"]["models"]
        return next(model["engines"][0] for model in models if model["role"] == "chat")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    @contextlib.contextmanager
    def client(self, *, over_unix: bool = False) -> Iterator[openai.OpenAI]:
        base = "http://localhost/v1" if over_unix else f"http://127.0.0.1:{self.port}/v1"
        http = openai.DefaultHttpxClient(transport=httpx2.HTTPTransport(uds=str(self.unix) if over_unix else None))
        with openai.OpenAI(base_url=base, api_key="none", timeout=START_S, max_retries=0, http_client=http) as client:
            yield client


@contextlib.contextmanager
def real_daemon(folder: Path, cache: Path, models: dict[str, Any], *, wait: bool = True) -> Iterator[RealDaemon]:
    folder.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "acu.yaml"
    document = {
        "network": {"bind_addr": f"127.0.0.1:{port}", "unix_socket": str(folder / "acu.sock")},
        "gpu": {"model_cache_dir": str(cache)},
        "models": models,
        "scheduler": {"restart_backoff_s": 0.2, "deadline_s": START_S},
    }
    config.write_text(json.dumps(document))
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "acu", "serve", "-c", str(config)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    daemon = RealDaemon(process, port, folder / "acu.sock", log)
    try:
        if wait:
            until(daemon.ready, "the daemon is ready", START_S)
        yield daemon
    finally:
        if process.poll() is None:
            children = daemon.children()
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0, log.read_text()
            _, alive = psutil.wait_procs(children, timeout=5)
            assert not alive, f"children are left: {alive}"
            assert not daemon.unix.exists()


def orphaned_shared_memory() -> set[str]:
    """Names in /dev/shm that multiprocessing made and no living process has mapped."""
    mapped = ""
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):
            mapped += Path(f"/proc/{process}/maps").read_text()
    return {name for name in multiprocessing_names() if f"/dev/shm/{name}" not in mapped}


def multiprocessing_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "sem.", "vllm"))}  # noqa: PTH208


SMALL = {"model": "smollm2-135m-instruct", "kv_cache_mb": 512, "max_model_len": 2048}


@pytest.fixture(scope="module")
def cache(real_model_cache: Path) -> Path:
    for name in ("smollm2-135m-instruct", "all-minilm-l6-v2"):
        pull(name, real_model_cache)
    return real_model_cache


@pytest.fixture(scope="module")
def daemon(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    models = {"large": SMALL, "embed": {"model": "all-minilm-l6-v2"}}
    with real_daemon(tmp_path_factory.mktemp("real"), cache, models) as running:
        yield running


@pytest.mark.parametrize("over_unix", [False, True], ids=["tcp", "unix"])
def test_the_capital_of_france_is_paris_whole_and_streamed(daemon: RealDaemon, over_unix: bool) -> None:
    with daemon.client(over_unix=over_unix) as client:
        whole = client.chat.completions.create(model="large", messages=CAPITAL, temperature=0)
        said = whole.choices[0].message.content
        assert said is not None
        assert "Paris" in said
        assert whole.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(
            model="large", messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len([chunk for chunk in chunks if chunk.choices]) > 4


def test_an_answer_in_a_json_schema_validates(daemon: RealDaemon) -> None:
    ask: Any = {
        "model": "large",
        "messages": [{"role": "user", "content": "Describe a person as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}},
        "max_tokens": 200,
        "temperature": 0,
    }
    with daemon.client() as client:
        whole = client.chat.completions.create(**ask).choices[0].message.content
        chunks = client.chat.completions.create(**ask, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    jsonschema.validate(json.loads(whole), PERSON)
    assert streamed == whole


def test_a_named_tool_call_has_arguments_that_validate(daemon: RealDaemon) -> None:
    with daemon.client() as client:
        answer = client.chat.completions.create(
            model="large",
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[{"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            max_tokens=100,
            temperature=0,
        )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)


def test_a_required_tool_call_streams_and_validates(daemon: RealDaemon) -> None:
    with daemon.client() as client:
        chunks = list(
            client.chat.completions.create(
                model="large",
                messages=[{"role": "user", "content": "What is the weather in Paris?"}],
                tools=[
                    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}}
                ],
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=100,
                temperature=0,
                stream=True,
            )
        )
    name, arguments, reasons = "", "", []
    for chunk in chunks:
        choice = chunk.choices[0]
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, reasons[-1]) == ("weather", "tool_calls")
    jsonschema.validate(json.loads(arguments), WEATHER)


def test_the_nearest_of_ten_sentences_is_the_right_one(daemon: RealDaemon) -> None:
    sentences = [
        "The cat sleeps on the warm sofa.",
        "Interest rates were raised by the central bank.",
        "A volcano erupted on the island last night.",
        "The recipe needs two eggs and some flour.",
        "Our train to Berlin was delayed by an hour.",
        "The orchestra played a symphony by Mahler.",
        "Vaccines train the immune system.",
        "The goalkeeper saved a penalty in the final minute.",
        "Quantum computers use superposition.",
        "The museum shows paintings by Monet.",
    ]
    with daemon.client() as client:
        rows = client.embeddings.create(model="embed", input=sentences).data  # the client asks for base64
        vectors = np.array([row.embedding for row in rows])
        assert vectors.shape == (10, 384)
        for text, nearest in (("A kitten naps on the couch.", 0), ("football match", 7), ("monetary policy", 1)):
            (row,) = client.embeddings.create(model="embed", input=text, encoding_format="float").data
            assert int(np.argmax(vectors @ np.array(row.embedding))) == nearest, text


def test_what_was_chosen_for_this_machine_is_told(daemon: RealDaemon) -> None:
    info = daemon.engine()["info"]
    assert info["name"] == "vllm"
    assert info["choices"]["dtype"] in {"bfloat16", "float32"}
    assert info["max_model_len"] == 2048
    assert len(info["pids"]) >= 2


def test_clients_that_drop_in_mid_stream_free_the_engine(daemon: RealDaemon) -> None:
    with daemon.client() as client:
        for _ in range(20):
            stream = client.chat.completions.create(
                model="large", messages=CAPITAL, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
            )
            next(iter(stream))
            stream.close()

    def idle() -> bool:
        running = daemon.get("/acu/v1/status")["service"]["running"]
        return bool(running == 0 and daemon.engine()["stats"]["outstanding"] == 0)

    until(idle, "nothing runs any more", 30)


def test_when_the_engine_is_killed_in_mid_stream_the_reader_is_told_and_the_next_engine_answers(
    cache: Path, tmp_path: Path
) -> None:
    with real_daemon(tmp_path / "d", cache, {"large": SMALL}) as running, running.client() as client:
        pids = running.engine()["info"]["pids"]
        stream = client.chat.completions.create(
            model="large", messages=CAPITAL, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
        )
        chunks = iter(stream)
        next(chunks)
        os.kill(pids[0], signal.SIGKILL)
        killed_at = time.monotonic()
        with pytest.raises(openai.APIError, match="engine"):
            list(chunks)
        assert time.monotonic() - killed_at < 5
        assert not running.ready()
        # No retry of the client's: it waits in the scheduler for the engine that is starting.
        answer = client.chat.completions.create(model="large", messages=CAPITAL, temperature=0)
        assert "Paris" in (answer.choices[0].message.content or "")
        engine = running.engine()
        assert engine["restarts"] == 1
        assert not set(engine["info"]["pids"]) & set(pids)


def test_after_kill_9_of_the_daemon_no_child_lives_and_a_new_daemon_starts(cache: Path, tmp_path: Path) -> None:
    orphans_before = orphaned_shared_memory()
    for delay_s in (0.5, 3.0, 8.0, None):  # in the middle of its start, and when it serves
        with (
            real_daemon(tmp_path / "d", cache, {"large": SMALL}, wait=delay_s is None) as running,
            running.client() as client,
        ):
            if delay_s is None:
                stream = client.chat.completions.create(
                    model="large", messages=CAPITAL, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
                )
                next(iter(stream))
            else:
                time.sleep(delay_s)
            children = running.children()
            running.process.kill()
            running.process.wait()
            _, alive = psutil.wait_procs(children, timeout=5)
            assert not alive, f"{delay_s} s after its start: {alive}"
    with real_daemon(tmp_path / "d", cache, {"large": SMALL}) as running, running.client() as client:
        answer = client.chat.completions.create(model="large", messages=CAPITAL, temperature=0)
        assert "Paris" in (answer.choices[0].message.content or "")
    assert orphaned_shared_memory() <= orphans_before
