"""What the operator's `engine_args` mean for the plan of memory: none of them may make an engine another than was planned. Pure.

    taken up    those for which ModelConfig has a field (max_model_len, max_num_seqs, max_num_batched_tokens, dtype): as if they
                were in it, so that whatever is derived from the field follows; and kv_cache_memory_bytes (`pool_bytes`)
    counted     kv_cache_dtype and disable_hybrid_kv_cache_manager (tuning.kv_cost), enforce_eager (no graphs)
    refused     what would have another model loaded, more of the card or the host taken than planned, or another card used
    passed on   all others; quantization of weights that are plain in the files too: they count as they are there, which is more

A value of the wrong type is refused too where the plan reads it; others are vLLM's to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeGuard

from msgspec.structs import replace

from agentflow.config import ModelConfig
from agentflow.errors import EngineStartFailed

DTYPES: Final = {"half": "float16", "float": "float32"}  # vLLM's other words
AUTO_LENGTH: Final = -1  # vLLM makes the context as long as its pool allows
_FIELDS = {
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_running",
    "max_num_batched_tokens": "max_batched_tokens",
}
_WHOLE = (*_FIELDS, "kv_cache_memory_bytes")

_ELSEWHERE = {
    "model": "it would load another model than is planned: set models.KEY.model",
    "model_weights": "it would load other weights than are planned: set models.KEY.model",
    "hf_config_path": "it would load another model than is planned: set models.KEY.model",
}
_ON_A_CARD = {
    "gpu_memory_utilization": "each engine's part of the card is what the plan of memory gives it: set gpu.kv_cache_size_mb or "
    "models.KEY.kv_cache_mb",
    "num_gpu_blocks_override": "the KV pool is what the plan of memory gives it: set gpu.kv_cache_size_mb or "
    "models.KEY.kv_cache_mb",
    "device_ids": "the card is gpu.device_id's",
    "cpu_offload_gb": "weights in the host's memory are not planned for: choose a smaller or quantised model",
    "offload_group_size": "weights in the host's memory are not planned for: choose a smaller or quantised model",
    "kv_offloading_size": "KV in the host's memory is not planned for: leave it out",
    "enable_lora": "the memory of adapters is not planned for: merge them into the model",
    "spec_model": "a draft model's memory is not planned for: leave it out",
    "nnodes": "the plan is of one card (gpu.device_id): leave it out",
    **{
        f"{way}_parallel_size": "the plan is of one card (gpu.device_id): leave it out, or choose a smaller or quantised model"
        for way in ("tensor", "pipeline", "data", "decode_context", "prefill_context")
    },
}
_HARMLESS: dict[str, Callable[[Any], bool]] = {
    "nnodes": lambda value: value == 1,
    **{name: lambda value: value == 1 for name in _ON_A_CARD if name.endswith("_parallel_size")},
}
_NO_WEIGHTS = frozenset({"ngram", "ngram_gpu", "suffix"})  # of speculative_config's methods


def taken_up(config: ModelConfig) -> ModelConfig:
    """With the fields as `engine_args` have them. What is wrong there is left to `refuse`."""
    changed: dict[str, Any] = {
        field: value for name, field in _FIELDS.items() if _is_whole(value := config.engine_args.get(name))
    }
    dtype = config.engine_args.get("dtype")
    dtype = DTYPES.get(dtype, dtype) if isinstance(dtype, str) else None
    if dtype in ("auto", "bfloat16", "float16", "float32"):
        changed["dtype"] = dtype
    return replace(config, **changed)


def pool_bytes(config: ModelConfig) -> int | None:
    """The KV pool that the model has for itself, by `engine_args` or by its kv_cache_mb; None: neither says."""
    written = config.engine_args.get("kv_cache_memory_bytes")
    if _is_whole(written):
        return written
    return config.kv_cache_mb << 20 if config.kv_cache_mb is not None else None


def refuse(config: ModelConfig, *, gpu: bool) -> None:
    """Raise EngineStartFailed for what no plan can hold, with every such argument."""
    extra = config.engine_args
    wrong = [
        f"{name} is {extra[name]!r}: it must be a whole number above 0"
        for name in _WHOLE
        if name in extra and not _is_whole(extra[name]) and not (name == "max_model_len" and extra[name] == AUTO_LENGTH)
    ]
    for name, why in (_ELSEWHERE | (_ON_A_CARD if gpu else {})).items():
        if extra.get(name) and not _HARMLESS.get(name, lambda _: False)(extra[name]):
            wrong.append(f"{name}: {why}")
    speculative = extra.get("speculative_config")
    if gpu and isinstance(speculative, dict) and speculative.get("method") not in _NO_WEIGHTS:
        wrong.append(f"speculative_config: a draft's memory is not planned for: use {', '.join(sorted(_NO_WEIGHTS))}")
    if wrong:
        raise EngineStartFailed(f"engine_args: {'; '.join(wrong)}")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
