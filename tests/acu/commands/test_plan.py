"""acu doctor --plan: the plan as people and programs get it, of cards that this box has and has not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from acu.commands.doctor import written
from acu.commands.plan import Box, draw
from acu.commands.planview import Drawn, as_json, as_text
from acu.config import AcuConfig, GpuConfig, NumaConfig
from acu.doctor.examination import Examination, Versions
from acu.errors import StartRefused
from acu.hardware import Gpu, Report
from acu.hardware.cards import read_cards
from acu.hardware.numa import read_nodes
from acu.hardware.report import Node
from acu.hardware.vram import step_mb
from acu.models import by_name
from acu.models.catalogue import Layout
from agentflow.config import ModelConfig
from agentflow.engine.vllm.facts import read_model
from agentflow.engine.vllm.tuning import KvCost
from dataplane.config import DataPlaneConfig
from tests.acu.hardware.recorded import machine_root, recorded_nvml
from tests.acu.models.headerfiles import model_folder, qwen_7b, qwen_7b_awq
from tests.acu.running import acu

A10G = Gpu(index=0, name="NVIDIA A10G", memory_mb=23_028, memory_free_mb=22_578, numa_node=0)
NUMA, GPU = NumaConfig(), GpuConfig()
HOST = Report("cpu", 4, 2, ("avx2",), 32 << 30, 24 << 30)


def with_a10g(**changed: Any) -> Box:
    return Box(replace(HOST, gpus=(replace(A10G, **changed),)), (Node(0, (0, 1), 16_000, 15_000),), here=False)


def drawn(box: Box, hot: int = 8_000, numa: NumaConfig = NUMA, gpu: GpuConfig = GPU, **models: ModelConfig) -> Drawn:
    hot_layer = DataPlaneConfig(hot_layer_mem_mb=hot)
    return draw(AcuConfig(models=models, numa=numa, gpu=gpu, data_plane=hot_layer), box)


def test_qwen_7b_in_awq_fits_an_a10g_and_is_shown_with_its_tokens(tmp_path: Path) -> None:
    found = drawn(with_a10g(), large=ModelConfig(model=str(qwen_7b_awq(tmp_path / "Qwen2.5-7B-Instruct-AWQ"))))
    assert as_text(found) == (
        "NVIDIA A10G: 23028 MiB, of which the driver and other programs hold 450: 22578 to divide\n"
        "\n"
        "MODEL                            WEIGHTS    KV  TOKENS  FULL SEQUENCES  ENGINE  ONE STEP\n"
        "large (Qwen2.5-7B-Instruct-AWQ)     5313  8192  149760    4.6 of 32768    1024       659\n"
        "all                                 5313  8192                            1024       659\n"
        "\n"
        "weights  5313 of 12288 MiB that gpu.weights_mb allows\n"
        "scratch  8049 MiB remain, of which one step of every engine needs 659\n"
        "engines  1 on the GPU\n"
        "node     16000 MiB, less 3840 of engines and daemon: 12160 for the hot layer, which may take 8000\n"
        "\n"
        "It fits."
    )


def test_the_documentation_shows_what_is_printed(tmp_path: Path) -> None:
    page = " ".join((Path(__file__).parents[3] / "docs/memory.md").read_text(encoding="utf-8").split())
    numa, gpu = NumaConfig(memory_mb=16_384), GpuConfig(model_cache_dir=str(tmp_path))
    box = replace(with_a10g(), nodes=(Node(0, (0, 1), 32_000, 31_000),))
    awq = ModelConfig(model=str(qwen_7b_awq(tmp_path / "Qwen2.5-7B-Instruct-AWQ")))
    plain = ModelConfig(model=str(qwen_7b(tmp_path / "Qwen2.5-7B-Instruct")))
    shown = [
        as_text(drawn(box, 12_288, numa, large=awq)),
        *drawn(box, 12_288, numa, large=plain).problems,
        *as_text(drawn(Box(HOST), gpu=gpu, large=ModelConfig(model="who/knows"))).split("\n\n")[2:],
    ]
    for text in shown:
        assert " ".join(text.replace(f"{tmp_path}/", "").split()) in page


def test_in_bfloat16_it_does_not_and_the_plan_says_what_would(tmp_path: Path) -> None:
    found = drawn(with_a10g(), large=ModelConfig(model=str(qwen_7b(tmp_path / "Qwen2.5-7B-Instruct"))))
    (problem,) = found.problems
    assert "gpu.weights_mb: 14526 and gpu.kv_cache_size_mb: 6369" in problem
    assert as_text(found).endswith(f"\n\nrefused: {problem}")
    document = json.loads(as_json(found))
    assert (document["fits"], document["scratch_mb"], document["step_mb"]) == (False, -1164, 659)
    assert "\nscratch  1164 MiB are lacking, and one step of every engine needs 659 more\n" in as_text(found)


def test_what_workers_are_left_is_not_scratch_and_may_be_too_much(tmp_path: Path) -> None:
    awq = ModelConfig(model=str(qwen_7b_awq(tmp_path / "awq")))
    beside = drawn(with_a10g(), gpu=GpuConfig(workers_mb=2_000), large=awq)
    assert not beside.problems
    document = json.loads(as_json(beside))
    assert (document["workers_mb"], document["scratch_mb"]) == (2_000, 8_049 - 2_000)
    assert document["models"][0]["limit_mb"] == 22_578 - 2_000  # where MPS runs, the engine leaves them their part
    assert "\nworkers  2000 MiB are left to other processes of this ACU (gpu.workers_mb)\n" in as_text(beside)
    (problem,) = drawn(with_a10g(), gpu=GpuConfig(workers_mb=7_400), large=awq).problems
    assert "+ 7400 for workers" in problem


def test_models_on_the_cpu_are_on_the_node_and_not_on_the_card(tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "e", {"hidden_size": 8}, [("w", "F16", (100 << 20,))]))
    found = drawn(
        with_a10g(),
        large=ModelConfig(model=str(qwen_7b_awq(tmp_path / "q"))),
        embed=ModelConfig(model=folder, engine="encoder", role="embed"),
        play=ModelConfig(model="x", engine="scripted"),
    )
    assert [demand.key for demand in found.plan.demands] == ["large"]
    assert found.node is not None
    assert found.node.engines_mb == 3_072 + 400 + 768  # float16 becomes float32 there


def test_two_engines_share_the_pool_and_are_two_on_the_gpu(tmp_path: Path) -> None:
    folder = str(qwen_7b_awq(tmp_path / "q"))
    found = drawn(with_a10g(), large=ModelConfig(model=folder), small=ModelConfig(model=folder, served_name="s"))
    document = json.loads(as_json(found))
    assert document["engines_on_gpu"] == 2
    assert [model["kv_mb"] for model in document["models"]] == [4096, 4096]
    assert [model["sequences"] for model in document["models"]] == [2.28, 2.28]
    assert document["fits"]


def test_a_context_that_the_pool_does_not_hold_is_told_as_at_a_start(tmp_path: Path) -> None:
    asked = ModelConfig(model=str(qwen_7b_awq(tmp_path / "q")), max_model_len=32_768, kv_cache_mb=1_000)
    (problem,) = drawn(with_a10g(), large=asked).problems
    assert problem.startswith("models.large: a KV pool of 1000 MiB holds ")
    assert "raise kv_cache_mb to 1796" in problem


def test_a_box_without_a_card_is_planned_by_its_memory(tmp_path: Path) -> None:
    found = drawn(Box(HOST, here=False), large=ModelConfig(model=str(qwen_7b_awq(tmp_path / "q")), dtype="bfloat16"))
    assert (found.plan.card.name, found.plan.card.total_mb, found.plan.card.held_mb) == ("memory", 32_768, 8_192)
    (demand,) = found.plan.demands
    assert (demand.weights_mb, demand.kv_mb, demand.process_mb, demand.step_mb) == (5_313, 2_048, 2_048, 0)
    assert json.loads(as_json(found))["engines_on_gpu"] == 0
    assert found.problems == ()


def test_a_model_that_is_not_here_counts_with_the_catalogues_size(tmp_path: Path) -> None:
    found = drawn(
        with_a10g(), gpu=GpuConfig(model_cache_dir=str(tmp_path)), large=ModelConfig(model="qwen2.5-7b-instruct-awq")
    )
    assert "~5322  8192  149760    4.6 of 32768    1024       659" in as_text(found)
    assert "note: models.large: its size is the catalogue's (~) until `acu models pull qwen2.5-7b-instruct-" in as_text(
        found
    )
    assert found.problems == ()
    unknown = drawn(with_a10g(), gpu=GpuConfig(model_cache_dir=str(tmp_path)), large=ModelConfig(model="who/knows"))
    assert [problem.partition(":")[0] for problem in unknown.problems] == ["models.large.model"]


def test_a_catalogue_model_that_is_not_here_is_planned_on_either_side(tmp_path: Path) -> None:
    gpu = GpuConfig(model_cache_dir=str(tmp_path))
    small = ModelConfig(model="qwen2.5-0.5b-instruct", kv_cache_mb=1_000)
    embed = ModelConfig(model="multilingual-e5-small", role="embed", engine="vllm")
    (demand, other) = drawn(with_a10g(), gpu=gpu, small=small, embed=embed).plan.demands
    assert (demand.weights_mb, demand.kv_tokens) == (943, KvCost(12_288).tokens_in(1_000 << 20))
    assert (other.kv_tokens, other.read) == (None, False)
    (demand,) = drawn(Box(HOST, here=False), gpu=gpu, small=small).plan.demands
    assert (demand.weights_mb, demand.kv_tokens) == (1_885, KvCost(24_576).tokens_in(1_000 << 20))  # as float32


def test_the_catalogue_knows_the_layout_of_qwen_7b(tmp_path: Path) -> None:
    entry, facts = by_name("qwen2.5-7b-instruct-awq"), read_model(qwen_7b_awq(tmp_path / "q"))
    assert entry is not None
    assert entry.layout == Layout("float16", facts.kv_width, facts.hidden, facts.intermediate, facts.vocabulary)


def test_the_node_must_have_room_for_what_is_hot(tmp_path: Path) -> None:
    model = ModelConfig(model=str(qwen_7b_awq(tmp_path / "q")))
    (note,) = drawn(with_a10g(), hot=14_000, large=model).notes
    assert "are more than the 16000 MiB that are there for them on the NUMA node; lower it to 12160" in note
    (problem,) = drawn(with_a10g(), hot=14_000, numa=NumaConfig(memory_mb=12_000), large=model).problems
    assert problem.startswith("data_plane.hot_layer_mem_mb: 14000 is more than all of numa.memory_mb, 12000")
    (note,) = drawn(with_a10g(), hot=64, numa=NumaConfig(memory_mb=3_850), large=model).notes
    assert note.endswith("; choose smaller models, or give them more of the node (numa.memory_mb)")
    assert drawn(with_a10g(), numa=NumaConfig(node=None), large=model).node is None


def test_a_card_far_from_the_rest_is_planned_by_its_own_node(tmp_path: Path) -> None:
    nodes = read_nodes(machine_root("a10g-far"))
    box = replace(with_a10g(numa_node=1), nodes=nodes)
    found = drawn(box, large=ModelConfig(model=str(qwen_7b_awq(tmp_path / "q"))))
    assert found.node is not None
    assert found.node.memory_mb == next(node.memory_mb for node in nodes if node.id == 1)


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=r"gpu\.device_id: 1 does not exist"):
        drawn(with_a10g(), gpu=GpuConfig(device_id=1), large=ModelConfig(model=str(qwen_7b_awq(tmp_path / "q"))))


def test_the_command_plans_for_a_named_card_or_a_report_and_its_exit_code_is_that_of_a_start(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    file = tmp_path / "acu.yaml"
    file.write_text(yaml.safe_dump({"models": {"large": {"model": str(qwen_7b(tmp_path / "Qwen2.5-7B-Instruct"))}}}))
    small = acu("doctor", "--card", "a10g", "-c", str(file), "--json", environ=clean_environ)
    assert (small.returncode, json.loads(small.stdout)["card"]["usable_mb"]) == (2, 22_452)
    large = acu("doctor", "--plan", "--card", "46068", "-c", str(file), environ=clean_environ)
    assert (large.returncode, large.stderr) == (0, "")
    assert large.stdout.endswith("\n\nIt fits.\n")
    (report := tmp_path / "report.json").write_text(
        written(Examination(at="2026-11-30", machine=with_a10g().report, versions=Versions("1", "3.11")))
    )
    seen = acu("doctor", "--plan", "--report", str(report), "-c", str(file), environ=clean_environ)
    assert (seen.returncode, seen.stdout.splitlines()[0].partition(",")[0]) == (2, "NVIDIA A10G: 23028 MiB")
    wrong = acu("doctor", "--card", "a11", environ=clean_environ)
    assert wrong.returncode == 2
    assert "--card: 'a11' is neither a number of MiB nor one of t4, l4, a10, a10g" in wrong.stderr


def test_a_card_whose_name_holds_signs_for_the_terminal_is_shown_without_them() -> None:
    box = with_a10g()
    card = replace(box.report.gpus[0], name="A10G\x1b]0;mine\x07")
    text = as_text(drawn(replace(box, report=replace(box.report, gpus=(card,)))))
    assert text.startswith("A10G?]0;mine?: 23028 MiB")
    assert text.endswith(
        "\n\nNo model has an engine on the card: they are scripted, or computed on the CPU (models.KEY.engine)."
    )


def test_where_nothing_is_to_be_divided_a_sentence_says_what_to_do_and_no_table_of_zeros(tmp_path: Path) -> None:
    scripted = ModelConfig(model="x", engine="scripted")
    gpu = GpuConfig(model_cache_dir=str(tmp_path))
    unknown = ModelConfig(model="who/knows")
    on_this_cpu, on_its_cpu = Box(HOST), Box(HOST, here=False)
    for box, models, says in (
        (
            on_this_cpu,
            {"play": scripted},
            ["No GPU here: what is planned is", "No model takes memory: all are scripted"],
        ),
        (on_its_cpu, {"large": unknown}, ["No GPU there: ", "No model can be planned", "`acu models pull who/knows`"]),
        (with_a10g(), {"large": unknown}, ["No model can be planned", "`acu models pull who/knows`"]),
        (with_a10g(), {"play": scripted}, ["No model has an engine on the card"]),
    ):
        text = as_text(drawn(box, gpu=gpu, **models))
        assert [sentence for sentence in says if sentence not in text] == []
        assert "WEIGHTS" not in text
        assert "It fits" not in text


def test_an_embedding_model_on_the_card_has_no_logits_and_a_step_of_its_longest_input(tmp_path: Path) -> None:
    model = ModelConfig(model=str(qwen_7b_awq(tmp_path / "q")), role="embed", engine="vllm", max_model_len=4_096)
    (demand,) = drawn(with_a10g(), embed=model).plan.demands
    assert demand.step_mb == step_mb(tokens=4_096, rows=128, widths=(3_584, 18_944, 0))
    assert not demand.speaks


@pytest.mark.parametrize(("name", "cards"), [("a10g", 1), ("two-gpus", 2)])
def test_a_recorded_card_is_divided_by_what_its_nvml_says(tmp_path: Path, name: str, cards: int) -> None:
    gpus, _ = read_cards(recorded_nvml(name), machine_root(name))
    assert len(gpus) == cards
    found = drawn(Box(replace(HOST, gpus=gpus), here=False), large=ModelConfig(model=str(qwen_7b_awq(tmp_path / "q"))))
    assert found.plan.card.usable_mb == gpus[0].memory_free_mb
    assert found.problems == ()
