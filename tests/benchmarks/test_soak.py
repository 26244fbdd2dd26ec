"""What the soak makes of its samples, and the rows that it stores."""

import numpy as np
import pytest

from benchmarks.report import NotMeasured
from benchmarks.soak import MIB, Curve, Sample
from benchmarks.soaking import DIMENSIONS, Maker


def samples() -> list[Sample]:
    filling = [Sample(at, "filling", (100 + at) * MIB, 50 * MIB, 1000 * at, 0) for at in range(30)]
    mixed = [Sample(at, "mixed", 200 * MIB, 60 * MIB, 30_000 + 10 * at, at // 100) for at in range(30, 130)]
    return [*filling, *mixed, Sample(130, "closing", 150 * MIB, 60 * MIB, 31_300, 1)]


def test_the_curve_is_cut_into_the_filling_and_minutes_of_the_load() -> None:
    parts = Curve(samples()).minutes()
    assert [(name, len(part)) for name, part in parts] == [
        ("filling", 30),
        ("minute 1", 60),
        ("minute 2", 40),
        ("closing", 1),
    ]


def test_figures_are_of_the_samples_and_rates_of_their_time() -> None:
    curve = Curve(samples())
    figures = curve.figures(dict(curve.minutes())["filling"])
    assert (figures["min"], figures["median"], figures["max"], figures["counted"]) == (100, 114, 129, 50)
    assert figures["ops_s"] == 1000
    assert curve.figures(dict(curve.minutes())["minute 1"])["errors"] == 0
    assert curve.figures(curve.samples)["max"] == 200
    assert curve.figures(curve.samples)["errors"] == 1


def test_the_report_has_a_row_for_each_part_and_the_limit() -> None:
    report = Curve(samples()).report(200)
    assert "stay below 350" in report
    assert [line.split("  ")[0].strip() for line in report.splitlines()[-5:]] == [
        "filling",
        "minute 1",
        "minute 2",
        "closing",
        "all",
    ]


def test_no_samples_are_no_figures() -> None:
    with pytest.raises(NotMeasured):
        Curve().figures([])


def test_made_rows_are_of_length_one_and_differ() -> None:
    maker = Maker(3)
    made = maker.rows([1, 2, 23])
    assert [row.id for row in made] == ["r1", "r2", "r23"]
    assert [row.attributes["bucket"] for row in made] == [1, 2, 3]
    vectors = np.stack([row.vector for row in made])
    assert vectors.shape == (3, DIMENSIONS)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert all(row.text and len(row.text.split()) == 12 for row in made)
