"""What /readyz says of one model, and of what is read meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from acu.http.audit import Hooks
from acu.http.health import ModelReadiness, _readiness
from agentflow.status import EngineState, EngineStatus, ModelStatus
from tests.acu.http.hostile import request
from tests.acu.http.raw import talk
from tests.acu.http.serving import serving


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


@pytest.mark.parametrize(("line", "told"), [("reading m: 5% at 900 MB/s", "reading m: 5% at 900 MB/s"), ("", None)])
async def test_readiness_tells_how_far_the_weights_are_read(line: str, told: str | None) -> None:
    async with serving(hooks=Hooks(preloading=lambda: line)) as served:
        answer = await talk(served, iter([request(method="GET", path="/readyz", content_type=None)]))
    assert msgspec.json.decode(answer.body)["preloading"] == told
