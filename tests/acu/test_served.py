"""acu.served: which models are served under which names, and what is refused beforehand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from acu.allotment import Budget, card_of, gpu_budget
from acu.config import AcuConfig, GpuConfig, NumaConfig
from acu.errors import StartRefused
from acu.hardware import Gpu, Report
from acu.hardware.vram import Card
from acu.served import build, facts_for, hot_warning, plan_models, scripted
from agentflow.config import ModelConfig, SamplingConfig
from agentflow.engine.vllm.facts import read_model
from agentflow.engine.vllm.tuning import choose
from agentflow.messages import Sampling
from dataplane.config import DataPlaneConfig
from tests.acu.models.headerfiles import qwen_7b, qwen_7b_awq

GIB = 1 << 30
A10G = Gpu(index=0, name="NVIDIA A10G", memory_mb=23_028, memory_free_mb=22_700)


def report(*gpus: Gpu, memory: int = 16 * GIB) -> Report:
    """A machine."""
    return Report("cpu", 2, 2, (), memory, memory, gpus)


def model_folder(folder: Path, size: int = 1000) -> Path:
    """A folder that looks like a small model whose weights have `size` bytes."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (folder / "model.safetensors").open("wb") as weights:
        weights.write(len(header).to_bytes(8, "little") + header)
        weights.truncate(8 + len(header) + size)
    return folder


def test_the_scripted_engine_takes_every_models_place_and_keeps_its_names() -> None:
    models = scripted(
        {
            "large": ModelConfig(model="smollm2-135m-instruct"),
            "small": ModelConfig(model="other", served_name="mini"),
            "embed": ModelConfig(model="all-minilm-l6-v2"),
        },
        "/script.yaml",
    )
    unscripted = {key: replace(model, script=None) for key, model in models.items()}
    plans = plan_models(AcuConfig(models=unscripted), report())
    assert {plan.names[0]: plan.names[1:] for plan in plans} == {
        "scripted": ("large", "smollm2-135m-instruct"),
        "scripted-small": ("small", "other", "mini"),
        "scripted-embed": ("embed", "all-minilm-l6-v2"),
    }
    assert {model.script for model in models.values()} == {"/script.yaml"}
    assert [plan.files for plan in plans] == [None, None, None]


def test_an_a10g_is_divided_as_the_profile_says() -> None:
    assert gpu_budget(GpuConfig(), report(A10G)) == Budget(23_028, 12_288, 8_192)
    assert gpu_budget(GpuConfig(weights_mb=1000, kv_cache_size_mb=2000), report(A10G)) == Budget(23_028, 1000, 2000)
    assert gpu_budget(GpuConfig(), report()) is None


def test_a_gpu_that_is_not_there_or_too_small_is_refused() -> None:
    with pytest.raises(StartRefused, match=r"gpu\.device_id: 1 does not exist; there are 0 \(NVIDIA A10G\)"):
        gpu_budget(GpuConfig(device_id=1), report(A10G))
    with pytest.raises(StartRefused, match=r"20000 \+ 8192 MiB do not fit the 23028 MiB of NVIDIA A10G"):
        gpu_budget(GpuConfig(weights_mb=20_000), report(A10G))


def test_models_on_a_gpu_share_the_kv_pool_and_the_budget_for_weights(tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "m"))
    models = {
        "large": ModelConfig(model=folder, served_name="a"),
        "small": ModelConfig(model=folder, served_name="b", aliases=("x",)),
        "own": ModelConfig(model=folder, served_name="c", kv_cache_mb=100),
    }
    plans = plan_models(AcuConfig(models=models), report(A10G))
    assert [plan.config.kv_cache_mb for plan in plans] == [4096, 4096, 100]
    with pytest.raises(StartRefused, match=r"need 40 MiB on the GPU, and gpu\.weights_mb is 16"):
        big = str(model_folder(tmp_path / "big", 40 << 20))
        plan_models(AcuConfig(models={"large": ModelConfig(model=big)}, gpu=GpuConfig(weights_mb=16)), report(A10G))


