"""What is chosen for which machine."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from agentflow.config import ModelConfig
from agentflow.engine.vllm.facts import MachineFacts, ModelFacts
from agentflow.engine.vllm.tuning import EngineChoices, KvCost, choose, choose_pooling, kv_cost, step_of
from agentflow.errors import EngineStartFailed

MIB, GIB = 1 << 20, 1 << 30
SMALL = ModelFacts("/models/small", "small", 270 * MIB, "bfloat16", 8192, 11_520, frozenset({2}))
LAPTOP = MachineFacts(cpus=tuple(range(8)), memory_available=16 * GIB, cpu_flags=frozenset({"avx2"}))
A10G = MachineFacts(
    cpus=(0, 1, 2, 3),
    memory_available=30 * GIB,
    gpu=True,
    gpu_memory=23_028 * MIB,
    gpu_weights=12_288 * MIB,
    gpu_kv_cache=8_192 * MIB,
)


def chosen(machine: MachineFacts = LAPTOP, model: ModelFacts = SMALL, **config: Any) -> dict[str, Any]:
    return choose(model, ModelConfig(model="small", **config), machine).args


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [({"avx2"}, "float32"), ({"avx512f"}, "float32"), ({"avx512_bf16"}, "bfloat16"), ({"amx_bf16"}, "bfloat16")],
)
def test_a_cpu_computes_in_bfloat16_only_where_it_has_instructions_for_it(flags: set[str], dtype: str) -> None:
    large = replace(SMALL, weights_bytes=2 * GIB)
    assert chosen(replace(LAPTOP, cpu_flags=frozenset(flags)), large)["dtype"] == dtype


def test_a_small_model_gets_float32_whatever_the_cpu_has() -> None:
    assert chosen(replace(LAPTOP, cpu_flags=frozenset({"amx_bf16"})))["dtype"] == "float32"
    assert chosen(replace(LAPTOP, cpu_flags=frozenset({"amx_bf16"})), dtype="bfloat16")["dtype"] == "bfloat16"


def test_a_gpu_takes_the_dtype_of_the_model() -> None:
    assert chosen(A10G)["dtype"] == "auto"
    assert chosen(A10G, dtype="float16")["dtype"] == "float16"


def test_steps_and_seats_follow_the_device_and_the_configuration() -> None:
    cpu, gpu, told = chosen(), chosen(A10G), chosen(max_running=3, max_batched_tokens=96)
    assert (cpu["max_num_seqs"], cpu["max_num_batched_tokens"], cpu["block_size"]) == (64, 512, 32)
    assert (gpu["max_num_seqs"], gpu["max_num_batched_tokens"]) == (128, 2048)
    assert "block_size" not in gpu
    assert (told["max_num_seqs"], told["max_num_batched_tokens"]) == (3, 96)


def test_a_long_prompt_leaves_a_quarter_of_each_step_to_others() -> None:
    assert chosen()["long_prefill_token_threshold"] == 384
    assert chosen(engine_args={"max_num_batched_tokens": 2048})["long_prefill_token_threshold"] == 1536
    assert chosen(A10G)["long_prefill_token_threshold"] == 1536
    assert chosen(A10G, max_model_len=1024)["long_prefill_token_threshold"] == 1024
    assert chosen(engine_args={"long_prefill_token_threshold": 0})["long_prefill_token_threshold"] == 0
    assert "long_prefill_token_threshold" not in chosen(engine_args={"enable_chunked_prefill": False})
    assert "long_prefill_token_threshold" not in choose_pooling(SMALL, ModelConfig(model="small"), LAPTOP).args


def test_a_step_has_room_for_every_running_sequence() -> None:
    assert chosen(max_running=200, max_batched_tokens=64)["max_num_batched_tokens"] == 200


def test_the_kv_pool_of_a_cpu_takes_a_quarter_of_the_free_memory_and_2_gib_at_most() -> None:
    weights = 540 * MIB  # float32 takes twice what the file has
    eight = replace(LAPTOP, memory_available=8 * GIB)
    assert chosen(eight)["kv_cache_memory_bytes"] == (8 * GIB - weights - 2 * GIB) // 4
    assert chosen(replace(LAPTOP, memory_available=64 * GIB))["kv_cache_memory_bytes"] == 2 * GIB
    assert chosen(kv_cache_mb=600)["kv_cache_memory_bytes"] == 600 * MIB


def test_an_engine_takes_its_own_share_of_the_gpu_so_that_two_fit() -> None:
    large = ModelFacts("/models/large", "large", 5_600 * MIB, "float16", 32_768, 57_344, frozenset({2}))
    args = chosen(A10G, large)
    assert args["kv_cache_memory_bytes"] == 8_192 * MIB
    assert args["gpu_memory_utilization"] == pytest.approx((5_600 + 8_192 + 2_048) / 23_028, abs=0.001)
    halves = [chosen(A10G, model, kv_cache_mb=4_096)["gpu_memory_utilization"] for model in (large, SMALL)]
    assert sum(halves) < 0.95


def test_a_context_that_the_pool_does_not_hold_is_cut_unless_it_was_asked_for() -> None:
    bytes_a_token = 11_520 * 4
    assert chosen(kv_cache_mb=100)["max_model_len"] == (100 * MIB // bytes_a_token // 32 - 1) * 32
    with pytest.raises(EngineStartFailed, match=r"100 MiB holds \d+ tokens .* 4096; raise kv_cache_mb to \d+ or lower"):
        chosen(kv_cache_mb=100, max_model_len=4096)
    assert chosen(kv_cache_mb=256, max_model_len=4096)["max_model_len"] == 4096


def test_the_pool_that_the_refusal_names_is_enough() -> None:
    with pytest.raises(EngineStartFailed) as refusal:
        chosen(kv_cache_mb=100, max_model_len=4096)
    words = str(refusal.value).split()
    named = int(words[words.index("kv_cache_mb") + 2])
    assert chosen(kv_cache_mb=named, max_model_len=4096)["max_model_len"] == 4096


def test_a_context_longer_than_the_model_was_made_for_is_refused() -> None:
    with pytest.raises(EngineStartFailed, match=r"16384.* 8192"):
        chosen(max_model_len=16_384)


def test_weights_that_do_not_fit_are_refused_with_both_figures_before_anything_is_loaded() -> None:
    huge = replace(SMALL, weights_bytes=14 * GIB)
    with pytest.raises(EngineStartFailed, match=r"28672 MiB as float32 .* 16384 MiB of memory are available"):
        chosen(model=huge)
    with pytest.raises(EngineStartFailed, match=r"14336 MiB, but gpu.weights_mb allows 12288 MiB"):
        chosen(A10G, model=huge)
    with pytest.raises(EngineStartFailed, match=r"kv_cache_mb asks for 20480 MiB.* lower kv_cache_mb to \d+"):
        chosen(kv_cache_mb=20_480)


def test_a_folder_without_weights_is_refused_unless_random_ones_are_wanted() -> None:
    with pytest.raises(EngineStartFailed, match=r"/models/small holds no weights"):
        chosen(model=replace(SMALL, weights_bytes=0))
    assert chosen(model=replace(SMALL, weights_bytes=0), engine_args={"load_format": "dummy"})["load_format"] == "dummy"


def test_what_the_operator_writes_into_engine_args_wins_over_all() -> None:
    choices = choose(SMALL, ModelConfig(model="small", engine_args={"max_num_seqs": 7, "enforce_eager": True}), LAPTOP)
    assert choices.args["max_num_seqs"] == choices.max_running == 7
    assert choices.shown["compiled"] is False


def test_a_cpu_starts_fast_unless_it_is_told_to_compile() -> None:
    assert chosen()["enforce_eager"] is True
    assert "enforce_eager" not in chosen(A10G)
    compiled = choose(SMALL, ModelConfig(model="small", engine_args={"enforce_eager": False}), LAPTOP)
    assert compiled.args["enforce_eager"] is False
    assert "TORCHDYNAMO_DISABLE" not in compiled.environment


def test_a_cpu_engine_is_one_process_unless_the_model_is_spread_or_the_operator_says_otherwise() -> None:
    one = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    assert chosen()["distributed_executor_backend"] == one
    assert chosen(engine_args={"tensor_parallel_size": 1})["distributed_executor_backend"] == one
    for way in ("tensor", "pipeline", "data", "decode_context", "prefill_context"):
        assert "distributed_executor_backend" not in chosen(engine_args={f"{way}_parallel_size": 2})
    assert chosen(engine_args={"distributed_executor_backend": "mp"})["distributed_executor_backend"] == "mp"
    assert "distributed_executor_backend" not in chosen(A10G)
    pooling = choose_pooling(SMALL, ModelConfig(model="small"), LAPTOP)
    assert pooling.args["distributed_executor_backend"] == one


def test_a_small_machine_computes_on_all_its_cores_and_a_large_one_leaves_one_to_the_daemon() -> None:
    def threads(machine: MachineFacts, **engine_args: Any) -> str | None:
        config = ModelConfig(model="small", engine_args=engine_args)
        return choose(SMALL, config, machine).environment.get("VLLM_CPU_OMP_THREADS_BIND")

    assert threads(replace(LAPTOP, cpus=(1, 3))) == "1,3"
    assert threads(replace(LAPTOP, cpus=(0, 1, 2, 3))) == "0,1,2,3"
    assert threads(replace(LAPTOP, cpus=(0, 1, 2, 3, 4))) is None  # vLLM's own choice keeps one back
    assert threads(replace(LAPTOP, cpus=(1, 3)), distributed_executor_backend="mp") is None  # it spins on a core
    assert threads(A10G) is None


def test_an_engine_on_the_cpu_gives_way_to_the_daemon() -> None:
    assert choose(SMALL, ModelConfig(model="small"), LAPTOP).environment["ACU_ENGINE_NICE"] == "5"
    assert "ACU_ENGINE_NICE" not in choose(SMALL, ModelConfig(model="small"), A10G).environment


def test_libraries_are_preloaded_and_caches_kept_where_the_facts_say() -> None:
    machine = replace(
        LAPTOP, preloads=("/usr/lib/libtcmalloc_minimal.so.4", "/venv/lib/libiomp5.so"), cache="/var/cache/acu"
    )
    environment = choose(SMALL, ModelConfig(model="small"), machine).environment
    assert environment["LD_PRELOAD"] == "/usr/lib/libtcmalloc_minimal.so.4:/venv/lib/libiomp5.so"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/var/cache/acu/inductor"
    assert "LD_PRELOAD" not in choose(SMALL, ModelConfig(model="small"), LAPTOP).environment


def test_all_that_is_chosen_for_an_embedding_engine_follows_from_what_the_operator_writes_too() -> None:
    written = {"max_num_seqs": 7, "max_model_len": 4096, "enforce_eager": False}
    choices = choose_pooling(SMALL, ModelConfig(model="small", max_model_len=1024, engine_args=written), LAPTOP)
    assert choices.args | written == choices.args
    assert choices.max_running == 7
    assert choices.args["max_num_batched_tokens"] == 4096
    assert choices.shown["compiled"] is True
    assert "TORCHDYNAMO_DISABLE" not in choices.environment
    assert choose_pooling(SMALL, ModelConfig(model="small"), LAPTOP).environment["TORCHDYNAMO_DISABLE"] == "1"


def test_an_embedding_engine_too_may_have_random_weights() -> None:
    empty = replace(SMALL, weights_bytes=0)
    with pytest.raises(EngineStartFailed, match="holds no weights"):
        choose_pooling(empty, ModelConfig(model="small"), LAPTOP)
    config = ModelConfig(model="small", engine_args={"load_format": "dummy"})
    assert choose_pooling(empty, config, LAPTOP).args["load_format"] == "dummy"


@pytest.mark.parametrize("decide", [choose, choose_pooling])
def test_what_is_shown_is_what_the_engine_gets(decide: Callable[..., EngineChoices]) -> None:
    config = ModelConfig(model="small", engine_args={"kv_cache_memory_bytes": 128 * MIB, "max_model_len": -1})
    choices = decide(SMALL, config, LAPTOP)
    assert choices.shown["kv_cache_mib"] == 128
    assert choices.args["max_model_len"] == -1
    assert decide(SMALL, ModelConfig(model="small"), A10G).shown["kv_cache_mib"] == (8192 if decide is choose else None)


@pytest.mark.parametrize("decide", [choose, choose_pooling])
@pytest.mark.parametrize("written", [{"max_num_seqs": None}, {"kv_cache_memory_bytes": "4G"}])
def test_engine_args_that_are_no_numbers_are_refused_by_name(
    decide: Callable[..., EngineChoices], written: dict[str, Any]
) -> None:
    with pytest.raises(EngineStartFailed, match=next(iter(written))):
        decide(SMALL, ModelConfig(model="small", engine_args=written), LAPTOP)


def test_an_embedding_engine_has_a_step_that_holds_its_longest_input() -> None:
    args = choose_pooling(SMALL, ModelConfig(model="small"), LAPTOP).args
    assert args["runner"] == "pooling"
    assert args["max_num_batched_tokens"] >= args["max_model_len"]
    assert "structured_outputs_config" not in args


def test_an_embedding_engine_on_a_cpu_is_told_the_size_of_its_pool() -> None:
    args = choose_pooling(SMALL, ModelConfig(model="small"), LAPTOP).args
    assert args["kv_cache_memory_bytes"] > 0  # or vLLM would want nine tenths of the machine's memory to be free
    assert "kv_cache_memory_bytes" not in choose_pooling(SMALL, ModelConfig(model="small"), A10G).args


def test_a_cpu_engine_is_told_its_node_and_a_gpus_inherits_the_daemons() -> None:
    assert (
        choose(SMALL, ModelConfig(model="small"), replace(LAPTOP, node=1)).environment["CPU_VISIBLE_MEMORY_NODES"]
        == "1"
    )
    for elsewhere in (LAPTOP, replace(A10G, node=1)):
        choices = choose(SMALL, ModelConfig(model="small"), elsewhere)
        assert "CPU_VISIBLE_MEMORY_NODES" not in choices.environment
        assert not choices.args.keys() & {"numa_bind", "numa_bind_nodes"}


def test_weights_count_as_they_were_planned_and_not_as_the_files_have_them() -> None:
    free = 8 * GIB - 500 * MIB - 2 * GIB
    planned = replace(LAPTOP, memory_available=8 * GIB, weights=500 * MIB)
    assert chosen(planned)["kv_cache_memory_bytes"] == free // 4
    with pytest.raises(EngineStartFailed, match="weights take 15360 MiB as float32"):
        chosen(replace(LAPTOP, weights=15 * GIB))
    with pytest.raises(EngineStartFailed, match=r"take 12289 MiB, but gpu\.weights_mb allows 12288"):
        chosen(replace(A10G, weights=12_289 * MIB))


def test_an_engine_on_a_gpu_is_told_what_the_plan_gave_it_rounded_down() -> None:
    machine = replace(A10G, weights=5_313 * MIB, gpu_scratch=1_683 * MIB)
    share = (5_313 + 8_192 + 1_683) / 23_028
    assert chosen(machine)["gpu_memory_utilization"] == int(share * 1000) / 1000 <= share


def test_a_pool_of_eight_bits_holds_twice_the_tokens() -> None:
    large = ModelFacts("/models/large", "large", 5_600 * MIB, "float16", 131_072, 28_672, frozenset({2}))
    plain = chosen(A10G, large, kv_cache_mb=1_024)["max_model_len"]
    eight = chosen(A10G, large, kv_cache_mb=1_024, engine_args={"kv_cache_dtype": "fp8"})["max_model_len"]
    assert (plain, eight) == (KvCost(57_344).tokens_in(GIB), KvCost(28_672).tokens_in(GIB)) == (18_688, 37_408)


def test_a_step_is_that_of_the_device_unless_it_was_configured() -> None:
    assert step_of(ModelConfig(model="m"), gpu=True) == (128, 2048)
    assert step_of(ModelConfig(model="m"), gpu=False) == (64, 512)
    assert step_of(ModelConfig(model="m", max_running=700, max_batched_tokens=600), gpu=True) == (700, 700)


@pytest.mark.parametrize(
    ("kind", "bytes_a_token"),
    [("auto", 400), ("bfloat16", 200), ("fp8", 100), ("fp8_e5m2", 100), ("fp8_per_token_head", 115), ("nvfp4", 100)],
)
def test_the_pools_own_type_counts(kind: str, bytes_a_token: int) -> None:
    config = ModelConfig(model="m", engine_args={"kv_cache_dtype": kind})
    assert kv_cost(replace(SMALL, kv_width=100), config, "float32", gpu=True) == KvCost(bytes_a_token)


def test_layers_with_a_window_take_no_more_of_a_long_sequence() -> None:
    gemma = replace(SMALL, kv_width=70 * 4096, kv_windowed=60 * 4096, kv_window=1024)
    cost = kv_cost(gemma, ModelConfig(model="m"), "bfloat16", gpu=True)
    kept = 1024 + 2 * 2048 + 32
    assert cost == KvCost(573_440, 491_520, kept)
    assert cost.of(1_000) == 573_440_000
    assert cost.of(100_000) == 100_000 * 81_920 + kept * 491_520
    assert cost.tokens_in(GIB) == 1_824  # shorter than what a window keeps: as if all layers kept all
    assert cost.tokens_in(8 * GIB) > 4 * KvCost(573_440).tokens_in(8 * GIB)
    assert cost.of(cost.tokens_in(8 * GIB)) <= 8 * GIB
    apart = ModelConfig(model="m", engine_args={"disable_hybrid_kv_cache_manager": True})
    assert kv_cost(gemma, apart, "bfloat16", gpu=True) == KvCost(573_440)


def test_a_model_that_keeps_no_token_has_its_own_context() -> None:
    assert chosen(model=replace(SMALL, kv_width=0), kv_cache_mb=64)["max_model_len"] == 8192


def test_a_pool_of_engine_args_cuts_the_context_as_a_configured_one_does() -> None:
    for machine, token in ((LAPTOP, 11_520 * 4), (A10G, 11_520 * 2)):
        args = chosen(machine, engine_args={"kv_cache_memory_bytes": 100 * MIB})
        assert args["max_model_len"] == KvCost(token).tokens_in(100 * MIB)
    with pytest.raises(EngineStartFailed, match=r"100 MiB holds \d+ tokens .* 8000; raise kv_cache_mb"):
        chosen(engine_args={"kv_cache_memory_bytes": 100 * MIB, "max_model_len": 8000})
    with pytest.raises(EngineStartFailed, match=r"max_model_len is 9000, but small was made for 8192"):
        chosen(engine_args={"max_model_len": 9000})
    stretched = {"max_model_len": 9000, "hf_overrides": {"rope_scaling": {"type": "yarn", "factor": 2.0}}}
    assert chosen(A10G, engine_args=stretched)["max_model_len"] == 9000


def test_what_mps_lets_an_engine_take_is_what_the_plan_gave_it() -> None:
    def environment(machine: MachineFacts) -> dict[str, str]:
        return choose(SMALL, ModelConfig(model="small"), machine).environment

    limited = environment(replace(A10G, gpu_limit=15_188 * MIB))
    assert limited["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=15188M"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in environment(A10G)
