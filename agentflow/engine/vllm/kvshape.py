"""What a model's tokens leave in the KV pool, read off its config.json as vLLM reads it. Pure.

    attention           keys and values of every KV head, in each layer
    latent attention    (MLA, DeepSeek's) one vector a token and layer, kv_lora_rank + qk_rope_head_dim, for keys and values
    sliding window      as attention, of the last tokens alone: beyond the window more tokens take no more
    state               Mamba's and linear attention's layers: a few MiB a sequence, however long. Not counted
    none                layers that have no cache, or use another layer's

vLLM keeps blocks for layers of both kinds in one pool, so it takes them in groups of equal size and fills up what is missing
(kv_cache_utils.py, `_get_kv_cache_groups_uniform_page_size`). A layer whose kind is not known counts as attention: too much.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct

LATENT = frozenset({
    "axk1", "bailing_hybrid", "bailing_hybrid_v3", "deepseek_mtp", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots3_note",
    "glm4_moe_lite", "glm5_next", "glm5_next_text", "glm_moe_dsa", "hy_v4", "kimi_k2", "kimi_linear", "longcat_flash",
    "pangu_ultra_moe",
})  # fmt: skip
"""Model types that vLLM runs with latent attention where they have a kv_lora_rank (model_arch_config_convertor.py)."""

STATE_ONLY = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv"})
PATTERNS = {
    "gemma2": 2,
    "gemma3_text": 6,
}  # every how manieth layer is no window, where the file leaves it to the model's code
FULL, WINDOW, STATE, NONE = "full", "window", "state", "none"
_KINDS = {
    "sliding_attention": WINDOW, "mamba": STATE, "mamba2": STATE, "linear_attention": STATE, "conv": STATE, "recurrent": STATE,
    "mlp": NONE, "moe": NONE,
}  # fmt: skip
_LETTERS = {"M": STATE, "-": NONE, "E": NONE}  # Nemotron-H's; `*` is attention


class KvShape(Struct, frozen=True):
    """Values (not bytes) that one token leaves, over all layers; `windowed` of them stay for the last `window` tokens alone."""

    width: int
    windowed: int = 0
    window: int = 0


def kv_shape(text: dict[str, Any]) -> KvShape:
    """Of a model whose config.json (its part on the language model) is `text`. Raises as int() does for values that are none."""
    kinds = Counter(_kinds(text))
    layer = _of_a_layer(text)
    full, windowed, window = kinds[FULL], kinds[WINDOW], int(text.get("sliding_window") or 0)
    if not (full and windowed and window):
        return KvShape(layer * (full + windowed))
    few, many = sorted((full, windowed))
    group = many if many < 1.5 * few else few
    full, windowed = (-(-count // group) * group for count in (full, windowed))
    return KvShape(layer * (full + windowed), layer * windowed, window)


def _of_a_layer(text: dict[str, Any]) -> int:
    """Values that one token leaves in one layer with attention."""
    if text.get("kv_lora_rank") and text.get("model_type") in LATENT:
        return sum(int(text.get(part) or 0) for part in ("kv_lora_rank", "qk_rope_head_dim", "index_head_dim"))
    heads = int(_first(text, "num_attention_heads", "n_head") or 1)
    size = int(text.get("head_dim") or int(_first(text, "hidden_size", "n_embd") or heads) // heads)
    known = _first(text, "num_key_value_heads", "num_kv_heads", "multi_query_group_num")
    if text.get("multi_query") and not text.get("new_decoder_architecture") and "num_key_value_heads" not in text:
        known = 1  # Falcon's and StarCoder's
    return 2 * int(known or heads) * size


def _kinds(text: dict[str, Any]) -> list[str]:
    """The kind of each layer."""
    count = int(_first(text, "num_hidden_layers", "n_layer", "num_layers") or 1)
    if text.get("model_type") in STATE_ONLY:
        return [STATE] * count
    named, letters = _first(text, "layer_types", "layers_block_type"), text.get("hybrid_override_pattern")
    if isinstance(named, list):
        kinds = [_KINDS.get(str(name), FULL) for name in named]
    elif isinstance(letters, str):
        kinds = [_LETTERS.get(letter, FULL) for letter in letters]
    else:
        kinds = [FULL if _has_attention(text, index) else STATE for index in range(count)]
        every = int(text.get("sliding_window_pattern") or PATTERNS.get(str(text.get("model_type")), 1))
        if every > 1:
            kinds = [FULL if (index + 1) % every == 0 else WINDOW for index in range(count)]
    borrowing = int(text.get("num_kv_shared_layers") or 0)  # the last ones use the cache of others
    return kinds[: len(kinds) - borrowing] if 0 < borrowing < len(kinds) else kinds


def _has_attention(text: dict[str, Any], index: int) -> bool:
    """Whether a layer of a model that mixes layers has attention, by one of the ways in which that is written."""
    if period := int(text.get("attn_layer_period") or 0):
        return index % period == int(text.get("attn_layer_offset") or 0)
    if every := int(text.get("full_attention_interval") or 0):
        return (index + 1) % every == 0
    listed = _first(text, "attn_layer_indices", "full_attn_idxs")
    if isinstance(listed, list):
        return index in listed
    flags = text.get("attn_type_list")
    return not isinstance(flags, list) or index >= len(flags) or flags[index] == 1


def _first(text: dict[str, Any], *names: str) -> Any:
    return next((text[name] for name in names if text.get(name)), None)