def test_weights_that_are_larger_than_the_memory_are_refused_with_both_sizes(tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "m", 100 << 20))
    with pytest.raises(StartRefused, match="need 100 MiB of memory, and 50 MiB are available"):
        plan_models(AcuConfig(models={"large": ModelConfig(model=folder)}), report(memory=50 << 20))


def test_the_engines_own_rules_are_asked_before_the_start(tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "m"))
    with pytest.raises(StartRefused, match=r"models\.large: .*kv_cache_mb"):
        plan_models(AcuConfig(models={"large": ModelConfig(model=folder, kv_cache_mb=50_000_000)}), report())


def test_files_that_the_configuration_names_must_be_there(tmp_path: Path) -> None:
    config = AcuConfig(models={"large": ModelConfig(model="m", chat_template=str(tmp_path / "none"))})
    with pytest.raises(StartRefused, match=r"models\.large\.chat_template: .*none cannot be read: No such file"):
        plan_models(config, report())


def test_every_problem_of_every_model_is_told_at_once(tmp_path: Path) -> None:
    wrong = ModelConfig(model=str(tmp_path / "none"), chat_template="/no.jinja", script="/no.yaml")
    played = ModelConfig(model="p", engine="scripted", chat_template="/no.jinja", script="/no.yaml")
    with pytest.raises(StartRefused) as refused:
        plan_models(AcuConfig(models={"large": wrong, "play": played}, gpu=GpuConfig(device_id=3)), report(A10G))
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        "gpu.device_id",
        "models.large.chat_template",
        "models.large.script",
        "models.large.model",
        "models.play.chat_template",
        "models.play.script",
    ]


def test_what_a_model_recommends_and_cannot_be_used_is_in_its_plan(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"temperature": 9, "top_k": 20}')
    (plan,) = plan_models(AcuConfig(models={"large": ModelConfig(model=str(folder))}), report())
    assert plan.sampling == Sampling(top_k=20)
    assert len(plan.ignored) == 1
    assert "temperature 9 is ignored" in plan.ignored[0]


def test_sampling_is_the_operators_then_the_models_then_openais(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"temperature": 0.7, "top_k": 20}')
    models = {
        "large": ModelConfig(model=str(folder), served_name="a", sampling=SamplingConfig(temperature=0.1)),
        "small": ModelConfig(model=str(folder), served_name="b"),
        "play": ModelConfig(model="x", engine="scripted", sampling=SamplingConfig(top_p=0.5)),
    }
    plans = plan_models(AcuConfig(models=models), report())
    wanted = [Sampling(temperature=0.1, top_k=20), Sampling(temperature=0.7, top_k=20), Sampling(top_p=0.5)]
    assert [plan.sampling for plan in plans] == wanted
    assert [build(plan).sampling for plan in plans] == wanted


def test_an_a10g_takes_qwen_7b_in_awq_and_vllm_is_told_what_the_plan_says(tmp_path: Path) -> None:
    folder = qwen_7b_awq(tmp_path / "awq")
    (plan,) = plan_models(AcuConfig(models={"large": ModelConfig(model=str(folder))}), report(A10G))
    assert plan.demand is not None
    assert (plan.held, plan.demand.weights_mb, plan.demand.kv_mb, plan.demand.kv_tokens) == (
        5_570_747_392,
        5_313,
        8_192,
        149_760,
    )
    choices = choose(read_model(folder), plan.config, facts_for(plan))
    assert choices.args["kv_cache_memory_bytes"] == 8_192 << 20
    share = (plan.held / (1 << 20) + 8_192 + plan.demand.process_mb + plan.demand.step_mb) / 23_028
    assert 0 <= share - choices.args["gpu_memory_utilization"] < 0.001  # rounded down


