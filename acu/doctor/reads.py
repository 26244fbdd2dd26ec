"""A short read of the models past the page cache: how fast a first start would read its weights.

On each file system that holds models, up to 256 MiB or half a second of the largest safetensors file. O_DIRECT reads the disk
whatever memory holds; where the file system has no O_DIRECT the pages that are to be read are dropped from the page cache first,
which takes them from a running daemon's next start and from nothing else. The thread's I/O stands behind everybody's.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from msgspec.structs import replace

from acu.config import AcuConfig
from acu.doctor.disks import folder_of_disk
from acu.doctor.examination import ModelFiles, ReadTest
from acu.doctor.sight import Sight
from acu.errors import ModelError
from acu.models import locate
from acu.models.cache import folder_of, is_path
from acu.models.preload import behind_others
from acu.process.mounts import Mount

MOST_BYTES = 256 << 20
MOST_S = 0.5
PIECE = 4 << 20  # deep enough for NVMe, and short enough for the clock on a slow disk


def models_read(config: AcuConfig) -> tuple[tuple[str, str], ...]:
    """(key, model) of the configured models that have files."""
    return tuple((key, model.model) for key, model in config.models.items() if model.engine != "scripted")


def read_model(key: str, model: str, config: AcuConfig, sight: Sight) -> tuple[ModelFiles, dict[Path, int]]:
    """Whether a model's files can be read by this user, and the bytes of its *.safetensors. None of it is read."""
    cache = sight.root / config.gpu.model_cache_dir.lstrip("/")
    seen = ModelFiles(key, model)
    try:
        if not is_path(model):
            try:
                folder_of(model, cache).lstat()
            except FileNotFoundError:
                return seen, {}  # not pulled, which `acu serve` says better
        seen = replace(seen, pulled=True)
        found = locate(model, cache)
        seen = replace(seen, path=str(found.path))
        for path in sorted(found.path.iterdir()):
            if path.is_file():
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        weights = (path.resolve() for path in sorted(found.path.glob("*.safetensors")))
        return seen, {path: path.stat().st_size for path in weights}
    except ModelError as error:
        return replace(seen, problem=str(error).rstrip("."), path=seen.path or str(cache)), {}
    except OSError as error:
        which = str(error.filename or seen.path or cache)
        return replace(seen, problem=f"{which} cannot be read: {error.strerror}", path=which), {}
    except RuntimeError as error:  # links that lead to themselves
        return replace(seen, problem=str(error), path=seen.path or model), {}


def silent_model(key: str, model: str, config: AcuConfig) -> ModelFiles:
    """A model whose disk does not answer."""
    path = model if is_path(model) else config.gpu.model_cache_dir
    return ModelFiles(key, model, pulled=True, problem="its disk does not answer", path=path)


def weights_of(config: AcuConfig, sight: Sight) -> tuple[Path, ...]:
    """The *.safetensors of the configured models that are here and can be read, each once."""
    files: dict[Path, int] = {}
    for key, model in models_read(config):
        files |= read_model(key, model, config, sight)[1]
    return tuple(files)


def total_mb(files: tuple[Path, ...]) -> int:
    """MiB of all the files."""
    return sum(path.stat().st_size for path in files) >> 20


def read_tests(files: tuple[Path, ...], sight: Sight, mounts: tuple[Mount, ...] = ()) -> tuple[ReadTest, ...]:
    """One read a file system, of its largest file. `files` are without links."""
    by_device: dict[int, list[Path]] = {}
    for path in files:
        by_device.setdefault(path.stat().st_dev, []).append(path)
    tests = []
    for there in by_device.values():
        largest = max(there, key=lambda path: path.stat().st_size)
        try:
            disk = folder_of_disk(largest, mounts, sight)
            test = read_test(largest, total_mb(tuple(there)))
            tests.append(replace(test, disk=disk.name if disk is not None else None))
        except OSError as error:
            sight.note(str(largest), error)
    return tuple(tests)


def read_test(path: Path, weights_mb: int, *, most_bytes: int = MOST_BYTES, most_s: float = MOST_S) -> ReadTest:
    """Read the beginning of a file from its disk. Raises OSError."""
    with behind_others():
        file, direct = _open_past_cache(path, most_bytes)
        try:
            with mmap.mmap(-1, PIECE) as piece:  # aligned to pages, as O_DIRECT wants
                started = time.monotonic()
                done = 0
                while done < most_bytes and time.monotonic() - started < most_s:
                    count = os.preadv(file, [piece], done)
                    done += count
                    if count < PIECE:
                        break
                seconds = time.monotonic() - started
        finally:
            os.close(file)
    return ReadTest(
        path=str(path),
        read_mb=round(done / (1 << 20), 3),
        seconds=round(seconds, 6),
        direct=direct,
        weights_mb=weights_mb,
    )


def _open_past_cache(path: Path, size: int) -> tuple[int, bool]:
    """(file, whether O_DIRECT is on). Raises OSError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        pass
    else:
        try:
            with mmap.mmap(-1, PIECE) as piece:
                os.preadv(file, [piece], 0)
        except OSError:  # it opens, and refuses to read so
            os.close(file)
        else:
            return file, True
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.posix_fadvise(file, 0, size, os.POSIX_FADV_DONTNEED)
    return file, False
