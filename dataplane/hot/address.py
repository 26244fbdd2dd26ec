"""Address: where an array's data begins, as the functions of faiss take it."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray


def address(array: NDArray[np.generic]) -> Any:
    """A pointer to the first element of a C-contiguous array, of the C type of its elements. It does not keep the array."""
    return faiss.swig_ptr(array)
