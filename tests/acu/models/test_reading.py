"""acu.models.reading: what the system says against looking at a model, told with the path and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from acu import models
from acu.commands.models import listing
from acu.errors import ModelError, ModelIncomplete, ModelNotFound, ModelUnreadable, StartRefused
from acu.models.cache import MANIFEST
from acu.models.headers import read_header, read_weights
from acu.models.reading import reading
from acu.models.safety import role_of
from acu.served import find_model, weigh
from tests.acu.models.modelfiles import write_model

NOBODY = 65534


@contextlib.contextmanager
def as_nobody() -> Iterator[int]:
    """This process with the rights of no user in particular, where it is root. Gives the id."""
    if os.geteuid() != 0:
        yield os.geteuid()
        return
    os.seteuid(NOBODY)
    try:
        yield NOBODY
    finally:
        os.seteuid(0)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("name", ["model", "model/config.json", "model/model.safetensors"])
def test_a_model_that_may_not_be_read_is_told_with_its_path_and_the_user(place: Path, name: str) -> None:
    model = str(write_model(place / "model"))
    mode = (place / name).stat().st_mode
    (place / name).chmod(0)
    with as_nobody() as user:
        with pytest.raises(ModelUnreadable, match=rf"{place / name}\S* cannot be read: Permission .* the id {user} "):
            models.locate(model, place / "cache")
        with pytest.raises(StartRefused, match=r"models\.large\.model: .*Permission denied"):
            find_model("large", model, place / "cache")
    (place / name).chmod(mode)


def test_weights_that_may_not_be_read_any_more_refuse_the_start(place: Path) -> None:
    files = models.locate(str(write_model(place / "model")), place / "cache")
    (files.path / "config.json").chmod(0)
    with (
        as_nobody(),
        pytest.raises(StartRefused, match=r"models\.large\.model: .*config\.json cannot be read: Permission denied"),
    ):
        weigh("large", files)


def test_a_cache_that_may_not_be_listed_is_no_empty_one(place: Path) -> None:
    cache = place / "cache"
    (cache / "x").mkdir(parents=True)
    cache.chmod(0)
    with as_nobody():
        for look in (models.names, models.installed, lambda cache: models.locate("x", cache)):
            with pytest.raises(ModelUnreadable, match=rf"{cache}\S* cannot be read: Permission denied; let the user"):
                look(cache)
    cache.chmod(0o700)


def test_a_cache_that_may_not_be_listed_is_told_by_the_list_as_well(place: Path) -> None:
    cache = place / "cache"
    cache.mkdir(mode=0)
    with as_nobody(), pytest.raises(ModelUnreadable, match=rf"{cache} cannot be read: Permission denied"):
        listing(cache)
    cache.chmod(0o700)


def test_a_model_that_may_not_be_read_is_listed_as_such(place: Path) -> None:
    cache = place / "cache"
    models.pull("mine", cache, folder=write_model(place / "original"))
    (cache / "mine").chmod(0)
    with as_nobody():
        assert listing(cache)[-1] == {"name": "mine", "state": "unreadable", "path": None, "disk_bytes": 0}
    (cache / "mine").chmod(0o700)


def test_a_cache_in_which_only_locks_can_be_made_is_left_as_it_is(place: Path) -> None:
    cache = place / "cache"
    models.pull("mine", cache, folder=write_model(place / "original"))
    for lock in (cache / ".locks").iterdir():
        lock.chmod(0o666)
    (cache / ".locks").chmod(0o777)
    cache.chmod(0o555)
    with as_nobody():
        with pytest.raises(ModelError, match=rf"{cache}/mine cannot be removed: Permission denied"):
            models.remove("mine", cache)
        with pytest.raises(ModelError, match=r"pulling other failed: .*Permission denied"):
            models.pull("other", cache, folder=place / "original")
    cache.chmod(0o755)
    assert [model.name for model in models.installed(cache)] == ["mine"]


def test_an_unreadable_model_hides_no_other_one_of_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    models.pull("good", cache, folder=write_model(tmp_path / "original"))
    (cache / "circle").symlink_to("circle")
    (cache / "bad").mkdir()
    (cache / "bad" / MANIFEST).symlink_to(MANIFEST)
    assert models.names(cache) == ("bad", "good")
    assert [model.name for model in models.installed(cache)] == ["good"]


def make_file(place: Path) -> None:
    place.write_text("")


def make_circle(place: Path) -> None:
    place.symlink_to(place.name)


@pytest.mark.parametrize(("make", "why"), [(make_file, "Not a directory"), (make_circle, "Too many levels")])
def test_a_file_or_a_circle_of_links_in_the_place_of_the_cache_is_no_empty_cache(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    cache = tmp_path / "cache"
    make(cache)
    for name in ("smollm2-135m-instruct", "some/model"):
        with pytest.raises(ModelUnreadable, match=rf"{cache}\S* cannot be read: {why}.*; correct the path"):
            models.locate(name, cache)
    if make is make_file:
        with pytest.raises(ModelUnreadable, match=f"{cache} cannot be read: {why}"):
            models.names(cache)


def test_a_folder_whose_links_lead_in_a_circle_is_refused(tmp_path: Path) -> None:
    make_circle(tmp_path / "circle")
    with pytest.raises((ModelUnreadable, ModelNotFound), match="circle"):  # by the version of Python
        models.locate(str(tmp_path / "circle"), tmp_path / "cache")


def test_a_file_in_the_place_of_a_folder_is_no_model(tmp_path: Path) -> None:
    make_file(tmp_path / "file")
    with pytest.raises(ModelNotFound, match="no folder"):
        models.locate(str(tmp_path / "file"), tmp_path / "cache")


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match=r"cannot be read: File name too long; correct the path"):
        models.locate(f"{tmp_path}/{'x' * 300}", tmp_path / "cache")
    with pytest.raises(ModelUnreadable, match=r"cannot be read: File name too long; correct the path"):
        models.locate("organisation/name", tmp_path / ("x" * 300))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_a_manifest_that_is_no_file_is_one_of_a_broken_pull_and_is_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    cache = tmp_path / "cache"
    models.pull("mine", cache, folder=write_model(tmp_path / "original"))
    (cache / "mine" / MANIFEST).unlink()
    make(cache / "mine" / MANIFEST)
    with pytest.raises(ModelIncomplete, match=r"'mine' was not pulled completely: run `acu models pull mine`"):
        models.locate("mine", cache)
    assert models.pull("mine", cache, folder=tmp_path / "original").name == "mine"
    assert models.verify("mine", cache).path == cache / "mine"


def test_a_disk_that_fails_is_named_with_what_was_being_read(tmp_path: Path) -> None:
    with (
        pytest.raises(ModelUnreadable, match=rf"{tmp_path} cannot be read: Input/output error; look at the disk"),
        reading(tmp_path),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))  # as read(2) tells it, without a name


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
        (folder / name).mkdir()
    with pytest.raises(ModelUnreadable, match=r"config\.json cannot be read: Is a directory"):
        role_of(folder)
    with pytest.raises(ModelUnreadable, match=r"config\.json cannot be read: Is a directory"):
        read_weights(folder)
    with pytest.raises(ModelUnreadable, match=r"model\.safetensors cannot be read: Is a directory"):
        read_header(folder / "model.safetensors")


def test_of_a_thousand_missing_shards_three_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    shards = {f"w{number}": f"model-{number:05}-of-01000.safetensors" for number in range(1000)}
    text = str({"weight_map": shards}).replace("'", '"')
    (folder / "model.safetensors.index.json").write_text(text)
    named = r"lacks model-00000-of-01000\.safetensors, \S+, \S+ and 997 more, which"
    with pytest.raises(ModelIncomplete, match=named):
        models.locate(str(folder), tmp_path / "cache")
    with pytest.raises(ModelIncomplete, match=named):
        read_weights(folder)


def test_a_name_of_any_length_is_told_by_its_beginning(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as refused:
        models.locate("x" * 100_000, tmp_path)
    assert str(refused.value).startswith(f"no model '{'x' * 120}'")
    assert len(str(refused.value)) < 400
