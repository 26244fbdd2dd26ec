"""acu.doctor.reads: real files read past the page cache, on a disk and on a file system without O_DIRECT."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

from acu.config import AcuConfig, GpuConfig
from acu.doctor.disks import read_place
from acu.doctor.examination import ReadTest
from acu.doctor.reads import read_model, read_test, read_tests, total_mb, weights_of
from acu.doctor.sight import Sight
from agentflow.config import ModelConfig

MIB = 1 << 20


def takes_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_a_file_is_read_to_its_end_or_to_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(os.urandom(MIB) * 9 + b"tail")
    os.sync()
    found = read_test(file, 9, most_s=60)
    assert (found.path, found.weights_mb, found.direct) == (str(file), 9, takes_direct(file))
    assert found.read_mb == pytest.approx(9, abs=0.01)
    assert found.seconds > 0
    assert read_test(file, 9, most_bytes=8 * MIB, most_s=60).read_mb == 8
    assert read_test(file, 9, most_s=0).read_mb == 0


def test_a_direct_read_reads_the_disk_though_memory_holds_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(os.urandom(MIB) * 8)
    os.sync()
    file.read_bytes()
    if not takes_direct(file):
        pytest.skip("this file system is on no disk")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    read_test(file, 8, most_s=60)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before >= 8 * MIB // 512


def test_where_there_is_no_direct_reading_the_file_is_read_all_the_same() -> None:
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("there is no /dev/shm")
    file = shm / f"acu-read-test-{os.getpid()}"
    try:
        file.write_bytes(b"x" * 5 * MIB)
        found = read_test(file, 5, most_s=60)
        assert (found.read_mb, found.direct) == (5, takes_direct(file))
    finally:
        file.unlink(missing_ok=True)


def test_the_threads_priority_is_as_before(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x")
    before = psutil.Process().ionice()
    read_test(file, 0)
    assert psutil.Process().ionice() == before


def folder_with(path: Path, **sizes: int) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}')
    for name, size in sizes.items():
        header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size - 128, size - 128)
        header = header.ljust(120)
        (path / f"{name}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x" * (size - 128))
    return path


def test_weights_are_those_of_the_models_that_are_here_each_once(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "m", a=2 * MIB, b=3 * MIB)
    config = AcuConfig(
        gpu=GpuConfig(model_cache_dir=str(tmp_path / "cache")),
        models={
            "large": ModelConfig(model=str(model)),
            "again": ModelConfig(model=str(model)),
            "absent": ModelConfig(model="qwen2.5-7b-instruct-awq"),
            "nowhere": ModelConfig(model=str(tmp_path / "nowhere")),
            "played": ModelConfig(model=str(model), engine="scripted"),
        },
    )
    sight = Sight()
    files = weights_of(config, sight)
    assert [file.name for file in files] == ["a.safetensors", "b.safetensors"]
    assert total_mb(files) == 5
    (found,) = read_tests(files, sight)
    assert (Path(found.path).name, found.read_mb, found.weights_mb) == ("b.safetensors", 3, 5)
    assert sight.unread == []


def test_each_file_system_is_read_once_for_what_lies_on_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        files = []
        for folder in (tmp_path, Path(memory)):
            for name, size in (("a", 1), ("b", 2)):
                files.append(folder / f"{name}.safetensors")
                files[-1].write_bytes(b"x" * size * MIB)
        found = read_tests(tuple(files), Sight())
        same = tmp_path.stat().st_dev == Path(memory).stat().st_dev
    largest = [str(folder / "b.safetensors") for folder in (tmp_path, Path(memory))]
    assert [(test.path, test.read_mb, test.weights_mb) for test in found] == (
        [(largest[0], 2, 6)] if same else [(path, 2, 3) for path in largest]
    )


def test_nothing_is_read_where_there_is_nothing() -> None:
    assert read_tests((), Sight()) == ()


def test_a_file_that_does_not_open_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "model.safetensors"
    folder.mkdir()
    sight = Sight()
    found: tuple[ReadTest, ...] = read_tests((folder,), sight)
    assert found == ()
    assert sight.unread == [f"{folder}: Is a directory"]


def test_the_disk_that_is_read_is_the_one_behind_a_link(tmp_path: Path) -> None:
    folder_with(tmp_path / "there", a=2 * MIB)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    config = AcuConfig(models={"large": ModelConfig(model=str(tmp_path / "link"))})
    sight = Sight()
    mounts = sight.mounts()
    (found,) = read_tests(weights_of(config, sight), sight, mounts)
    assert found.disk == read_place("models", tmp_path, mounts, sight)[0].disk


def problem_of(model: Path | str, cache: Path) -> tuple[bool, str]:
    config = AcuConfig(gpu=GpuConfig(model_cache_dir=str(cache)))
    found, _ = read_model("large", str(model), config, Sight())
    return found.pulled, found.problem


def test_a_model_whose_files_cannot_be_served_says_why(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m", a=MIB)
    assert problem_of(folder, tmp_path) == (True, "")
    assert problem_of("qwen2.5-7b-instruct-awq", tmp_path / "cache") == (False, "")
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    cases = (tmp_path / "nowhere", tmp_path / "file", tmp_path / "circle")
    for model in cases:
        pulled, problem = problem_of(model, tmp_path)
        assert pulled
        assert str(model) in problem
    in_the_way = tmp_path / "file"
    assert "cannot be read: Not a directory" in problem_of("qwen2.5-7b-instruct-awq", in_the_way)[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_model_that_this_user_may_not_read_says_which_file(tmp_path: Path) -> None:
    folder = folder_with(Path(tempfile.mkdtemp(dir="/tmp")) / "m", a=MIB)
    folder.parent.chmod(0o755)
    (folder / "a.safetensors").chmod(0o600)
    try:
        os.seteuid(61236)
        pulled, problem = problem_of(folder, tmp_path)
    finally:
        os.seteuid(0)
        shutil.rmtree(folder.parent)
    assert pulled
    assert str(folder / "a.safetensors") in problem
