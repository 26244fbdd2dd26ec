"""The killer of runs, at a few of its moments: the whole of it takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import runkills


@pytest.mark.parametrize(
    ("moment", "outcomes"),
    [
        # In the second step, at the latest its end: nothing is booked yet. A slow disk may have kept nothing of the run.
        ("8", {"the same answer", "had not begun"}),
        ("16+", {"the same answer", "outcome unknown"}),  # about the booking
    ],
)
def test_a_run_that_is_killed_goes_on_and_contradicts_nothing(tmp_path: Path, moment: str, outcomes: set[str]) -> None:
    whole = "Step one. \n\nStep two 查. \n\nStep three.  Then I pay.\n\nStep four.  Paying now.\n\nAll is done. 再见"
    seen, code, _ = runkills.begin(tmp_path, moment)
    assert code == runkills.KILLED
    assert whole.startswith(seen)
    runkills.resume(tmp_path)
    assert runkills.check(tmp_path, seen, whole) in outcomes


def test_a_check_finds_what_is_wrong(tmp_path: Path) -> None:
    whole, code, appends = runkills.begin(tmp_path)
    assert code == 0
    assert appends >= 20  # with each step's words in one
    assert runkills.check(tmp_path, whole, whole) == "the same answer"
    with pytest.raises(runkills.Wrong, match="the client saw 'Something else'"):
        runkills.check(tmp_path, "Something else", whole)
    with pytest.raises(runkills.Wrong, match="the answer is"):
        runkills.check(tmp_path, "", "Another answer")
    (tmp_path / "booked").write_text("..")
    with pytest.raises(runkills.Wrong, match="booked 2 times"):
        runkills.check(tmp_path, whole, whole)
