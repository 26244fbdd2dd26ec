"""One heavy import at a time.

An engine and the encoder start in threads of one process, and both import torch and transformers, whose modules import each
other in circles. Two threads that enter such a circle at different points see each other's half-initialised modules
("cannot import name ... from partially initialized module"), and every later import in the process fails the same way. So
whoever imports them, or loads a model by them, does it within `heavy_imports`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """The turn to import torch, transformers or vLLM, or to load a model by them."""
    with _ONE_AT_A_TIME:
        import tqdm

        # Left alone, tqdm makes a semaphore between processes for progress bars that nobody sees, and leaves it behind.
        tqdm.tqdm.set_lock(threading.RLock())
        yield
