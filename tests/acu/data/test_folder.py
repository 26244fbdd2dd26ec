"""acu.data.folder: which folders may hold data, what is left of them as it was, and whose one is that is not used yet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acu.config import AcuConfig, GpuConfig
from acu.data.folder import check_data_folder, data_claimed, folder_warning
from acu.errors import StartRefused
from dataplane.config import DataPlaneConfig
from dataplane.store import opened

HOLDER = """
import sys, time
from acu.data.folder import data_claimed
with data_claimed(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def looked_at(path: Path | str, file: Path | None = None, cache: Path | None = None) -> None:
    """What a start does with the folder. Raises StartRefused."""
    gpu = GpuConfig(model_cache_dir=str(cache)) if cache else GpuConfig()
    check_data_folder(AcuConfig(data_plane=DataPlaneConfig(path=str(path)), gpu=gpu), file)


def refusal(path: Path | str) -> str:
    with pytest.raises(StartRefused) as refused:
        looked_at(path)
    (problem,) = refused.value.problems
    return problem


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that keeps `path`, killed at the end."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


@pytest.mark.parametrize("path", ["/", "//", "/tmp/../"])
def test_the_root_of_all_files_is_refused(path: str) -> None:
    assert refusal(path) == (
        f"data_plane.path: {path} is the root of all files; name a folder of its own, such as /var/lib/acu/data"
    )


def test_a_folder_with_other_things_in_it_is_refused_and_three_of_them_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "letter").touch()
    assert refusal(folder) == (
        f"data_plane.path: {folder} is no data plane, and has letter in it; name a new or empty folder"
    )
    for name in "edcba":
        (folder / name).mkdir()
    assert "has a, b, c and 3 more in it;" in refusal(folder)
    (tmp_path / "link").symlink_to(folder)
    assert "link is no data plane, and has a, b" in refusal(tmp_path / "link")
    (folder / "rocks").mkdir()
    looked_at(folder)
    looked_at(folder / "new")


@pytest.mark.parametrize(
    "name", ["lost+found", ".snapshot", "results", "reserve", "library", "0", "models", "compiled", "acu.yaml"]
)
def test_what_is_the_systems_or_the_configurations_own_is_not_foreign(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    looked_at(tmp_path, file=tmp_path / "acu.yaml", cache=tmp_path / "models")


@pytest.mark.parametrize(("path", "mount"), [("/proc/nope", "/proc (proc)"), ("/sys/kernel", "/sys (sysfs)")])
def test_a_folder_of_the_kernel_is_refused(path: str, mount: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("others than root cannot write there anyway")
    assert refusal(path) == f"data_plane.path: {path} lies in {mount}, where nothing can be kept; choose another path"


def test_links_that_lead_nowhere_and_ways_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to(tmp_path / "none")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    assert "away is a link that leads nowhere" in refusal(tmp_path / "away")
    assert "away is a link that leads nowhere" in refusal(tmp_path / "away" / "data")
    assert "round is a link that leads nowhere" in refusal(tmp_path / "round")
    assert "cannot be looked at: File name too long" in refusal(tmp_path / ("n" * 300))


async def test_a_folder_that_is_there_keeps_its_mode_and_what_is_put_into_it_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for mode in (0o1777, 0o755, 0o750):
        folder.chmod(mode)
        async with opened(DataPlaneConfig(path=str(folder), hot_layer_mem_mb=64, archive_every_s=None)) as plane:
            await plane.state.put("acme", "blob", "0", b"kept")
        assert folder.stat().st_mode & 0o7777 == mode
        assert {
            path.name: path.stat().st_mode & 0o077 for path in folder.iterdir() if path.stat().st_mode & 0o077
        } == {}


def test_a_folder_in_which_everybody_may_write_is_warned_of(tmp_path: Path) -> None:
    assert folder_warning(str(tmp_path / "none")) is None
    tmp_path.chmod(0o755)
    assert folder_warning(str(tmp_path)) is None
    tmp_path.chmod(0o1777)
    warning = folder_warning(str(tmp_path)) or ""
    assert warning.startswith(f"data_plane.path: everybody may write in {tmp_path} (mode 1777), ")
    assert warning.endswith(f"; run chmod o-w {tmp_path}")


def test_of_two_that_mean_one_unused_folder_the_second_is_told_of_the_first_until_that_is_killed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a" / "data"
    (tmp_path / "link").symlink_to(tmp_path)
    with held_elsewhere(folder) as holder:
        name = Path(f"/proc/{holder.pid}/comm").read_text().strip()
        said = (
            f"is kept by {name} (pid {holder.pid}), which has not stored anything yet; stop it, or choose another path"
        )
        for path in (folder, tmp_path / "link" / "a" / "data"):
            with pytest.raises(StartRefused) as refused, data_claimed(str(path)):
                pass
            assert refused.value.problems == (f"data_plane.path: {path} {said}",)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link"], "nothing is made"
        folder.mkdir(parents=True)
        with pytest.raises(StartRefused), data_claimed(str(folder)):  # also once a part of the way is there
            pass
        for other in (tmp_path / "a", tmp_path / "a" / "data2", folder / "data"):
            with data_claimed(str(other)):
                pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
        with data_claimed(str(folder)):
            pass


def test_a_folder_is_given_back_at_the_end(tmp_path: Path) -> None:
    with data_claimed(str(tmp_path)):
        with pytest.raises(StartRefused), data_claimed(str(tmp_path)):
            pass
        before = len(list(Path("/proc/self/fd").iterdir()))
    assert len(list(Path("/proc/self/fd").iterdir())) < before
    with data_claimed(str(tmp_path)):
        pass


def test_a_start_that_is_refused_its_folder_leaves_no_mark(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "data"):
        before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
        with pytest.raises(StartRefused), data_claimed(str(tmp_path / "data")):
            pass
        assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before
