"""One heavy import at a time.

An engine and the encoder start in threads of one process, and both import torch and transformers, whose modules import each
other in circles. Two threads that enter such a circle at different points see each other's half-initialised modules
("cannot import name ... from partially initialized module"), and every later import in the process fails the same way. So
whoever imports them, or loads a model by them, holds `HEAVY_IMPORTS` meanwhile.
"""

from __future__ import annotations

import threading

HEAVY_IMPORTS = threading.Lock()
