"""Which embedding model vectors are of: its name, and a fingerprint of what decides about them. Reads files.

Vectors of one model say nothing to those of another, of whatever length. So whatever keeps vectors keeps the identity with
them, and looks at it before a search. The fingerprint is a digest of the model's files (whole, or of samples from large ones) and
of the words that stand before a passage; a model without files has none, and goes by its name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from msgspec import Struct

from agentflow.library.refusals import EmbedderChanged

WHOLE: Final = 1 << 20  # bytes of a file that is read whole; of a larger one, SAMPLES pieces of SAMPLE bytes
SAMPLES: Final = 16
SAMPLE: Final = 64 << 10
_UNREAD: Final = frozenset({"acu-model.json"})  # when and whence a model came
_KINDS: Final = frozenset({".json", ".txt", ".model", ".safetensors", ".bin", ".onnx"})


class EmbedderId(Struct, frozen=True, kw_only=True):
    """`fingerprint`: 16 hexadecimal digits, or empty where it is not known."""

    model: str
    fingerprint: str = ""

    def same(self, other: EmbedderId) -> bool:
        """Whether vectors of the one are vectors of the other: by fingerprints where both have one, else by names."""
        if self.fingerprint and other.fingerprint:
            return self.fingerprint == other.fingerprint
        return self.model == other.model

    def check(self, served: EmbedderId, store_id: str) -> None:
        """Whether a vector store whose vectors are of this model may be used with the served one. Raises EmbedderChanged."""
        if self.same(served):
            return
        was, now = f"the embedding model {self.model!r}", f"{served.model!r} is"
        if self.model == served.model:
            was, now = f"other files of the embedding model {self.model!r}", "those of today are"
        raise EmbedderChanged(
            f"Vector store {store_id!r} was made with {was}, and {now} served now: serve that one again, or put the files into "
            "a new vector store."
        )

    def __str__(self) -> str:
        return f"{self.model} ({self.fingerprint})" if self.fingerprint else self.model


def fingerprint_of(folder: Path | None, passage: str) -> str:
    """Of the model in `folder`, with `passage` before each passage; empty where there are neither files nor words. Blocks.

    Raises OSError.
    """
    if folder is None and not passage:
        return ""
    digest = hashlib.sha256(passage.encode(errors="replace"))
    for path in [] if folder is None else sorted(_files(folder)):
        size = path.stat().st_size
        digest.update(f"\0{path.relative_to(folder or path)}\0{size}\0".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            if size <= WHOLE:
                digest.update(file.read())
                continue
            for number in range(SAMPLES):
                file.seek(number * (size - SAMPLE) // (SAMPLES - 1))
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.suffix in _KINDS
        and path.name not in _UNREAD
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    ]
