"""Model folders whose weights are headers over holes: real names, types and shapes, and not a byte of data on the disk."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}
Shapes = Iterable[tuple[str, str, tuple[int, ...]]]

QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 152_064,
}
"""config.json of Qwen2.5-7B-Instruct, as far as sizes hang on it."""

AWQ = {
    "quantization_config": {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}
}


def _linears(config: dict[str, int]) -> list[tuple[str, int, int, bool]]:
    """(name, values in, values out, whether there is a bias) of one layer's."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    return [
        ("self_attn.q_proj", hidden, hidden, True),
        ("self_attn.k_proj", hidden, kv, True),
        ("self_attn.v_proj", hidden, kv, True),
        ("self_attn.o_proj", hidden, hidden, False),
        ("mlp.gate_proj", hidden, inner, False),
        ("mlp.up_proj", hidden, inner, False),
        ("mlp.down_proj", inner, hidden, False),
    ]


def qwen_shapes(config: dict[str, int], *, awq: bool = False) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every tensor of a Qwen2.5: bfloat16, or AWQ's with groups of 128 and 4 bits."""
    plain = "F16" if awq else "BF16"
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", plain, (vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, inward, outward, bias in _linears(config):
            full = f"model.layers.{layer}.{name}"
            if awq:
                yield f"{full}.qweight", "I32", (inward, outward // 8)
                yield f"{full}.qzeros", "I32", (inward // 128, outward // 8)
                yield f"{full}.scales", "F16", (inward // 128, outward)
            else:
                yield f"{full}.weight", plain, (outward, inward)
            if bias:
                yield f"{full}.bias", plain, (outward,)
        yield f"model.layers.{layer}.input_layernorm.weight", plain, (hidden,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", plain, (hidden,)
    yield "model.norm.weight", plain, (hidden,)
    yield "lm_head.weight", plain, (vocabulary, hidden)


def write_file(path: Path, shapes: Shapes) -> None:
    """One safetensors file, sparse."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in shapes:
        begin, end = end, end + math.prod(shape) * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def model_folder(folder: Path, config: dict[str, object], shapes: Shapes, shards: int = 1) -> Path:
    """A model that can be planned: configuration, and the tensors in order over so many files, with an index if several."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    if shards == 1:
        write_file(folder / "model.safetensors", shapes)
        return folder
    tensors = list(shapes)
    index: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = tensors[shard * len(tensors) // shards : (shard + 1) * len(tensors) // shards]
        write_file(folder / name, part)
        index |= {tensor: name for tensor, _, _ in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def qwen_7b(folder: Path) -> Path:
    """Qwen2.5-7B-Instruct, bfloat16 in four files."""
    return model_folder(folder, QWEN_7B, qwen_shapes(QWEN_7B), shards=4)  # type: ignore[arg-type]


def qwen_7b_awq(folder: Path) -> Path:
    """Qwen2.5-7B-Instruct-AWQ, in two files."""
    config = QWEN_7B | AWQ | {"torch_dtype": "float16"}
    return model_folder(folder, config, qwen_shapes(QWEN_7B, awq=True), shards=2)  # type: ignore[arg-type]
