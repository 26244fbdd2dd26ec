"""The environment in which vLLM's processes are spawned, and the daemon's own before and after."""

import os

import pytest

from agentflow.engine.vllm.spawning import THREADS, spawning


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
