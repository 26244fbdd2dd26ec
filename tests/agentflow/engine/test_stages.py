"""agentflow.engine.stages: what a start's stages took."""

from __future__ import annotations

from agentflow.engine.stages import Stages


def test_each_stage_takes_from_where_it_is_told_to_where_the_next_one_is() -> None:
    stages = Stages()
    for stage, now in (("importing", 10.0), ("importing", 12.0), ("loading", 19.5), ("warming", 20.0), (None, 22.25)):
        stages.reach(stage, now)
    assert stages.took() == {"importing": 9.5, "loading": 0.5, "warming": 2.25}


def test_a_stage_that_goes_on_is_not_counted_yet_and_one_that_comes_back_is_added_to() -> None:
    stages = Stages()
    assert stages.took() == {}
    for stage, now in (("a", 0.0), ("b", 1.0), ("a", 3.0), ("b", 7.0)):
        stages.reach(stage, now)
    assert stages.took() == {"a": 5.0, "b": 2.0}
    stages.reach(None, 8.0)
    stages.reach(None, 9.0)
    assert stages.took() == {"a": 5.0, "b": 3.0}
