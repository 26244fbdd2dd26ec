"""Compile the packages of this interpreter's environment to bytecode, on every CPU; a line a second says how far it is.

    python scripts/bytecode.py [FOLDER]    FOLDER: default the environment's site-packages

What a start does not import is left out: tests, and the architectures of models but a few; it is half of all there is. What
is compiled already is only looked at; what is left out or cannot be compiled is left to whoever imports it.
"""

import compileall
import functools
import multiprocessing
import re
import sys
import sysconfig
import time
from pathlib import Path

LEFT_OUT = re.compile(
    r"/tests?/|/testing/_internal/|/(anthropic|pip|setuptools)/|/transformers/models/(?!auto/|llama/|qwen2/|bert/)"
)
EVERY_S = 1.0
AT_A_TIME = 16  # files that a process takes


def main() -> None:
    """Compile, and count."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("purelib"))
    files = [path for path in folder.rglob("*.py") if not LEFT_OUT.search(f"/{path.relative_to(folder)}")]
    told = time.monotonic()
    # force=False, quiet=2: says nothing, not even of Python 2 in a package's examples.
    compiled = functools.partial(compileall.compile_file, quiet=2)
    with multiprocessing.Pool() as pool:
        for done, _ in enumerate(pool.imap_unordered(compiled, files, chunksize=AT_A_TIME), 1):
            if time.monotonic() - told >= EVERY_S:
                told = time.monotonic()
                print(f"{done} of {len(files)} files", flush=True)
    print(f"{len(files)} of {len(files)} files")


if __name__ == "__main__":
    main()
