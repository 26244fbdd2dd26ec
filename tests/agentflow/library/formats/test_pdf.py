"""Text of PDF pages."""

from __future__ import annotations

import mmap

import pytest

from agentflow.library.errors import FileTooLarge, FileUnreadable
from agentflow.library.formats.pdf import read_pdf
from agentflow.library.transcript import Transcript
from tests.agentflow.library.pdf_files import pdf


def read(data: bytes, most_pages: int = 100) -> tuple[str, tuple[int, int]]:
    mapped = mmap.mmap(-1, len(data))
    mapped.write(data)
    out = Transcript(1_000_000)
    told = read_pdf(mapped, most_pages, out)
    return out.text(), told


def test_pages_are_apart_by_form_feeds() -> None:
    assert read(pdf(["one", "", "three"])) == ("one\f\fthree", (3, 1))


def test_characters_outside_of_the_basic_plane_are_kept() -> None:
    assert read(pdf(["xAyB"])) == ("x😀y中", (1, 0))


def test_lines_are_kept_and_hyphenated_words_are_joined() -> None:
    page = b"BT /F1 12 Tf 72 720 Td (a hyphen-) Tj 0 -14 Td (ated word) Tj 0 -14 Td (last line) Tj ET"
    assert read(pdf([page])) == ("a hyphenated word\nlast line", (1, 0))


def test_the_page_limit_holds() -> None:
    assert read(pdf(["x"] * 100))[1] == (100, 0)
    with pytest.raises(FileTooLarge, match="101 pages, and 100 are the most"):
        read(pdf(["x"] * 101))


def test_a_broken_page_is_empty_and_the_others_are_read() -> None:
    whole = pdf(["one", "two", "three"])
    assert read(whole.replace(b"(two) Tj", b"(two( ))")) == ("one\f\fthree", (3, 1))


@pytest.mark.parametrize("keep", [9, 60, 300])
def test_a_document_that_was_cut_short_is_refused(keep: int) -> None:
    with pytest.raises(FileUnreadable, match="damaged PDF"):
        read(pdf(["one"])[:keep])


def test_a_document_without_its_table_of_objects_is_repaired() -> None:
    whole = pdf(["one", "two"])
    assert read(whole[: whole.rindex(b"xref")] + b"\ntrailer << /Root 1 0 R >>")[0] == "one\ftwo"


def test_an_encrypted_document_is_refused_by_name() -> None:
    owner, user = "<" + "41" * 32 + ">", "<" + "42" * 32 + ">"
    locked = pdf(
        ["one"], trailer=f"/Encrypt << /Filter /Standard /V 1 /R 2 /O {owner} /U {user} /P -4 >> /ID [<00> <00>]"
    )
    with pytest.raises(FileUnreadable, match="encrypted PDF: remove its password"):
        read(locked)
