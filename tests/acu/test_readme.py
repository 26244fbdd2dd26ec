"""What the README shows is run here as it stands, against a daemon on its own addresses."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.acu.running import ROOT, DaemonFactory, RunningDaemon

README = (ROOT / "README.md").read_text()


def run_example(number: int, running: RunningDaemon) -> str:
    """What a Python example of the README prints."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[number]
    assert "http://127.0.0.1:8228" in code
    done = subprocess.run(
        [sys.executable, "-c", code.replace("http://127.0.0.1:8228", running.url)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_openai_example_prints_the_answer(daemon: DaemonFactory) -> None:
    running = daemon(script={"rules": [{"match": "capital of France", "answer": "The capital of France is Paris."}]})
    assert run_example(0, running) == "The capital of France is Paris."


def test_the_vector_store_example_finds_the_passage(daemon: DaemonFactory) -> None:
    assert run_example(1, daemon()) == "paris.md # Paris\n\nParis is the capital of France.\n"
    assert len(re.findall(r"```python\n", README)) == 2, "every example is run"


def test_the_curl_example_gets_an_answer_over_the_unix_socket(daemon: DaemonFactory) -> None:
    running = daemon(script={"rules": [{"match": "capital of France", "answer": "The capital of France is Paris."}]})
    (command,) = re.findall(r"(curl --unix-socket .*?'\n)", README, re.DOTALL)
    assert ".venv/bin/acu " in command
    done = subprocess.run(
        ["bash", "-c", command.replace(".venv/bin/acu ", f"{sys.executable} -m acu ")],
        cwd=ROOT,
        env=running.environ | {"ACU_CONFIG": str(running.config)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert '"content":"The capital of France is Paris."' in done.stdout, done.stderr


def test_the_commands_that_it_names_exist() -> None:
    usage = subprocess.run([sys.executable, "-m", "acu", "--help"], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"^\| `acu (\w+)` \|", README, re.MULTILINE):
        assert re.search(rf"^    {name} ", usage, re.MULTILINE), f"acu {name} is in the README and not in --help"
    for script in re.findall(r"^    (scripts/\w+)", README, re.MULTILINE):
        assert (ROOT / script).is_file()
