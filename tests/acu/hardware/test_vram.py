"""acu.hardware.vram: what fits a card, what does not, and what would."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from acu.hardware.vram import (
    CARDS,
    CONTEXT_MB,
    GRAPHS_MB,
    MIB,
    SPARE_TOKENS,
    Alternative,
    Card,
    Demand,
    MemoryPlan,
    known_card,
    problem,
    step_mb,
)

A10G = Card("NVIDIA A10G", 23_028, 450)
QWEN = Demand(
    key="large",
    model="Qwen2.5-7B-Instruct",
    weights_mb=14_526,
    kv_mb=8_192,
    token_bytes=57_344,
    context=32_768,
    process_mb=1_024,
    step_mb=659,
)
AWQ = replace(QWEN, model="qwen2.5-7b-instruct-awq", weights_mb=5_313)
QUANTISED = Alternative("qwen2.5-7b-instruct-awq", 5_322)
SMALL = Alternative("qwen2.5-0.5b-instruct", 954)


def plan(*demands: Demand, limit: int | None = None, workers: int = 0, card: Card = A10G) -> MemoryPlan:
    return MemoryPlan(card=card, demands=demands, weights_limit_mb=limit, workers_mb=workers)


def fields(text: str | None) -> dict[str, int]:
    """The fields with numbers that an advice names."""
    assert text is not None
    pairs = (words.partition(": ") for words in text.replace(" (", ", ").replace(" and ", ", ").split(", "))
    return {name: int(value) for name, _, value in pairs if value.isdigit()}


def test_one_step_of_qwen_7b_is_its_layers_widest_values_and_its_sampler() -> None:
    layers = 2048 * (2 * 3584 + 3 * 18_944) * 2
    sampler = 128 * 152_064 * (2 + 4 + 4 + 8 + 4)
    assert step_mb(tokens=2048, rows=128, widths=(3584, 18_944, 152_064)) == -(-(layers + sampler) // MIB) == 659
    assert step_mb(tokens=2048, rows=128, widths=(3584, 18_944, 0)) == -(-layers // MIB)
    assert (
        step_mb(tokens=8192, rows=256, widths=(4096, 14_336, 128_256)) > 1290
    )  # vLLM's profile of Llama 3 8B: 1.26 GiB


def test_the_a10g_profile_takes_awq_weights_the_kv_and_leaves_scratch() -> None:
    found = plan(AWQ, limit=12_288)
    assert problem(found) is None
    assert (found.weights_mb, found.kv_mb, found.processes_mb) == (5_313, 8_192, CONTEXT_MB + GRAPHS_MB)
    assert found.scratch_mb == 22_578 - 5_313 - 8_192 - 1_024
    assert (AWQ.kv_tokens, AWQ.served_context, found.engines_on_gpu) == (149_760, 32_768, 1)
    assert AWQ.sequences == pytest.approx(4.57, abs=0.01)


def test_all_of_the_profile_leaves_a_step_its_scratch() -> None:
    assert plan(replace(AWQ, weights_mb=12_288), limit=12_288).fits


def test_bfloat16_is_refused_with_the_sum_and_what_would_fit() -> None:
    text = problem(plan(QWEN, limit=12_288), (SMALL, QUANTISED))
    assert text == (
        "models: the weights of models.large (Qwen2.5-7B-Instruct) need 14526 MiB on the GPU, and gpu.weights_mb is 12288. And "
        "it needs 24401 MiB on NVIDIA A10G: 14526 for weights + 8192 for KV + 1024 for CUDA and graphs + 659 for one step; "
        "22578 of its 23028 are free, 1823 too few. What would fit: a smaller KV, gpu.weights_mb: 14526 and "
        "gpu.kv_cache_size_mb: 6369 (models.large then holds 116416 tokens, 3.6 sequences of 32768); or quantised weights, "
        "models.large.model: qwen2.5-7b-instruct-awq (5322 MiB, beside this KV)"
    )
    told = fields(text)
    told_plan = plan(replace(QWEN, kv_mb=told["gpu.kv_cache_size_mb"]), limit=told["gpu.weights_mb"])
    assert problem(told_plan) is None
    assert told_plan.scratch_mb == told_plan.step_mb
    assert problem(plan(replace(QWEN, kv_mb=6_370), limit=14_526)) is not None


def test_weights_beyond_their_limit_alone_need_only_a_higher_one() -> None:
    text = problem(plan(AWQ, limit=5_000))
    assert text is not None
    assert text.endswith(
        "gpu.weights_mb is 5000. What would fit: gpu.weights_mb: 5313 (beside this KV, 7390 MiB remain)"
    )


def test_two_models_that_share_a_pool_fit_with_a_smaller_one() -> None:
    two = (replace(AWQ, kv_mb=6_000), replace(AWQ, key="small", kv_mb=6_000))
    text = problem(plan(*two))
    told = fields(text)["gpu.kv_cache_size_mb"]
    assert told == 2 * ((22_578 - 2 * (5_313 + 1_024 + 659)) // 2)
    assert problem(plan(*(replace(each, kv_mb=told // 2) for each in two))) is None
    assert "models.small then holds 78464 tokens, 2.4 sequences of 32768" in str(text)


def test_pools_of_their_own_are_made_smaller_each_by_what_it_has_beyond_its_need() -> None:
    own = replace(AWQ, own_pool=True, kv_mb=9_000, fixed=True)
    small = replace(own, key="small", kv_mb=1_900)
    told = fields(problem(plan(own, small)))
    pools = {"large": told["models.large.kv_cache_mb"], "small": told["models.small.kv_cache_mb"]}
    assert min(pools.values()) >= own.least_kv_mb()  # each still holds one whole sequence of 32,768
    assert problem(plan(replace(own, kv_mb=pools["large"]), replace(small, kv_mb=pools["small"]))) is None


def test_the_shared_pool_gives_way_before_a_models_own_one() -> None:
    text = problem(plan(replace(AWQ, kv_mb=8_000), replace(AWQ, key="small", kv_mb=3_000, own_pool=True)))
    assert list(fields(text)) == ["gpu.kv_cache_size_mb"]
    assert fields(text)["gpu.kv_cache_size_mb"] == 22_578 - 2 * (5_313 + 1_024 + 659) - 3_000


def test_where_the_shared_pool_alone_cannot_give_way_both_are_named() -> None:
    shared, own = replace(AWQ, kv_mb=3_000, fixed=True), replace(AWQ, key="small", kv_mb=12_000, own_pool=True)
    told = fields(problem(plan(shared, own)))
    assert list(told) == ["models.large.kv_cache_mb", "models.small.kv_cache_mb"]
    smaller = (
        replace(shared, kv_mb=told["models.large.kv_cache_mb"]),
        replace(own, kv_mb=told["models.small.kv_cache_mb"]),
    )
    assert problem(plan(*smaller)) is None


def test_the_smallest_pool_holds_a_whole_sequence_in_whole_blocks() -> None:
    for context in range(513, 600):
        asked = replace(AWQ, context=context, fixed=True, token_bytes=MIB)
        least = replace(asked, kv_mb=asked.least_kv_mb())
        assert (least.kv_tokens or 0) >= context
        assert (replace(least, kv_mb=least.kv_mb - SPARE_TOKENS).kv_tokens or 0) < context


def test_a_context_is_not_cut_to_a_pool_that_is_too_small_to_serve() -> None:
    assert replace(AWQ, kv_mb=1_000).served_context == 18_240
    assert replace(AWQ, kv_mb=20).served_context == 32_768


def test_a_pool_of_engine_args_is_advised_on_in_its_own_field_and_unit() -> None:
    text = problem(plan(replace(QWEN, own_pool=True, written=True)))
    assert fields(text) == {"models.large.engine_args.kv_cache_memory_bytes": 6_369 << 20}


def test_a_context_that_was_asked_for_is_shortened_where_the_pool_cannot_hold_it() -> None:
    asked = replace(QWEN, weights_mb=19_600, kv_mb=2_000, fixed=True)
    text = problem(plan(asked))
    told = fields(text)
    assert "a smaller KV and a shorter context" in str(text)
    shorter = replace(asked, kv_mb=told["gpu.kv_cache_size_mb"], context=told["models.large.max_model_len"])
    assert problem(plan(shorter)) is None
    assert shorter.kv_tokens == shorter.context == 23_648
    unasked = problem(plan(replace(asked, fixed=False)))
    assert "max_model_len" not in str(unasked)
    assert "1.0 sequences of 23648" in str(unasked)


def test_what_never_fits_is_told_so_with_no_advice_that_does_not_hold() -> None:
    text = problem(plan(replace(QWEN, weights_mb=62_000)), (SMALL,))
    assert str(text).endswith("No KV is small enough: choose smaller models, or fewer")
    assert str(text).count("needs 71875 MiB") == 1


def test_another_model_is_told_only_where_it_fits_and_is_no_toy() -> None:
    large = replace(QWEN, model="other", weights_mb=20_000, fixed=True)
    assert "another model, models.large.model: qwen2.5-7b-instruct-awq (5322" in str(
        problem(plan(large), (SMALL, QUANTISED))
    )
    assert "another model" not in str(problem(plan(large), (SMALL,)))
    assert "another model" not in str(problem(plan(replace(large, kv_mb=16_000)), (QUANTISED,)))


def test_what_others_hold_is_told_by_process() -> None:
    card = replace(A10G, held_mb=16_450, others=((4242, 16_000),))
    assert "6578 of its 23028 are free (process 4242 holds 16000)" in str(problem(plan(AWQ, card=card)))


def test_workers_count_and_are_told() -> None:
    assert plan(AWQ, workers=7_390).fits
    text = problem(plan(AWQ, workers=8_000))
    assert "+ 1024 for CUDA and graphs + 8000 for workers + 659 for one step" in str(text)
    assert fields(text)["gpu.kv_cache_size_mb"] == 8_192 - 610


def test_an_engine_of_the_cpu_is_none_on_the_card() -> None:
    encoder = Demand(key="embed", model="minilm", weights_mb=87)
    assert (plan(encoder).engines_on_gpu, encoder.kv_tokens, encoder.sequences, encoder.least_kv_mb()) == (
        0,
        None,
        None,
        0,
    )


def test_cards_are_known_by_name_and_by_size() -> None:
    assert known_card("A10G") == Card("NVIDIA A10G", 23_028, 576)
    assert known_card("8192") == Card("a card of 8192 MiB", 8_192, 205)
    assert {name for name in CARDS if (card := known_card(name)) and card.usable_mb < card.total_mb} == set(CARDS)
    assert [known_card(text) for text in ("", "0", "-1", "a11", "²", "1e3")] == [None] * 6
