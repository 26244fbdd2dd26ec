"""What is left after an erasure, as it is told."""

from __future__ import annotations

from dataplane.care.remains import by_kind


def test_of_what_is_left_of_one_kind_a_line_has_the_count_and_the_first_names() -> None:
    files = [(f"file-{number}", "still there.") for number in range(59)]
    assert by_kind("files", [*files, ("other", "cannot be read.")]) == [
        "files: 59 (file-0, file-1, file-2 and 56 more): still there.",
        "files: other: cannot be read.",
    ]
    assert by_kind("files", []) == []