def test_an_a10g_refuses_qwen_7b_in_bfloat16_and_what_it_advises_is_taken(tmp_path: Path) -> None:
    models = {"large": ModelConfig(model=str(qwen_7b(tmp_path / "Qwen2.5-7B-Instruct")))}
    with pytest.raises(StartRefused) as refused:
        plan_models(AcuConfig(models=models), report(A10G))
    (problem,) = refused.value.problems
    assert "need 14526 MiB on the GPU, and gpu.weights_mb is 12288" in problem
    assert (
        "gpu.weights_mb: 14526 and gpu.kv_cache_size_mb: 6491 (models.large then holds 118656 tokens, 3.6 seq"
        in problem
    )
    assert "models.large.model: qwen2.5-7b-instruct-awq (5322 MiB, beside this KV)" in problem
    advised = GpuConfig(weights_mb=14_526, kv_cache_size_mb=6_491)
    assert plan_models(AcuConfig(models=models, gpu=advised), report(A10G))[0].config.kv_cache_mb == 6_491


def test_engines_that_fit_together_ask_vllm_for_no_more_than_there_is(tmp_path: Path) -> None:
    folder = str(qwen_7b_awq(tmp_path / "awq"))
    models = {key: ModelConfig(model=folder, served_name=key) for key in ("large", "small")}
    plans = plan_models(AcuConfig(models=models, gpu=GpuConfig(kv_cache_size_mb=8_600)), report(A10G))
    shares = [
        choose(read_model(Path(folder)), plan.config, facts_for(plan)).args["gpu_memory_utilization"] for plan in plans
    ]
    assert sum(shares) * 23_028 <= 22_700
    with pytest.raises(StartRefused, match=r"What would fit: a smaller KV, gpu\.kv_cache_size_mb: 8708 "):
        plan_models(AcuConfig(models=models, gpu=GpuConfig(kv_cache_size_mb=9_000)), report(A10G))


def test_engine_args_count_in_the_plan_as_they_do_for_the_engine(tmp_path: Path) -> None:
    folder = str(qwen_7b_awq(tmp_path / "awq"))
    written = {"enforce_eager": True, "max_num_seqs": 16, "max_model_len": 8192, "kv_cache_memory_bytes": 1 << 30}
    written |= {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 1024}
    (plan,) = plan_models(AcuConfig(models={"large": ModelConfig(model=folder, engine_args=written)}), report(A10G))
    assert plan.demand is not None
    assert (plan.demand.kv_mb, plan.demand.own_pool, plan.demand.process_mb) == (1024, True, 512)
    assert (plan.demand.context, plan.demand.fixed, plan.demand.token_bytes) == (8192, True, 28_672)
    assert plan.demand.step_mb < 200


def test_a_pool_of_engine_args_is_no_part_of_the_common_one(tmp_path: Path) -> None:
    folder = str(qwen_7b_awq(tmp_path / "awq"))
    own = ModelConfig(model=folder, served_name="own", engine_args={"kv_cache_memory_bytes": 1 << 30})
    config = AcuConfig(models={"large": ModelConfig(model=folder), "own": own}, gpu=GpuConfig(kv_cache_size_mb=4_000))
    plans = plan_models(config, report(A10G))
    assert [plan.demand and (plan.demand.kv_mb, plan.demand.own_pool) for plan in plans] == [
        (4_000, False),
        (1_024, True),
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"gpu_memory_utilization": 0.95}, "gpu_memory_utilization: each engine's part"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: the plan is of one card"),
        ({"cpu_offload_gb": 4}, "cpu_offload_gb: weights in the host's memory"),
        ({"max_model_len": 40_000}, "max_model_len is 40000, but awq was made for 32768"),
        ({"kv_cache_memory_bytes": 1 << 20}, "a KV pool of 1 MiB holds 0 tokens"),
    ],
)
def test_engine_args_that_the_plan_cannot_hold_are_refused_before_the_start(
    tmp_path: Path, args: dict[str, Any], says: str
) -> None:
    model = ModelConfig(model=str(qwen_7b_awq(tmp_path / "awq")), engine_args=args)
    with pytest.raises(StartRefused, match=rf"models\.large: .*{says}"):
        plan_models(AcuConfig(models={"large": model}), report(A10G))


