"""The tree of errors."""

from __future__ import annotations

import pytest

from agentflow.errors import EngineDied, EngineFailure, EngineStalled, SequenceFailed


@pytest.mark.parametrize("kind", [EngineDied, EngineStalled, SequenceFailed])
def test_a_failure_that_is_raised_again_and_again_does_not_grow(kind: type[EngineFailure]) -> None:
    failure, cause = kind("the engine's process ended"), OSError("the pipe broke")
    failure.__cause__ = cause
    for _ in range(3):
        with pytest.raises(kind, match="^the engine's process ended$") as caught:
            raise failure.again()
        assert type(caught.value) is kind
        assert caught.value.__cause__ is cause
    assert failure.__traceback__ is None
