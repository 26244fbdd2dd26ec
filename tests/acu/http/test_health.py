"""What /readyz says of one model."""

from __future__ import annotations

import pytest

from acu.http.health import ModelReadiness, _readiness
from agentflow.status import EngineState, EngineStatus, ModelStatus


def model(*engines: EngineStatus, ready: bool = False) -> ModelStatus:
    """A model with these engines."""
    return ModelStatus("m", (), "chat", ready, 0, engines, None, 0, 0)


@pytest.mark.parametrize(
    ("state", "stage", "told"),
    [
        ("starting", "loading weights", ("loading weights", 0.5)),
        ("backing_off", "", ("backing_off", 0.5)),
        ("ready", "serving", ("restarting", None)),
    ],
)
def test_a_model_that_is_not_ready_never_calls_itself_so(
    state: EngineState, stage: str, told: tuple[str, float | None]
) -> None:
    found = _readiness(model(EngineStatus("m/0", state, stage, 0.5)))
    assert found == ModelReadiness("m", ready=False, stage=told[0], fraction=told[1])


def test_the_engine_that_is_farthest_speaks_for_the_model() -> None:
    slow, fast = EngineStatus("m/0", "starting", "slow", 0.1), EngineStatus("m/1", "starting", "fast", 0.9)
    assert _readiness(model(slow, fast)).stage == "fast"
    assert _readiness(model(slow, fast, ready=True)).stage == "ready"
