"""What the parts of a form are called, and what a file that is sent should be called."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from acu.http.disposition import FILENAME_CHARS, PartHead, attachment, clean_filename, part_head
from acu.http.errors import BadRequest


def disposition(value: str, **more: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({"Content-Disposition": value, **more}))


@pytest.mark.parametrize(
    ("value", "head"),
    [
        ('form-data; name="file"; filename="a.txt"', PartHead("file", "a.txt")),
        ("FORM-DATA;name=file;filename=a.txt", PartHead("file", "a.txt")),
        ('form-data; name="purpose"', PartHead("purpose", None)),
        ('form-data; name="file"; filename="a;b;c=d.txt"', PartHead("file", "a;b;c=d.txt")),
        (r'form-data; name="file"; filename="a\"b\\c"', PartHead("file", 'a"b\\c')),
        ('form-data; name="file"; filename="say %22hi%22"', PartHead("file", 'say "hi"')),
        ('form-data; name="file"; filename="C:\\dir\\a.txt"', PartHead("file", "C:\\dir\\a.txt")),
        ('form-data; name="file"; filename=""', PartHead("file", "")),
        ('form-data; name="file"; filename="é.txt"', PartHead("file", "é.txt")),
        ('form-data; name="file"; filename="_.txt"; filename*=UTF-8\'\'%e2%82%ac.txt', PartHead("file", "€.txt")),
        ('form-data; name="file"; filename="_.txt"; filename*=latin-1\'\'%80', PartHead("file", "_.txt")),
    ],
)
def test_the_head_of_a_part_is_read_as_clients_write_it(value: str, head: PartHead) -> None:
    assert part_head(disposition(value)) == head


@pytest.mark.parametrize(
    "value",
    ["", "form-data", "attachment; name=a", 'form-data; name=""', "form-data; name=a; name=b", "form-data; name=a b"],
)
def test_the_head_of_a_part_without_a_name_is_refused(value: str) -> None:
    with pytest.raises(BadRequest):
        part_head(disposition(value))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("a.txt", "a.txt"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\x\\a.txt", "a.txt"),
        ("/etc/cron.d/job", "job"),
        ("Screenshot at 9.41\u202fPM.png", "Screenshot at 9.41\u202fPM.png"),
        ("x" * FILENAME_CHARS, "x" * FILENAME_CHARS),
    ],
)
def test_a_files_name_is_kept_without_its_folders(given: str, name: str) -> None:
    assert clean_filename(given) == name


@pytest.mark.parametrize(
    "given", [None, "", " ", ".", "..", "a/..", "a/", "a\0b", "a\nb", "a\x7f", "\udcff", "\u2028", "x" * 256]
)
def test_what_is_no_name_of_a_file_is_refused(given: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        clean_filename(given)
    assert caught.value.param == "file"


@pytest.mark.parametrize("filename", ["a.txt", 'a"b\\c%41;d.txt', "grüße €.md", "x; filename=y"])
def test_what_a_sent_file_is_called_is_read_as_it_was_meant(filename: str) -> None:
    header = attachment(filename)
    assert header.isascii()
    assert part_head(disposition(header.replace("attachment", "form-data; name=file"))) == PartHead("file", filename)
