"""A process that is killed loses nothing that it had acknowledged, undoes nothing and doubles nothing, whatever it was doing."""

from pathlib import Path

from benchmarks.crashes import Crashes
from benchmarks.crashmodel import Model


def test_kills_at_random_moments_lose_undo_and_double_nothing(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path, seed=7)
    crashes.run(kills=6, archive_every=3)
    assert crashes.problems == []
    assert crashes.moments.total() == 6
    assert crashes.model.acknowledged > 50


def heard(*lines: list[object]) -> Model:
    model = Model()
    for line in lines:
        model.hear(line)
    model.died()
    return model


def test_the_model_lets_what_was_in_flight_be_there_or_not_but_whole() -> None:
    lines: list[list[object]] = [
        ["begin", "a", 1, {"x": [1, None], "y": [1, None]}],
        ["done", "a", 1],
        ["begin", "a", 2, {"x": [2, None], "y": None}],
    ]
    assert heard(*lines).settle({"x": [1, None], "y": [1, None]}) == []
    assert heard(*lines).settle({"x": [2, None]}) == []
    assert heard(*lines).settle({"x": [2, None], "y": [1, None]}) != []
    assert heard(*lines).settle({"x": [1, None]}) != []


def test_the_model_notices_what_was_lost_undone_or_never_made() -> None:
    lines: list[list[object]] = [
        ["begin", "a", 1, {"x": 1}],
        ["begin", "a", 2, {"x": 2}],
        ["done", "a", 2],
        ["begin", "b", 3, {"z": 9}],
    ]
    assert heard(*lines).settle({"x": 2}) == []
    assert heard(*lines).settle({"x": 2, "z": 9}) == []
    assert heard(*lines).settle({}) != []
    assert heard(*lines).settle({"x": 1}) != []
    assert heard(*lines).settle({"x": 2, "other": 1}) == ["other is 1, and nobody made it"]


def test_the_model_goes_on_over_a_death_that_nobody_looked_at() -> None:
    model = heard(["begin", "a", 1, {"x": 1}], ["begin", "a", 2, {"y": 1}])
    model.hear(["begin", "a", 3, {"x": 3}])
    model.hear(["done", "a", 3])
    model.died()
    assert model.settle({"x": 3}) == []
    assert model.settle({"x": 3}) == []
    assert model.settle({"x": 3, "y": 1}) == ["y is 1, and nobody made it"]


def test_the_model_lets_a_row_expire_in_time_and_not_before() -> None:
    lines: list[list[object]] = [["begin", "a", 1, {"x": [1, 1]}], ["done", "a", 1]]
    assert heard(*lines).settle({}) == []
    assert heard(*lines).settle({"x": [1, 1]}) != []
    late: list[list[object]] = [["begin", "a", 1, {"x": [1, 1 << 60]}], ["done", "a", 1]]
    assert heard(*late).settle({"x": [1, 1 << 60]}) == []
    assert heard(*late).settle({}) != []
