"""The model cache: one folder a model, valid exactly while its manifest says so.

    <cache>/<name>/             config.json, tokenizer files, *.safetensors, and acu-model.json
    <cache>/.locks/<name>.lock  flock while a model is pulled or removed; never deleted
    <cache>/.staging-<name>/    a pull at work; stale once nobody holds the lock, and the next pull removes it
    <cache>/.partial-<name>/    whole files of a broken hub download; the next pull of the same commit keeps them
    <cache>/.trash-<name>/      a model being deleted or replaced; the next pull or removal finishes the job

A hub model's <name> is its id with "--" for the slash. A model is valid when acu-model.json can be read and every file
that it lists is there with the listed size; `verify` also compares every SHA-256. Nothing else is ever loaded.

A pull writes everything, flushes it to the disk (files, then folders), writes the manifest, flushes again, and renames
the whole folder into place. So a crash leaves the old model or the new one whole, or (between the two renames of a
replacement) none and two leftovers: never a mixture. Removing renames first, for the same reason.

A daemon holds a shared flock on the folder (the folder itself: a cache that is read-only is served as well) of each model
that it serves, from before it looks at the files for good until its end or its death; removing takes an exclusive one and
does not wait. A forced pull puts a new folder in the place of one that is held: the daemon keeps the old files, and the new
folder is nobody's until the daemon starts again.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from acu.errors import ChecksumMismatch, ModelError, ModelIncomplete, ModelInUse, ModelNotFound
from acu.models import safety
from acu.models.catalogue import Role, by_name, catalogue, not_found
from acu.models.progress import Progress, silent
from acu.models.reading import reading, resolved

MANIFEST = "acu-model.json"
_CHUNK = 8 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


class FileRecord(Struct, frozen=True):
    """One file of a model: path relative to its folder, size in bytes, SHA-256 in hex."""

    path: str
    size: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """acu-model.json. `revision` is the wheel's SHA-256 or the hub's commit, "" for a local folder; `created` is UTC.

    `converter` names the programs and versions that changed the files' format, if any did.
    """

    format: int = 1
    name: str
    role: Role
    source: str
    revision: str
    files: tuple[FileRecord, ...]
    converter: dict[str, str] = {}
    created: str


class LocalModel(Struct, frozen=True):
    """A model that can be loaded from `path`. `size_bytes` counts all its files."""

    name: str
    path: Path
    size_bytes: int
    role: Role


def folder_name(model: str) -> str:
    """The name of a model's folder in the cache. Raises `ModelNotFound` for what can be no name of a model."""
    if not (_PLAIN_NAME.fullmatch(model) or _HUB_ID.fullmatch(model)):
        raise ModelNotFound(not_found(model, [entry.name for entry in catalogue()]))
    return model.replace("/", "--")


def folder_of(model: str, cache_dir: Path) -> Path:
    """Where a model that is known by name lies, or would lie. Raises `ModelNotFound` as `folder_name`."""
    entry = by_name(model)
    return cache_dir / folder_name(entry.name if entry else model)


def is_path(model: str) -> bool:
    """Whether `model` is a folder's path, and no name: it begins with "/", "./", "../" or "~"."""
    return model.startswith(("/", "./", "../", "~"))


def is_hub_id(model: str) -> bool:
    """Whether `model` has the form of a hub repository: organisation/name."""
    return _HUB_ID.fullmatch(model) is not None


def locate(model: str, cache_dir: Path) -> LocalModel:
    """The files of `model`: a catalogue name, a folder's path, or a hub id or other name pulled into the cache.

    Raises `ModelNotFound` (nobody knows it), `ModelIncomplete` (not pulled, or damaged; the message says how to pull it),
    `UnsafeModel` (a folder with pickles or remote code) or `ModelUnreadable`.
    """
    if is_path(model):
        folder = resolved(model)
        safety.check(folder)
        with reading(folder):
            size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        return LocalModel(name=model, path=folder, size_bytes=size, role=safety.role_of(folder))
    entry = by_name(model)
    name = entry.name if entry else model
    folder = cache_dir / folder_name(name)
    with reading(cache_dir):
        if entry is None and not is_hub_id(model) and not folder.is_dir():
            raise ModelNotFound(not_found(model, [known.name for known in catalogue()]))
    return cached(folder, name)


def cached(folder: Path, name: str) -> LocalModel:
    """The model in a folder of the cache. Raises `ModelIncomplete` unless it is valid, and `ModelUnreadable`."""
    manifest = read_manifest(folder, name)
    size = sum(record.size for record in manifest.files)
    return LocalModel(name=manifest.name, path=folder, size_bytes=size, role=manifest.role)


def installed(cache_dir: Path) -> tuple[LocalModel, ...]:
    """The valid models in the cache, by name. What is damaged, half removed or unreadable is left out.

    Raises `ModelUnreadable` for the cache itself.
    """
    models = []
    for name in names(cache_dir):
        with contextlib.suppress(ModelError):
            models.append(cached(cache_dir / name, name))
    return tuple(models)


def names(cache_dir: Path) -> tuple[str, ...]:
    """The folders in the cache, valid or not, in order. `locate` takes them as names. Raises `ModelUnreadable`."""
    with reading(cache_dir):
        if not cache_dir.exists():
            return ()
        return tuple(sorted(path.name for path in cache_dir.iterdir() if path.name[0] != "." and path.is_dir()))


def read_manifest(folder: Path, name: str) -> Manifest:
    """The manifest of the model in `folder`, once every listed file is there with its size.

    Raises `ModelIncomplete` where they are not, and `ModelUnreadable`.
    """
    with reading(folder):
        return _manifest(folder, name)


