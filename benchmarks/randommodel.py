"""A random 2-layer model with a real tokenizer: its engine costs next to nothing, so what is around it shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(tokenizer_from: Path, folder: Path) -> Path:
    """Write the model, always the same, with the tokenizer of `tokenizer_from`, into `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = json.loads((tokenizer_from / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=vocabulary)).save_pretrained(folder)
    for file in tokenizer_from.iterdir():
        if "token" in file.name or file.suffix == ".jinja" or file.name in ("vocab.json", "merges.txt"):
            shutil.copy(file, folder / file.name)
    return folder
