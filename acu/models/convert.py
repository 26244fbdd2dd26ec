"""`python -m acu.models.convert FOLDER FILE.gguf OUT`: turn a GGUF file into bfloat16 safetensors with its tokenizer.

Runs in a process of its own, since torch and transformers have no place in the daemon, and a conversion that fails or
is killed then leaves nothing but a temporary folder. Prints the versions that did the work as one line of JSON.
"""

import importlib.metadata
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(folder: str, file: str, out: str) -> None:
    """Convert `folder`/`file`; `out` gets config.json, generation_config.json, the tokenizer and model.safetensors."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # the weights are plain now
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)  # its chat template comes with it
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "gguf", "torch")}
    sys.stdout.write(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
