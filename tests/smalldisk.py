"""A small disk of a test's own, to be filled: a tmpfs that is always taken down again.

A shell beside the test mounts it and waits. At the end of the test, passed or failed, it is told to unmount. Should the
test's process die before that (a time limit, kill -9), its pipe ends, and the shell unmounts by itself. Files that are
still open then hold up nothing: the disk is detached at once and freed with the last of them, and the test is failed.
Where mounting is not permitted, the test is skipped with what `mount` said. No loop device takes part.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1 << 20
BALLAST = "ballast"
END_S = 20
SHELL = """
mount -t tmpfs -o "size=$2" acu-small-disk "$1" || exit 1
echo mounted
read -r _
umount "$1" || { umount -l "$1"; exit 1; }
"""


@contextlib.contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[Path]:
    """A file system of `size_mb` MiB, mounted on `folder`, which is made. It must be closed before it ends."""
    folder.mkdir()
    with subprocess.Popen(
        ["sh", "-c", SHELL, "sh", str(folder), f"{size_mb}m"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the test
    ) as shell:
        assert shell.stdout is not None
        if shell.stdout.readline() != "mounted\n":
            _, refusal = shell.communicate(timeout=END_S)
            reason, _, _ = refusal.partition("\n")
            pytest.skip(f"a small disk cannot be mounted here: {reason}")
        try:
            yield folder
        finally:
            _, refusal = shell.communicate("end\n", timeout=END_S)  # a word, for a child may hold the pipe too
    assert shell.returncode == 0, f"something on the small disk was left open: {refusal.strip()}"


def room(disk: Path) -> int:
    """Bytes that can still be written."""
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


def fill_up(disk: Path, leave: int = 0) -> None:
    """Write ballast until not more than `leave` bytes are left, a multiple of 4096."""
    with (disk / BALLAST).open("ab", buffering=0) as file:
        while (left := room(disk) - leave) > 0:
            with contextlib.suppress(OSError):  # whoever else writes there may have been quicker
                file.write(b"\0" * min(MIB, left))


def free(disk: Path) -> None:
    """Take the ballast away."""
    (disk / BALLAST).unlink()
