"""What a file is, by its name and its beginning."""

from __future__ import annotations

import gzip
import io
import zipfile

import pytest

from agentflow.library.errors import FileUnreadable, UnsupportedFile
from agentflow.library.kinds import KINDS, kind_of


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        (".txt", "text"),
        ("", "text"),
        (".whatever", "text"),
        (".md", "markdown"),
        (".MD", "markdown"),
        (".py", "code"),
        (".yaml", "code"),
        (".json", "json"),
        (".jsonl", "jsonl"),
        (".csv", "csv"),
        (".tsv", "csv"),
        (".htm", "html"),
    ],
)
def test_the_name_decides_between_kinds_of_text(suffix: str, kind: str) -> None:
    assert kind_of(suffix, b"some, text") == kind
    assert kind in KINDS


@pytest.mark.parametrize("suffix", [".pdf", ".txt", ".md", ""])
def test_a_pdf_is_known_whatever_its_name(suffix: str) -> None:
    assert kind_of(suffix, b"%PDF-1.4\n%\xe2\xe3") == "pdf"


def test_rubbish_before_the_header_is_allowed_where_the_name_says_pdf() -> None:
    assert kind_of(".pdf", b"HTTP/1.1 200 OK\r\n\r\n%PDF-1.4") == "pdf"
    assert kind_of(".txt", b"the header is %PDF-1.4") == "text"


def test_what_is_only_named_a_pdf_is_refused() -> None:
    with pytest.raises(FileUnreadable, match=r"no %PDF header"):
        kind_of(".pdf", b"<html>not found</html>")


def test_a_page_without_a_telling_name_is_known_by_its_beginning() -> None:
    assert kind_of("", b"\xef\xbb\xbf\n <!DOCTYPE HTML><p>x") == "html"
    assert kind_of(".txt", b"<!doctype html>") == "text"


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        out.writestr("word/document.xml", "<x/>")
    return file.getvalue()


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (archive(), "ZIP archive .*docx"),
        (gzip.compress(b"x"), "gzip"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "office document"),
        (b"\x89PNG\r\n\x1a\n", "an image"),
        (b"{\\rtf1 x}", "rich text"),
        (b"text\0text", "binary data"),
        ("text".encode("utf-16-le"), "save it as UTF-8"),
    ],
)
@pytest.mark.parametrize("suffix", [".docx", ".md", ""])
def test_what_is_no_text_is_refused_and_named_whatever_it_is_called(head: bytes, words: str, suffix: str) -> None:
    with pytest.raises(UnsupportedFile, match=words) as caught:
        kind_of(suffix, head)
    assert caught.value.code == "unsupported_file"


@pytest.mark.parametrize("text", ["Rar! it said", "BZh is how it begins", "GIF8 bits", "PK was here"])
def test_text_that_begins_like_an_archive_is_text(text: str) -> None:
    assert kind_of(".txt", text.encode()) == "text"


def test_utf16_with_its_mark_is_text() -> None:
    assert kind_of(".txt", "hello".encode("utf-16")) == "text"
