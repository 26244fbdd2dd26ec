"""What is read of the machine and of models' folders."""

import json
import os
from pathlib import Path

import pytest

from agentflow.engine.vllm.facts import one_cpu_a_core, one_node_of, read_model
from agentflow.errors import EngineStartFailed


def test_of_each_core_the_last_cpu_that_may_be_used_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert one_cpu_a_core(tmp_path) == (2, 3, 4)  # nothing is known of 4: a core of its own
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3})
    assert one_cpu_a_core(tmp_path) == (0, 3)


def test_this_machine_has_a_cpu_for_each_of_its_cores() -> None:
    found = one_cpu_a_core()
    assert found
    assert set(found) <= os.sched_getaffinity(0)


def devices(root: Path, nodes: dict[int, tuple[int, ...]]) -> Path:
    for node, cpus in nodes.items():
        (root / f"node/node{node}").mkdir(parents=True)
        for cpu in cpus:
            (root / f"cpu/cpu{cpu}").mkdir(parents=True)
            (root / f"cpu/cpu{cpu}/node{node}").symlink_to(root / f"node/node{node}")
    return root


def test_cpus_lie_on_one_node_of_several_or_nothing_is_told(tmp_path: Path) -> None:
    two = devices(tmp_path / "two", {0: (0, 2), 1: (1, 3)})
    assert one_node_of((1, 3), two) == 1
    assert one_node_of((2,), two) == 0
    assert one_node_of((0, 1), two) is None
    assert one_node_of((0, 2), devices(tmp_path / "one", {0: (0, 2)})) is None
    assert one_node_of((0, 2), tmp_path / "without") is None


@pytest.mark.parametrize(
    "config",
    ['{"hidden_size": "x"}', '{"num_hidden_layers": 1e400}', '{"hidden_size": [64]}', "[]", "[" * 200_000],
)
def test_a_config_with_values_that_are_none_is_refused_by_its_folder(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(EngineStartFailed, match=f"{tmp_path} holds no model"):
        read_model(tmp_path)


def test_sizes_that_are_told_for_each_layer_and_a_type_beside_the_text_are_read(tmp_path: Path) -> None:
    text = {
        "hidden_size": 8,
        "intermediate_size": [32, 64],
        "moe_intermediate_size": [16, 48],
        "num_experts_per_tok": [2, 2],
    }
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", "text_config": text}))
    facts = read_model(tmp_path)
    assert (facts.intermediate, facts.weights_dtype) == (96, "bfloat16")
