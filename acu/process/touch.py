"""Touch: a program that looks at places and tells, before each look, at which: `touch.py SECONDS PATH ...`.

Who started it learns by its silence which place does not answer (see answers.py). Standard library only, and few modules of it,
for a start waits for it. It ends with whoever holds its standard input, and no single look lasts longer than SECONDS, if the
kernel lets a signal end it.
"""

# pathlib takes longer to import than all of this takes:
# ruff: noqa: PTH116, PTH118, PTH208

import fcntl
import os
import signal
import stat
import sys

MOST = 1000  # of what one place holds
DEEP = 2  # folders: a cache of models, a model


def touch(number: int, path: bytes, seconds: int, deep: int, left: list[int], device: int | None = None) -> None:
    """Look at a file, or a folder and what it holds on the same file system. What is refused has answered as well."""
    if left[0] <= 0:
        return
    left[0] -= 1
    signal.alarm(seconds)
    os.write(1, b"%d %b\0" % (number, path))
    try:
        found = os.stat(path)
        if device not in {None, found.st_dev} or path.startswith((b"/proc/", b"/sys/", b"/dev/")):
            return
        if stat.S_ISREG(found.st_mode):
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                os.read(file, 1)
            finally:
                os.close(file)
        elif stat.S_ISDIR(found.st_mode):
            os.statvfs(path)
            names = sorted(os.listdir(path)) if deep else []
            for name in names:
                touch(number, os.path.join(path, name), seconds, deep - 1, left, found.st_dev)
    except BrokenPipeError:
        sys.exit(1)  # nobody listens
    except OSError:
        pass


if __name__ == "__main__":
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    for place, named in enumerate(sys.argv[2:]):
        touch(place, os.fsencode(named), int(sys.argv[1]), DEEP, [MOST])
