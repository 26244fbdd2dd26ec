"""A tokenizer folder that is small enough to be made for each test: one token a byte, and a few added ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, *, config: dict[str, Any] | None = None, template: str | None = CHATML) -> Path:
    """Ids 0 to 255 are bytes; `<|im_start|>` is 256, `<|im_end|>` 257, and so on.

    `<|plain|>` (258) is a control token that is not marked as one; `<tool_call>` (259) is no control token.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={character: n for n, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<|plain|>", normalized=False), AddedToken("<tool_call>", normalized=False)])
    backend.enable_truncation(8)
    backend.enable_padding(length=8)
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    defaults = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "lstrip": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**defaults, **(config or {})}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
