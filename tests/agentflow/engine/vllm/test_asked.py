"""The operator's `engine_args` and the plan of memory: taken up, or refused with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.config import ModelConfig
from agentflow.engine.vllm.asked import pool_bytes, refuse, taken_up
from agentflow.errors import EngineStartFailed


def asked(**args: Any) -> ModelConfig:
    return ModelConfig(model="m", max_model_len=100, engine_args=args)


def test_what_has_a_field_is_as_if_it_were_in_it() -> None:
    found = taken_up(asked(max_model_len=4096, max_num_seqs=7, max_num_batched_tokens=512, dtype="half"))
    assert (found.max_model_len, found.max_running, found.max_batched_tokens, found.dtype) == (4096, 7, 512, "float16")
    assert taken_up(asked(dtype="float")).dtype == "float32"
    untouched = asked(max_model_len=-1, max_num_seqs=True, dtype="fp4")
    assert taken_up(untouched) == untouched


def test_the_pool_is_that_of_engine_args_or_the_configured_one() -> None:
    assert pool_bytes(asked(kv_cache_memory_bytes=1_000)) == 1_000
    assert pool_bytes(ModelConfig(model="m", kv_cache_mb=2, engine_args={"kv_cache_memory_bytes": "1G"})) == 2 << 20
    assert pool_bytes(asked()) is None


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            {"gpu_memory_utilization": 0.9},
            "gpu_memory_utilization: each engine's part of the card .* gpu.kv_cache_size_mb",
        ),
        ({"num_gpu_blocks_override": 10}, "num_gpu_blocks_override: the KV pool .* models.KEY.kv_cache_mb"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: the plan is of one card"),
        ({"pipeline_parallel_size": "2"}, "pipeline_parallel_size: the plan is of one card"),
        ({"nnodes": 2}, "nnodes: the plan is of one card"),
        ({"device_ids": [1]}, "device_ids: the card is gpu.device_id's"),
        ({"cpu_offload_gb": 4}, "cpu_offload_gb: weights in the host's memory are not planned for"),
        ({"offload_group_size": 8}, "offload_group_size: weights in the host's memory are not planned for"),
        ({"kv_offloading_size": 4.0}, "kv_offloading_size: KV in the host's memory is not planned for"),
        ({"enable_lora": True}, "enable_lora: the memory of adapters is not planned for"),
        ({"spec_model": "x"}, "spec_model: a draft model's memory"),
        ({"speculative_config": {"method": "eagle", "model": "x"}}, "speculative_config: .* use ngram"),
    ],
)
def test_on_a_card_what_the_plan_does_not_have_is_refused_with_what_to_do(args: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineStartFailed, match=f"^engine_args: {says}"):
        refuse(asked(**args), gpu=True)
    refuse(asked(**args), gpu=False)


@pytest.mark.parametrize("gpu", [True, False])
def test_another_model_and_figures_that_are_none_are_refused_everywhere_and_all_at_once(gpu: bool) -> None:
    with pytest.raises(EngineStartFailed) as refused:
        refuse(asked(model="other", max_num_seqs="7", max_model_len=0, kv_cache_memory_bytes=1.5), gpu=gpu)
    assert str(refused.value) == (
        "engine_args: max_model_len is 0: it must be a whole number above 0; max_num_seqs is '7': it must be a whole number "
        "above 0; kv_cache_memory_bytes is 1.5: it must be a whole number above 0; model: it would load another model than is "
        "planned: set models.KEY.model"
    )


@pytest.mark.parametrize(
    "args",
    [
        {"tensor_parallel_size": 1, "data_parallel_size": 1, "nnodes": 1, "cpu_offload_gb": 0, "enable_lora": False},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "spec_model": None},
        {"quantization": "fp8", "enforce_eager": True, "block_size": 16, "max_model_len": -1},
    ],
)
def test_what_changes_nothing_in_the_plan_is_passed_on(args: dict[str, Any]) -> None:
    refuse(asked(**args), gpu=True)
