"""How far a start is: never less than before, never more than all, and in proportion to what is known."""

from __future__ import annotations

import itertools

import pytest

from agentflow.engine.protocol import StartProgress
from agentflow.engine.vllm.startup import Startup, expected_seconds

STAGES = {"importing": 5.0, "loading": 4.0, "warming": 1.0}


class Told(list[StartProgress]):
    @property
    def fractions(self) -> list[float]:
        return [progress.fraction or 0.0 for progress in self]


def test_a_stage_begins_where_those_before_it_end() -> None:
    told = Told()
    startup = Startup(STAGES, told.append)
    for stage in STAGES:
        startup.reach(stage)
    assert told == [StartProgress("importing", 0.0), StartProgress("loading", 0.5), StartProgress("warming", 0.9)]
    assert startup.stage == "warming"


def test_the_part_of_a_stage_counts_for_its_share() -> None:
    told = Told()
    startup = Startup(STAGES, told.append)
    for part in (0.0, 0.25, 1.0):
        startup.reach("loading", part)
    assert told.fractions == [0.5, 0.6, 0.9]


def test_the_same_again_and_less_than_a_hundredth_more_is_not_told() -> None:
    told = Told()
    startup = Startup(STAGES, told.append)
    for part in (0.5, 0.5, 0.501):
        startup.reach("importing", part)
    assert told.fractions == [0.25]


@pytest.mark.parametrize("order", list(itertools.permutations([*STAGES, "unheard of"])))
def test_it_never_falls_nor_passes_the_whole_in_whatever_order_stages_come(order: tuple[str, ...]) -> None:
    told = Told()
    startup = Startup(STAGES, told.append)
    for stage in order:
        for part in (-1.0, 0.5, 7.0):
            startup.reach(stage, part)
    assert told.fractions == sorted(told.fractions)
    assert told.fractions[-1] == 1.0
    assert [stage for stage, _ in itertools.groupby(progress.stage for progress in told)] == list(order)


def test_large_weights_and_compiling_take_their_part_of_the_time() -> None:
    small = expected_seconds(270_000_000, compiled=False)
    large = expected_seconds(16_000_000_000, compiled=True)
    assert small["loading"] < 0.05 * sum(small.values())
    assert large["loading"] > large["importing"] + large["initializing"]
    assert large["warming"] > 10 * small["warming"]
    assert list(small) == list(large)
