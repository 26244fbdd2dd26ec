"""The sampling that a model recommends: in its own generation_config.json, else in its catalogue entry.

A value that is null says nothing. One that cannot be used (out of range, of another type) is ignored, and told: the model
still serves. `do_sample` is not obeyed: what matters is the temperature.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from acu.models.cache import LocalModel
from acu.models.catalogue import by_name
from agentflow.config import SamplingConfig
from agentflow.sampling import FIELDS, given, merged

GENERATION_CONFIG = "generation_config.json"


class Recommended(Struct, frozen=True):
    """What a model recommends. `ignored` says, a sentence each, which of its values cannot be used, and why."""

    sampling: SamplingConfig
    ignored: tuple[str, ...] = ()


def recommended_sampling(model: LocalModel) -> Recommended:
    """What `model` recommends. A catalogue name's entry fills in what the files leave open, whenever they were pulled."""
    entry = by_name(model.name)
    own = _read(model.path / GENERATION_CONFIG)
    return Recommended(merged(own.sampling, entry.sampling), own.ignored) if entry else own


def write_recommended(folder: Path, sampling: SamplingConfig) -> None:
    """Write `sampling` into the folder's generation_config.json, as far as that says nothing about it itself."""
    path = folder / GENERATION_CONFIG
    content, _ = _content(path)
    added = {name: value for name, value in given(sampling).items() if content.get(name) is None}
    if added:
        content = {"do_sample": True} | content | added  # other programs sample only when they are told to
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> Recommended:
    found: dict[str, Any] = {}
    content, ignored = _content(path)
    for name in FIELDS:
        if (value := content.get(name)) is None:
            continue
        try:
            msgspec.convert({name: value}, SamplingConfig)
        except msgspec.ValidationError as error:
            ignored.append(f"{path}: {name} {value!r:.60} is ignored: {str(error).partition(' - at')[0]}")
        else:
            found[name] = value
    return Recommended(msgspec.convert(found, SamplingConfig), tuple(ignored))


def _content(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The file's object, and what is wrong with it; an empty one when there is none, or none that can be read."""
    try:
        content = msgspec.json.decode(path.read_bytes())
        if isinstance(content, dict):
            return content, []
        problem = "it holds no JSON object"
    except FileNotFoundError:
        return {}, []
    except (OSError, msgspec.DecodeError) as error:
        problem = str(error)
    return {}, [f"{path} is ignored: {problem}"]
