"""What may enter the cache: safetensors, and the text files that describe them. Nothing that runs code.

A pickle (`*.bin`, `*.pt`, ...) runs code when it is loaded, and `auto_map` in a configuration makes transformers import
Python files that came with the model: both are refused, not skipped, so that nobody believes to serve what they pulled.
Pure functions of a folder; nothing is written.
"""

import fnmatch
import json
from pathlib import Path, PurePosixPath
from typing import Any

from acu.errors import ModelIncomplete, ModelNotFound, UnsafeModel
from acu.models.catalogue import Role
from acu.models.headers import read_header
from acu.models.reading import reading
from acu.refusals import few

_WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_WANTED_FOLDERS = ("1_Pooling", "2_Normalize", "2_Dense")  # sentence-transformers' description of its pooling
_PICKLES = (".bin", ".ckpt", ".msgpack", ".pickle", ".pkl", ".pt", ".pth")


def wanted(path: str) -> bool:
    """Whether a file of a model repository (a relative path with slashes) belongs into the cache."""
    pure = PurePosixPath(path)
    folders = pure.parts[:-1]
    if folders and (len(folders) > 1 or folders[0] not in _WANTED_FOLDERS):
        return False
    return any(fnmatch.fnmatchcase(pure.name, pattern) for pattern in _WANTED)


def check(folder: Path) -> None:
    """Raise unless `folder` holds a whole model that can be loaded without running code that came with it.

    Raises `ModelNotFound` (no such folder), `UnsafeModel` (pickles, remote code), `ModelIncomplete` (no
    configuration, no weights, a shard missing or cut short) and `ModelUnreadable`.
    """
    with reading(folder):
        _check(folder)


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelNotFound(f"no folder {folder}: give the path of a folder with config.json and *.safetensors.")
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in _PICKLES:
            raise UnsafeModel(
                f"{path} may hold pickled code, which loading would run. ACU loads safetensors only: take the model's "
                "safetensors files, or convert it, and remove this file."
            )
    for path in sorted(folder.iterdir()):
        if wanted(path.name) and path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelIncomplete(f"{path} is no regular file, and reading it may never end: copy the model again.")
    for path in sorted(folder.glob("*config.json")):
        if isinstance(content := _read_json(path), dict) and content.get("auto_map"):
            raise UnsafeModel(
                f"{path} has an `auto_map`: this model needs Python code of its own, which ACU never runs. Choose a "
                "model whose architecture vLLM knows."
            )
    if not (folder / "config.json").is_file():
        raise ModelIncomplete(f"{folder} has no config.json: it is not a model folder, or not all of it was copied.")
    _check_weights(folder)


def role_of(folder: Path) -> Role:
    """What a model without a catalogue entry is for, by its architecture: generating heads chat, the rest embed."""
    with reading(folder):
        config = _read_json(folder / "config.json")
    architectures = config.get("architectures") if isinstance(config, dict) else None
    generates = ("ForCausalLM", "ForConditionalGeneration")
    return "chat" if any(str(name).endswith(generates) for name in architectures or ()) else "embed"


def _check_weights(folder: Path) -> None:
    shards = {path.name for path in folder.glob("*.safetensors")}
    if not shards:
        raise ModelIncomplete(f"{folder} has no *.safetensors: ACU loads no other format of weights.")
    for index in sorted(folder.glob("*.safetensors.index.json")):
        content = _read_json(index)
        shard_of = content.get("weight_map") if isinstance(content, dict) else None
        listed = set(map(str, shard_of.values())) if isinstance(shard_of, dict) else set()
        if missing := sorted(listed - shards):
            raise ModelIncomplete(f"{folder} lacks {few(missing)}, which {index.name} names: copy it again.")
    for name in sorted(shards):
        read_header(folder / name)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ModelIncomplete(f"{path} is not JSON ({error}): it was cut short, or damaged.") from error
