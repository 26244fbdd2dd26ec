"""The cache: what is valid, what is loaded, what is refused; the catalogue, preloading and the command."""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from acu import models
from acu.commands.models import progress_bars
from acu.errors import (
    ChecksumMismatch,
    ModelError,
    ModelIncomplete,
    ModelInUse,
    ModelNotFound,
    NoSpace,
    UnsafeModel,
)
from acu.models import HubSource, ModelEntry, WheelSource
from acu.models.cache import MANIFEST
from acu.models.progress import human
from tests.acu.models.modelfiles import leftovers, write_model

ROOT = Path(__file__).parents[3]


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


def test_a_model_in_use_is_not_removed_until_its_last_user_is_gone(tiny: ModelEntry, cache: Path) -> None:
    folder = models.pull(tiny, cache).path
    with models.in_use(folder):
        with models.in_use(folder), pytest.raises(ModelInUse, match="tiny is served by a daemon"):
            models.remove("tiny", cache)
        with pytest.raises(ModelInUse):
            models.remove("tiny", cache)
        assert models.locate("tiny", cache).path == folder
        assert models.pull(tiny, cache).path == folder, "a pull of what is there waits for nobody"
    models.remove("tiny", cache)
    assert not folder.exists()


def test_a_model_in_use_is_removed_by_force(tiny: ModelEntry, cache: Path) -> None:
    folder = models.pull(tiny, cache).path
    with models.in_use(folder):
        models.remove("tiny", cache, served=True)
    assert not folder.exists()
    with pytest.raises(ModelIncomplete, match="was removed or replaced just now"), models.in_use(folder):
        pass


def test_no_model_comes_into_use_while_it_is_being_removed(tiny: ModelEntry, cache: Path) -> None:
    folder = models.pull(tiny, cache).path
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # as `remove` holds it
    with pytest.raises(ModelIncomplete, match="was removed or replaced just now"), models.in_use(folder):
        pass
    os.close(descriptor)
    with models.in_use(folder):
        pass


def test_a_process_that_was_killed_holds_no_model(tiny: ModelEntry, cache: Path) -> None:
    folder = models.pull(tiny, cache).path
    program = (
        "import sys, time; from pathlib import Path; from acu.models import in_use\n"
        "with in_use(Path(sys.argv[1])): print('held', flush=True); time.sleep(120)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    with pytest.raises(ModelInUse):
        models.remove("tiny", cache)
    child.kill()
    child.communicate()
    models.remove("tiny", cache)


def test_being_in_use_leaves_no_trace_so_that_a_cache_may_be_read_only(tiny: ModelEntry, cache: Path) -> None:
    folder = models.pull(tiny, cache).path
    before = {path: path.lstat().st_mtime_ns for path in (cache, *cache.rglob("*"))}
    with models.in_use(folder):
        assert {path: path.lstat().st_mtime_ns for path in (cache, *cache.rglob("*"))} == before


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
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}'),
            "lacks 5, which",
        ),
        (lambda folder: (folder / "config.json").write_text("[" * 200_000), "is not JSON"),
        (lambda folder: os.mkfifo(folder / "generation_config.json"), "is no regular file"),
        (lambda folder: os.mkfifo(folder / "model-2.safetensors"), "is no regular file"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    damage: Callable[[Path], object], message: str, tmp_path: Path, cache: Path
) -> None:
    folder = write_model(tmp_path / "mine")
    damage(folder)
    with pytest.raises(ModelIncomplete, match=message):
        models.locate(str(folder), cache)


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


def acu(cache: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ACU_GPU__MODEL_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-m", "acu", "models", *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
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