def _manifest(folder: Path, name: str) -> Manifest:
    repair = f"run `acu models pull {name}`"
    try:
        whole = stat.S_ISREG((folder / MANIFEST).stat().st_mode)  # what is no file may never end
    except FileNotFoundError:
        whole = False
    if not whole:
        state = "was not pulled completely" if folder.is_dir() else "is not on this machine"
        raise ModelIncomplete(f"model {name!r} {state}: {repair}.")
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        raise ModelIncomplete(f"{folder / MANIFEST} is damaged ({error}): {repair}.") from error
    for record in manifest.files:
        path = folder / record.path
        size = path.stat().st_size if path.is_file() else None
        if size != record.size:
            found = "is missing" if size is None else f"has {size} bytes instead of {record.size}"
            raise ModelIncomplete(f"model {name!r} is damaged: {path} {found}. To repair it, {repair}.")
    return manifest


def verify(name: str, cache_dir: Path, progress: Progress = silent) -> LocalModel:
    """Read every file of a model in the cache, and compare it with the manifest.

    Raises `ChecksumMismatch` for the first file that differs, and what `locate` raises.
    """
    model = locate(name, cache_dir)
    with reading(model.path):
        pulled = (model.path / MANIFEST).is_file()
    if not pulled:
        raise ModelIncomplete(f"{model.path} was not pulled by ACU, so there are no checksums to compare it with.")
    manifest = read_manifest(model.path, model.name)
    done = 0
    for record in manifest.files:
        step = functools.partial(advance, progress, "verify", done, model.size_bytes)
        with reading(model.path / record.path):
            actual = hash_file(model.path / record.path, step)
        if actual != record.sha256:
            raise ChecksumMismatch(
                f"{model.path / record.path} has SHA-256 {actual}, and should have {record.sha256}: the disk or "
                f"somebody changed it. Run `acu models pull --force {model.name}`."
            )
        done += record.size
    return model


def remove(name: str, cache_dir: Path, *, served: bool = False) -> None:
    """Delete a model from the cache, and what a broken pull left of it; `served`: even if a daemon serves it.

    Raises `ModelIncomplete` if there is nothing of it, `ModelInUse` if a daemon serves it, `ModelError` where the system does
    not let it. An engine that has loaded it keeps its files until it stops.
    """
    folder = folder_of(name, cache_dir).name
    with locked(cache_dir, folder), contextlib.nullcontext() if served else _unused(cache_dir / folder, name):
        leftovers = [cache_dir / f".{kind}-{folder}" for kind in ("staging", "partial", "trash")]
        try:
            if not any(path.exists() for path in (cache_dir / folder, *leftovers)):
                raise ModelIncomplete(f"model {name!r} is not on this machine: there is nothing to remove.")
            discard(cache_dir / folder)
        except OSError as error:
            raise ModelError(f"{cache_dir / folder} cannot be removed: {error.strerror}.") from error
        for path in leftovers:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep the model in `folder` from being removed. Raises `ModelIncomplete` when that has happened, or happens now."""
    gone = f"{folder} was removed or replaced just now: start again."
    with contextlib.ExitStack() as held:
        try:
            lock = _flock(folder, fcntl.LOCK_SH, held)
            if not os.path.samestat(os.fstat(lock), folder.stat()):
                raise ModelIncomplete(gone)
        except (FileNotFoundError, BlockingIOError):
            raise ModelIncomplete(gone) from None
        except OSError:  # no locks on this file system, or a folder that may not be listed: it is served all the same
            pass
        yield


@contextlib.contextmanager
def _unused(folder: Path, name: str) -> Iterator[None]:
    """Keep daemons from the model in `folder`, if it is there. Raises `ModelInUse` when one serves it."""
    with contextlib.ExitStack() as held:
        try:
            _flock(folder, fcntl.LOCK_EX, held)
        except BlockingIOError:
            raise ModelInUse(
                f"{name} is served by a daemon: stop that first (`acu status` shows it), or take the model out of its "
                "configuration and restart it; --force removes the model all the same."
            ) from None
        except OSError:  # it is not there, or there are no locks on this file system
            pass
        yield


def _flock(folder: Path, operation: int, held: contextlib.ExitStack) -> int:
    """Lock the folder itself until `held` is closed; its descriptor. Raises BlockingIOError instead of waiting."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, descriptor)
    fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    return descriptor


def discard(folder: Path) -> None:
    """Delete a model's folder: out of the way first, so that a crash never leaves half of it under its name."""
    trash = folder.with_name(f".trash-{folder.name}")
    shutil.rmtree(trash, ignore_errors=True)
    if folder.exists():
        folder.rename(trash)
        sync(folder.parent)
        shutil.rmtree(trash, ignore_errors=True)


@contextlib.contextmanager
def locked(cache_dir: Path, folder: str, progress: Progress = silent) -> Iterator[None]:
    """Hold the lock of one model against other processes. Waits for as long as another one holds it."""
    locks = cache_dir / ".locks"
    try:
        locks.mkdir(parents=True, exist_ok=True)
        lock = os.open(locks / f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ModelError(f"cannot write to the model cache {cache_dir}: {error.strerror}.") from error
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress("wait for another pull", 0, 0)
                time.sleep(0.2)
        yield
    finally:
        os.close(lock)


def hash_file(path: Path, advance: Callable[[int], None] = lambda _done: None) -> str:
    """SHA-256 of a file in hex. `advance` gets the number of bytes read so far."""
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    done = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            done += count
            advance(done)
    return digest.hexdigest()


def advance(progress: Progress, stage: str, before: int, total: int, done: int) -> None:
    """Report `done` bytes of one file out of several; for `functools.partial`."""
    progress(stage, before + done, total)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
