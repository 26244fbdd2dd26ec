"""The scripts and the locks: what they promise without installing anything; and what is installed is what is locked."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = sorted(path for path in (ROOT / "requirements").glob("*.txt") if path.name != "cpu.overrides.txt")
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}  # requirements/cpu.overrides.txt says why


def locked(name: str) -> dict[str, str]:
    """Name to version of a lock file, for this interpreter."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    requirements = [Requirement(line.split(" --hash")[0]) for line in text.splitlines() if re.match(r"[a-z0-9]", line)]
    return {
        canonicalize_name(requirement.name): str(next(iter(requirement.specifier)).version)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    }


# The locks


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_names_no_index_no_folder_and_has_a_hash_for_every_package(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"://|^\s*-(?!-hash)|/tmp", text, re.MULTILINE)
    if path.stem == "torch-cpu":
        return  # the file says why it has none
    entries = re.split(r"\n(?=[a-z0-9])", "\n" + text)[1:]
    assert entries
    assert [entry.split("\n")[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_locks_satisfy_what_pyproject_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    torch = locked("torch-cpu")
    environments = {
        "cpu": (project["dependencies"] + extras["cpu"], locked("cpu") | torch),
        "gpu": (project["dependencies"] + extras["gpu"], locked("gpu")),
        "cpu+dev": (extras["dev"], locked("cpu") | locked("dev")),
        "gpu+dev": (extras["dev"], locked("gpu") | locked("dev")),
    }
    for name, (wanted, versions) in environments.items():
        for requirement in map(Requirement, wanted):
            version = versions.get(canonicalize_name(requirement.name))
            assert version, f"{name}: {requirement} is not locked; run scripts/lock"
            assert requirement.specifier.contains(version), f"{name}: {requirement}, locked {version}: run scripts/lock"


def test_dev_adds_only_what_the_engines_lack() -> None:
    assert set(locked("dev")).isdisjoint(locked("cpu"))


def test_what_is_installed_is_what_is_locked() -> None:
    """Every locked package, at its version, with all that it requires; and torch is the CPU build."""
    # The environment's own folder alone: setuptools, once imported, adds a folder of vendored copies to sys.path.
    folder = [sysconfig.get_path("purelib")]
    installed = {str(canonicalize_name(d.metadata["Name"])): d for d in importlib.metadata.distributions(path=folder)}
    engine = "gpu" if "vllm" in installed else "cpu"
    versions = locked(engine) | locked("dev") | (locked("torch-cpu") if engine == "cpu" else {})
    assert {name: installed[name].version if name in installed else None for name in versions} == versions
    missing = []
    for name in versions:
        for requirement in map(Requirement, installed[name].requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            needed = canonicalize_name(requirement.name)
            if engine == "cpu" and needed in LEFT_OUT:
                continue
            if needed not in installed or not requirement.specifier.contains(
                installed[needed].version, prereleases=True
            ):
                missing.append(f"{name} requires {requirement}")
    assert missing == []


# The scripts


def bash_scripts() -> list[Path]:
    candidates = [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]
    return [path for path in candidates if path.suffix == ".sh" or path.read_text().startswith("#!/usr/bin/env bash")]


def test_the_shell_scripts_are_clean_and_say_how_they_fail() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "-x", *bash_scripts()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    for path in bash_scripts():
        if path.suffix != ".sh":
            assert "set -euo pipefail" in path.read_text(), path
            assert os.access(path, os.X_OK), path


@pytest.mark.parametrize("name", ["setup", "quickstart"])
def test_help_is_the_head_of_the_script(name: str) -> None:
    shown = run([ROOT / "scripts" / name, "--help"])
    assert shown.returncode == 0
    assert f"scripts/{name} " in shown.stdout
    assert "set -euo" not in shown.stdout
    assert run([ROOT / "scripts" / name, "--nonsense"]).returncode != 0


def run(command: list[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone without an environment: what scripts/setup reads, and nothing else."""
    root = tmp_path / "clone"
    root.mkdir()
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_setup_names_everything_that_is_missing_at_once(checkout: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("awk", "bash", "cat", "cut", "dirname", "env", "flock", "sed", "sha256sum", "uname"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    stub(tools / "apt-get", "exit 0")
    stub(tools / "df", "printf 'a b c d\\nx 1 1 1000000 x\\n'")
    stub(tools / "python3", "exit 1")  # no Python that fits
    done = run(["bash", checkout / "scripts" / "setup"], env={"PATH": str(tools), "HOME": str(tmp_path)})
    assert done.returncode == 1
    for problem in (
        "no Python 3.11, 3.12 or 3.13 on PATH. Install with: sudo apt-get install python3 python3-venv python3-dev",
        "no C compiler, with which the engine compiles kernels. Install with: sudo apt-get install gcc",
        "no C++ compiler",
        "has 1 GB free, and the cpu environment needs 6 GB.",
    ):
        assert problem in done.stderr
    assert not (checkout / ".venv").exists()


def test_setup_takes_the_gpu_engine_where_nvidia_smi_shows_one(checkout: Path, tmp_path: Path) -> None:
    stub(tmp_path / "nvidia-smi", "echo 'GPU 0: NVIDIA A10G (UUID: GPU-0)'")
    stub(tmp_path / "df", "printf 'a b c d\\nx 1 1 10000000 x\\n'")  # so that it stops before it installs
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run([checkout / "scripts" / "setup"], env=environment)
    assert "has 10 GB free, and the gpu environment needs 20 GB." in done.stderr
    assert "needs 6 GB" in run([checkout / "scripts" / "setup", "--cpu"], env=environment | small_disk(tmp_path)).stderr
    stub(tmp_path / "nvidia-smi", "echo 'No devices were found' >&2; exit 6")
    assert "the cpu environment" in run([checkout / "scripts" / "setup"], env=environment).stderr


def small_disk(folder: Path) -> dict[str, str]:
    stub(folder / "df", "printf 'a b c d\\nx 1 1 1000000 x\\n'")
    return {}


def test_setup_with_nothing_to_do_says_and_changes_nothing() -> None:
    stamp = ROOT / ".venv" / ".acu-setup"
    if not stamp.is_file():
        pytest.skip("this .venv was not made by scripts/setup")
    before = stamp.stat()
    done = run([ROOT / "scripts" / "setup", "--dev"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    after = stamp.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def attended(command: str, stderr: Path) -> subprocess.Popen[bytes]:
    """A script that attends to a command, telling how far it is as often as it can."""
    script = f"set -euo pipefail; source scripts/lib.sh; tell_every_s=0.05; attended last_line {command}"
    with stderr.open("wb") as file:
        return subprocess.Popen(["bash", "-c", script], cwd=ROOT, stderr=file, start_new_session=True)


def test_what_is_attended_tells_its_last_line_while_it_runs_and_nothing_of_it_afterwards(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    until_told = f"echo first; echo 3 of 9; until grep -q '3 of 9' {errors}; do sleep 0.01; done; echo last"
    assert attended(f'bash -c "{until_told}"', errors).wait(60) == 0
    assert re.fullmatch(r"(\[ *\d+ s\]   (|first|3 of 9|last)\n)+", errors.read_text())


def test_what_is_attended_and_fails_says_everything_that_it_said(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    assert attended("bash -c 'echo one; echo two >&2; exit 3'", errors).wait(60) == 3
    assert "one\ntwo\n" in errors.read_text()


def test_what_is_attended_ends_with_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    started = tmp_path / "started"
    child = attended(f"bash -c 'echo $$ >{started}; sleep 120'", tmp_path / "errors")
    while not (started.exists() and started.read_text()):
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(60) == -signal.SIGINT
    with pytest.raises(ProcessLookupError):
        while True:  # until the last of the group is gone
            os.killpg(child.pid, 0)
            time.sleep(0.01)


def test_bytecode_is_made_of_what_runs_and_not_of_tests(tmp_path: Path) -> None:
    for name in (
        "package/module.py",
        "package/broken.py",
        "package/tests/test_module.py",
        "pip/x.py",
        "torch/testing/x.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("def" if "broken" in name else "x = 1")
    done = run([sys.executable, ROOT / "scripts" / "bytecode.py", tmp_path])
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 of 3 files\n", "")
    assert {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")} == {"module", "x"}
    assert not list((tmp_path / "pip").rglob("*.pyc"))


def stub(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


# Package sources: pip's configuration in uv's words


@pytest.fixture(scope="module")
def pip_sources() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pip_sources", ROOT / "scripts" / "pip_sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pips_sources_become_uvs(pip_sources: ModuleType) -> None:
    listing = textwrap.dedent("""\
        :env:.find-links='/wheels'
        freeze.timeout='10'
        global.cert='/etc/ca.pem'
        global.extra-index-url='file:///a/simple file:///b/simple'
        global.find-links='/other'
        global.index-url='http://mirror.example/simple'
        global.no-index='not closed
        install.trusted-host='mirror.example\\nother.example'
        """)
    options = pip_sources.parse(listing)
    assert pip_sources.exports(options, {"SSL_CERT_FILE": "/mine.pem"}) == [
        "extra_indexes='file:///a/simple file:///b/simple'",
        "export UV_FIND_LINKS=/wheels",
        "export UV_DEFAULT_INDEX=http://mirror.example/simple",
        "export UV_INSECURE_HOST='mirror.example other.example'",
    ]


def test_a_value_is_quoted_for_the_shell(pip_sources: ModuleType) -> None:
    (line,) = pip_sources.exports({"index-url": "$(touch x);`y`'"}, {})
    shown = run(["bash", "-c", f'{line}; printf %s "$UV_DEFAULT_INDEX"'])
    assert shown.stdout == "$(touch x);`y`'"


# quickstart, with an `acu` that plays the daemon

FAKE_ACU = """
import json, os, pathlib, signal, sys, time
home = pathlib.Path(os.environ["HOME"])
up, calls = home / "up", home / "calls"
with calls.open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
match sys.argv[1:]:
    case ["config", "show", "--json"]:
        models = {"large": {"model": "big", "engine": None}, "embed": {"model": "/a/folder", "engine": None}}
        network = {"unix_socket": "/run/x/acu.sock", "bind_addr": "127.0.0.1:1"}
        print(json.dumps({"config": {"network": network, "models": models}}))
    case ["models", "pull", "big"]:
        print("big: ready")
    case ["status"]:
        if not up.exists():
            sys.exit(3)
        print("loading")
        sys.exit(1)
    case ["serve"]:
        if (home / "broken").exists():
            sys.exit("the port is taken")
        signal.signal(signal.SIGTERM, lambda *_: (up.unlink(), sys.exit(0)))
        time.sleep(0.5)
        up.touch()
        time.sleep(120)
    case ["chat", "--once", question, *_]:
        if (home / "slow").exists():
            time.sleep(60)
        print("The capital of France is Paris.")
    case other:
        sys.exit(f"unexpected: {other}")
"""


Quickstart = tuple[list[str | Path], dict[str, str], Path]


@pytest.fixture
def quickstart(checkout: Path, tmp_path: Path) -> Iterator[Quickstart]:
    """The command, its environment, and the home folder of a quickstart whose setup and daemon are stubs."""
    home = tmp_path / "home"
    home.mkdir()
    stub(checkout / "scripts" / "setup", "exit 0")
    binaries = checkout / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    (binaries / "acu").write_text(f"#!{sys.executable}\n{FAKE_ACU}")
    (binaries / "acu").chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command: list[str | Path] = [checkout / "scripts" / "quickstart"]
    yield command, environment, home
    run([*command, "--stop"], env=environment)


def ended(pid: int) -> bool:
    """Whether a process is over, collected or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_quickstart_goes_from_nothing_to_an_answer_and_is_stopped(quickstart: Quickstart) -> None:
    command, environment, home = quickstart
    first = run(command, env=environment)
    assert first.returncode == 0, first.stderr
    assert "The capital of France is Paris." in first.stdout
    assert "curl --unix-socket /run/x/acu.sock http://localhost/v1/chat/completions" in first.stdout
    assert 'base_url="http://127.0.0.1:1/v1"' in first.stdout
    assert "acu serve -c examples/travel/acu.yaml" in first.stdout
    assert "acu chat --agent travel" in first.stdout
    pid = int((home / ".local/state/acu/quickstart.pid").read_text())
    assert f"kill {pid}" in first.stdout
    second = run(command, env=environment)
    assert second.returncode == 0
    assert "one runs already" in second.stderr
    assert (home / "calls").read_text().count("serve") == 1
    stopped = run([*command, "--stop"], env=environment)
    assert stopped.returncode == 0
    assert not (home / "up").exists()
    assert ended(pid)
    assert [path.name for path in (home / ".local/state/acu").iterdir()] == ["quickstart.log"]
    assert "No daemon" in run([*command, "--stop"], env=environment).stderr


def test_quickstart_shows_the_log_of_a_daemon_that_ends(quickstart: Quickstart) -> None:
    command, environment, home = quickstart
    (home / "broken").touch()
    done = run(command, env=environment)
    assert done.returncode == 1
    assert "the port is taken" in done.stderr
    (home / "broken").unlink()
    assert run(command, env=environment).returncode == 0


def test_an_interrupted_quickstart_is_finished_by_the_next(quickstart: Quickstart) -> None:
    command, environment, home = quickstart
    (home / "slow").touch()
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while "chat" not in ((home / "calls").read_text() if (home / "calls").exists() else ""):
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)  # what ctrl-C does: the whole foreground group
    _, errors = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Run scripts/quickstart again to go on" in errors
    (home / "slow").unlink()
    again = run(command, env=environment)
    assert again.returncode == 0
    assert "one runs already" in again.stderr


def test_a_pid_that_now_is_another_program_is_left_alone(quickstart: Quickstart) -> None:
    command, environment, home = quickstart
    state = home / ".local/state/acu"
    state.mkdir(parents=True)
    (state / "quickstart.pid").write_text(str(os.getpid()))
    assert "No daemon" in run([*command, "--stop"], env=environment).stderr
    assert list(state.iterdir()) == [], "what it says is not true any more"


def test_a_daemon_that_has_ended_and_that_nobody_collects_is_not_waited_for(quickstart: Quickstart) -> None:
    command, environment, home = quickstart
    state = home / ".local/state/acu"
    state.mkdir(parents=True)
    ends = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", ends, "acu serve"], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        (state / "quickstart.pid").write_text(str(daemon.pid))
        stopped = run([*command, "--stop"], env=environment)
        assert stopped.returncode == 0
        assert "stopped" in stopped.stderr
        assert ended(daemon.pid)
        assert Path(f"/proc/{daemon.pid}").exists(), "it is still this test's to collect"


def test_the_configuration_that_quickstart_reads_has_these_fields() -> None:
    """The stub above answers like the real command."""
    shown = json.loads(run([sys.executable, "-m", "acu", "config", "show", "--json"], cwd=ROOT).stdout)["config"]
    assert shown["network"]["unix_socket"]
    assert "bind_addr" in shown["network"]
    assert all({"model", "engine"} <= set(model) for model in shown["models"].values())
