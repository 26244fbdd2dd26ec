"""How long work on model files is reported: a stage's name, and bytes done out of bytes to do."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total), in bytes, every few megabytes or tenths of a second. A total of 0: nobody knows."""


def silent(_stage: str, _done: int, _total: int) -> None:
    """For callers who do not look."""


def human(size: int) -> str:
    """A size in bytes for people, in powers of ten: 5_580_000_000 -> "5.58 GB"."""
    if size < 1000:
        return f"{size} B"
    unit, scale = next(((u, s) for u, s in (("kB", 1e3), ("MB", 1e6)) if size / s < 999.5), ("GB", 1e9))
    value = size / scale
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"
