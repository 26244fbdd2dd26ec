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

from acu.config import AcuConfig
from acu.doctor.examination import ReadTest
from acu.doctor.sight import Sight
from acu.errors import ModelError
from acu.models import locate
from acu.models.preload import behind_others

MOST_BYTES = 256 << 20
MOST_S = 0.5
PIECE = 4 << 20  # deep enough for NVMe, and short enough for the clock on a slow disk


def weights_of(config: AcuConfig, sight: Sight) -> tuple[Path, ...]:
    """The *.safetensors of the configured models that are here, each once. A model that is not pulled has none."""
    files: dict[Path, None] = {}
    cache = sight.root / config.gpu.model_cache_dir.lstrip("/")
    for key, model in config.models.items():
        if model.engine == "scripted":
            continue
        try:
            found = locate(model.model, cache)
        except ModelError:
            continue  # not pulled, which `acu serve` says better
        except OSError as error:
            sight.note(f"models.{key}", error)
            continue
        files.update(dict.fromkeys(path.resolve() for path in sorted(found.path.glob("*.safetensors"))))
    return tuple(files)


def total_mb(files: tuple[Path, ...]) -> int:
    """MiB of all the files."""
    return sum(path.stat().st_size for path in files) >> 20


def read_tests(files: tuple[Path, ...], sight: Sight) -> tuple[ReadTest, ...]:
    """One read a file system, of its largest file."""
    by_device: dict[int, list[Path]] = {}
    for path in files:
        by_device.setdefault(path.stat().st_dev, []).append(path)
    tests = []
    for there in by_device.values():
        largest = max(there, key=lambda path: path.stat().st_size)
        try:
            tests.append(read_test(largest, total_mb(tuple(there))))
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
