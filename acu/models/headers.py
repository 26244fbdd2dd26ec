"""What a model's weights come to, from the headers of its safetensors files: names, types, shapes, bytes. No tensor is read.

A safetensors file begins with 8 bytes, little-endian: the length of the JSON that follows, which maps each tensor's name to its
`dtype`, `shape` and `data_offsets` (from the end of the JSON). The data ends where the file ends. So a header of a few hundred
kB says to the byte what a load will take, and also whether the file is whole: one that is cut short, or whose header does not
fit its shapes, is refused with its name.

An engine does not hold what the file holds: plain values become those of its own type (a float32 file takes half as bfloat16),
while integers, 8-bit floats and the scales of quantised weights stay as they are. What the model ties together is there once:
vLLM skips an `lm_head` whose configuration says that it is the embedding. Where there is an index, only the files that it
names count, as for vLLM: others are the same weights in another form.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from acu.errors import ModelIncomplete
from acu.models.reading import reading
from acu.refusals import few

HEADER_LIMIT = 100_000_000  # bytes; safetensors' own bound for its JSON
INDEX = "model.safetensors.index.json"
VALUE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "U16": 2, "U32": 4,
           "U64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}  # fmt: skip
_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
_SCALES = ("scale", "scales", "scale_inv", "zeros", "g_idx")

_Natural = Annotated[int, Meta(ge=0)]


class Tensor(Struct, frozen=True):
    """One tensor. `dtype` is safetensors' word, `size` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


class Weights(Struct, frozen=True):
    """All of a model. `stored` bytes on the disk; of these, `values` are plain numbers, and `kept` bytes stay as they are."""

    stored: int
    values: int
    kept: int

    def held(self, dtype: str) -> int:
        """The bytes in an engine that computes in `dtype` (float16, bfloat16 or float32)."""
        return self.values * VALUE_BYTES[dtype] + self.kept


class _Entry(Struct, frozen=True):
    dtype: str
    shape: tuple[_Natural, ...]
    data_offsets: tuple[_Natural, _Natural]


def read_weights(folder: Path) -> Weights:
    """What the model in `folder` weighs.

    Raises ModelIncomplete, naming the file, for one that is damaged or cut short, and ModelUnreadable.
    """
    config = _read_object(folder / "config.json")
    text = config.get("text_config")
    tied = bool(config.get("tie_word_embeddings", isinstance(text, dict) and text.get("tie_word_embeddings", False)))
    quantised = "quantization_config" in config or (isinstance(text, dict) and "quantization_config" in text)
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        for tensor in read_header(path):
            tensors.setdefault(tensor.name, tensor)
    if tied and any(name.endswith("embed_tokens.weight") for name in tensors):
        tensors = {name: tensor for name, tensor in tensors.items() if name.split(".")[-2:-1] != ["lm_head"]}
    plain = [tensor for tensor in tensors.values() if _converted(tensor, quantised)]
    stored = sum(tensor.size for tensor in tensors.values())
    return Weights(
        stored=stored,
        values=sum(math.prod(tensor.shape) for tensor in plain),
        kept=stored - sum(tensor.size for tensor in plain),
    )


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that a load reads, in order of name. Raises ModelIncomplete when the index names one that is not there."""
    found = sorted(folder.glob("*.safetensors"))
    listed = _read_object(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict):
        return tuple(found)
    names = set(map(str, listed.values()))
    if missing := sorted(names - {path.name for path in found}):
        raise ModelIncomplete(f"{folder} lacks {few(missing)}, which {INDEX} names: copy it again.")
    return tuple(path for path in found if path.name in names)


def read_header(path: Path) -> tuple[Tensor, ...]:
    """The tensors of one file, in the header's order. Raises ModelIncomplete when header, shapes and size do not agree,
    and ModelUnreadable."""
    with reading(path), path.open("rb") as file:
        actual = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= HEADER_LIMIT:
            raise ModelIncomplete(f"{path} is no safetensors file, or its beginning is damaged.")
        if 8 + length > actual:
            raise ModelIncomplete(
                f"{path} has {actual} bytes, and a header of {length}: it was cut short, or its beginning is damaged."
            )
        text = file.read(length)
    try:
        header = msgspec.json.decode(text, type=dict[str, Any])
        header.pop("__metadata__", None)
        entries = msgspec.convert(header, dict[str, _Entry])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelIncomplete(f"{path} has a damaged safetensors header: {error}") from error
    tensors = tuple(_tensor(path, name, entry) for name, entry in entries.items())
    expected = 8 + length + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if expected != actual:
        raise ModelIncomplete(
            f"{path} has {actual} bytes where its header says {expected}: it was cut short, or damaged."
        )
    return tensors


def _tensor(path: Path, name: str, entry: _Entry) -> Tensor:
    begin, end = entry.data_offsets
    width = _WIDTHS.get(entry.dtype)  # a type that came later is taken at its bytes
    if end < begin or (width is not None and math.prod(entry.shape) * width != end - begin):
        raise ModelIncomplete(
            f"{path} has a damaged safetensors header: {name} takes {end - begin} bytes, which is not {entry.dtype} of "
            f"shape {list(entry.shape)}."
        )
    return Tensor(name, entry.dtype, entry.shape, end - begin)


def _converted(tensor: Tensor, quantised: bool) -> bool:
    """Whether an engine turns its values into those of its own type."""
    return tensor.dtype in _PLAIN and not (quantised and tensor.name.endswith(_SCALES))


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, an empty one where there is none."""
    try:
        with reading(path):
            content = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelIncomplete(f"{path} is not JSON ({error}): it was cut short, or damaged.") from error
    return content if isinstance(content, dict) else {}
