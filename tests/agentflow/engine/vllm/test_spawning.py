"""The environment in which vLLM's processes are spawned, and the daemon's own before and after."""

import os

import pytest

from agentflow.engine.vllm.child import NICE
from agentflow.engine.vllm.spawning import MPS_LIMIT, THREADS, binds, spawning
from agentflow.errors import EngineStartFailed


def test_children_get_our_environment_and_the_daemon_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACU_TEST", "ours before")
    monkeypatch.delenv(THREADS, raising=False)
    before = dict(os.environ)
    with spawning({"ACU_TEST": "the child's", THREADS: "0,1"}, 1, "x"):
        assert os.environ["ACU_TEST"] == "the child's"
        assert os.environ[THREADS] == "0,1"
        os.environ["SET_BY_VLLM"] = "1"
    assert dict(os.environ) == before


def test_the_operators_own_binding_of_threads_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "nobind")
    with spawning({THREADS: "0,1"}, 1, "x"):
        assert os.environ[THREADS] == "nobind"
    assert os.environ[THREADS] == "nobind"


def test_an_engines_part_of_the_card_is_the_plans_unless_the_operator_has_set_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(MPS_LIMIT, raising=False)
    with spawning({MPS_LIMIT: "0=15188M"}, 1, "x"):
        assert os.environ[MPS_LIMIT] == "0=15188M"
    assert MPS_LIMIT not in os.environ
    monkeypatch.setenv(MPS_LIMIT, "0=8G")
    with spawning({MPS_LIMIT: "0=15188M"}, 1, "x"):
        assert os.environ[MPS_LIMIT] == "0=8G"


@pytest.mark.parametrize("value", ["auto", "nobind", "0", "0-3", "0,2", "5,2-4", "0-1|2-3", " 1, 2 - 3"])
def test_a_binding_that_vllm_can_read_stands(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, value)
    with spawning({NICE: "5"}, 1, "x"):
        assert os.environ[THREADS] == value


@pytest.mark.parametrize("value", ["banana", "", "AUTO", "0-", "3-1", "0|", "0,,1", "1.5", "-1", "0 1", "²", "1-2-3"])
def test_a_binding_that_it_cannot_is_refused_by_name_with_what_it_takes(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THREADS, value)
    with pytest.raises(EngineStartFailed, match=r"VLLM_CPU_OMP_THREADS_BIND is .*`auto`, to `nobind`") as refused:
        spawning({NICE: "5"}, 1, "x").__enter__()
    assert repr(value) in str(refused.value)
    assert not binds(value)
    with spawning({}, 1, "x"):  # of an engine on a GPU, which does not read it
        assert os.environ[THREADS] == value
