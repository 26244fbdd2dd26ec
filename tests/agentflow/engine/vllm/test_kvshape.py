"""What tokens leave in the KV pool, by the figures that the models' makers and vLLM give."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.config import ModelConfig
from agentflow.engine.vllm.facts import ModelFacts
from agentflow.engine.vllm.kvshape import KvShape, kv_shape
from agentflow.engine.vllm.tuning import kv_cost

QWEN_7B = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}
DEEPSEEK_LITE = {
    "model_type": "deepseek_v2", "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "hidden_size": 2048, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
GEMMA_27B = {
    "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
    "hidden_size": 5376, "sliding_window": 1024,
}  # fmt: skip
NEXT = {
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
}
JAMBA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


@pytest.mark.parametrize(
    ("config", "width"),
    [
        (QWEN_7B, 28_672),
        (QWEN_7B | {"sliding_window": 131_072, "use_sliding_window": False}, 28_672),
        (QWEN_7B | {"num_attention_heads": 32, "head_dim": 128}, 28 * 2 * 4 * 128),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 12 * 2 * 768),  # GPT-2's words
        (DEEPSEEK_LITE, 27 * 576),
        (DEEPSEEK_LITE | {"kv_lora_rank": None}, 27 * 2 * 2048),
        (DEEPSEEK_LITE | {"model_type": "minicpm3"}, 27 * 2 * 2048),  # vLLM unfolds it
        (DEEPSEEK_LITE | {"model_type": "deepseek_v32", "index_head_dim": 128}, 27 * 704),
        (NEXT | {"full_attention_interval": 4}, 12 * 2 * 512),
        (NEXT | {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}, 12 * 2 * 512),
        (NEXT | {"attn_type_list": ([0] * 7 + [1]) * 6}, 6 * 2 * 512),
        (JAMBA | {"attn_layer_period": 8, "attn_layer_offset": 4}, 4 * 2 * 1024),
        (JAMBA | {"attn_layer_indices": [9, 18, 27]}, 3 * 2 * 1024),
        (JAMBA | {"hybrid_override_pattern": "M-M-M*-M-"}, 2 * 1024),
        (JAMBA | {"num_kv_shared_layers": 12}, 20 * 2 * 1024),
        ({"model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 4096}, 0),
        ({"multi_query": True, "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544}, 32 * 2 * 64),
    ],
)
def test_every_token_counts_in_the_layers_that_keep_it(config: dict[str, Any], width: int) -> None:
    assert kv_shape(config) == KvShape(width)


def test_layers_with_a_window_are_told_apart_and_filled_up_to_groups() -> None:
    layer = 2 * 16 * 128
    assert kv_shape(GEMMA_27B) == KvShape(70 * layer, 60 * layer, 1024)  # 10 full, 52 in six groups of 10
    listed = GEMMA_27B | {
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10 + ["sliding_attention"] * 2
    }
    assert kv_shape(listed) == kv_shape(GEMMA_27B)
    even = {
        "model_type": "gemma2",
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "head_dim": 256,
        "sliding_window": 4096,
    }
    assert kv_shape(even | {"num_key_value_heads": 4}) == KvShape(26 * 2048, 13 * 2048, 4096)


def test_a_window_in_all_layers_counts_as_none() -> None:
    assert kv_shape(QWEN_7B | {"sliding_window": 4096, "layer_types": ["sliding_attention"] * 28}) == KvShape(28_672)


GEMMA_1B = {
    "model_type": "gemma3_text", "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "sliding_window": 512,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "pool_mb", "by_vllm"),
    [
        (GEMMA_27B, 1_024, 1_856),
        (GEMMA_27B, 8_192, 74_032),
        (GEMMA_1B, 512, 103_328),
        (GPT_OSS, 512, 17_600),
        (GPT_OSS, 2_048, 83_136),
    ],
)
def test_a_pool_holds_what_vllm_says_that_it_holds_and_never_more(
    config: dict[str, Any], pool_mb: int, by_vllm: int
) -> None:
    # by_vllm: _estimate_max_model_len_from_groups of vLLM 0.32.0 for these layers in bfloat16, blocks of 16, two steps of 2048
    shape = kv_shape(config)
    facts = ModelFacts(
        "", "m", 1, "bfloat16", 131_072, shape.width, frozenset(), kv_windowed=shape.windowed, kv_window=shape.window
    )
    held = kv_cost(facts, ModelConfig(model="m"), "bfloat16", gpu=True).tokens_in(pool_mb << 20)
    assert 0.97 * by_vllm < held <= by_vllm