def test_mps_holds_each_engine_to_its_part_and_all_parts_together_fit(tmp_path: Path) -> None:
    folder = str(qwen_7b_awq(tmp_path / "awq"))
    models = {
        "large": ModelConfig(model=folder, served_name="a"),
        "small": ModelConfig(model=folder, served_name="b", engine_args={"kv_cache_memory_bytes": 512 << 20}),
    }
    gpu = GpuConfig(kv_cache_size_mb=4_000, workers_mb=1_000)
    plans = plan_models(AcuConfig(models=models, gpu=gpu), report(A10G))
    limits = []
    for plan in plans:
        environment = choose(read_model(Path(folder)), plan.config, facts_for(plan, mps=lambda: True)).environment
        assert plan.demand is not None
        assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={plan.limit_mb}M"
        limits.append(plan.limit_mb or 0)
        assert limits[-1] > plan.demand.taken_mb
        alone = choose(read_model(Path(folder)), plan.config, facts_for(plan, mps=lambda: False)).environment
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in alone
    assert 22_700 - 1_000 - 1 <= sum(limits) <= 22_700 - 1_000


def test_weights_of_a_damaged_model_are_refused_by_the_file(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little"))
    with pytest.raises(StartRefused, match=r"models\.large\.model: .*model\.safetensors"):
        plan_models(AcuConfig(models={"large": ModelConfig(model=str(folder))}), report(A10G))


def test_a_pool_that_was_asked_for_leaves_the_weights_what_remains() -> None:
    assert gpu_budget(GpuConfig(kv_cache_size_mb=16_000), report(A10G)) == Budget(23_028, 7_028, 16_000)


def test_what_this_daemons_engines_hold_is_free_for_the_plan_and_what_others_hold_is_not() -> None:
    busy = replace(A10G, memory_free_mb=2_000, processes=((os.getpid(), 15_000), (1, 5_000)))
    assert card_of(busy, os.getppid()) == Card("NVIDIA A10G", 23_028, 6_028, ((1, 5_000),))
    assert card_of(busy).usable_mb == 2_000


def test_a_hot_layer_beyond_its_node_is_warned_of_and_one_beyond_all_of_it_refused(tmp_path: Path) -> None:
    models = {"large": ModelConfig(model=str(qwen_7b_awq(tmp_path / "awq")))}

    def told(hot: int) -> str | None:
        config = AcuConfig(
            models=models, numa=NumaConfig(memory_mb=16_384), data_plane=DataPlaneConfig(hot_layer_mem_mb=hot)
        )
        return hot_warning(plan_models(config, report(A10G)), config, report(A10G))

    assert told(12_288) is None
    assert "lower it to 12544" in str(told(13_000))
    with pytest.raises(
        StartRefused, match=r"hot_layer_mem_mb: 20000 is more than all of numa\.memory_mb, 16384.* 12544"
    ):
        told(20_000)


@pytest.mark.parametrize("field", ["chat_template", "script"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 300, "File name too long"),
        ("folder", "it is not a regular file"),
        ("fifo", "it is not a regular file"),
        ("circle", "Too many levels of symbolic links"),
        ("circle/x", "Too many levels of symbolic links"),
    ],
)
def test_a_file_of_a_model_that_cannot_be_read_is_refused_whatever_is_wrong(
    tmp_path: Path, field: str, name: str, why: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "circle").symlink_to("circle")
    named: dict[str, Any] = {field: str(tmp_path / name)}
    model = ModelConfig(model="any", engine="scripted", **named)
    with pytest.raises(StartRefused) as refused:
        plan_models(AcuConfig(models={"large": model}), report())
    assert refused.value.problems == (
        f"models.large.{field}: {tmp_path / name} cannot be read: {why}; correct the path",
    )
