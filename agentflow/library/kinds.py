"""What kind of file this is, by its name and by how it begins. Pure.

Content goes before the name: a PDF that is named `.txt` is a PDF, a ZIP archive that is named `.md` is refused. The name
decides between the kinds of text. What has an unknown name and looks like text is read as plain text.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from agentflow.library.errors import FileUnreadable, UnsupportedFile

HEAD_BYTES: Final = 4096
"""So many bytes of the beginning decide."""

KINDS: Final = frozenset({"text", "markdown", "code", "json", "jsonl", "csv", "html", "pdf"})

_PDF = b"%PDF-"
_PDF_WITHIN = 1024  # where readers look for the header, since files come with rubbish before it
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CODE = (
    "asm bash bat c cc cfg clj cmake conf cpp cs css cxx dart el env erl ex exs f90 fs go gradle groovy h hh hpp hs ini "
    "java jl js jsx kt less lisp lua m make mjs ml nim pas php pl pm proto ps1 py pyi r rb rs sass scala scm scss sh sql "
    "svg swift tcl tex tf toml ts tsx v vb vhdl vim vue xml xsd xsl yaml yml zig zsh"
)
_SUFFIXES = MappingProxyType(
    {
        **dict.fromkeys(_CODE.split(), "code"),
        **dict.fromkeys(("txt", "text", "log", "rst", "adoc", "org", "srt", "vtt"), "text"),
        **dict.fromkeys(("md", "markdown", "mdx"), "markdown"),
        **dict.fromkeys(("json", "geojson", "ipynb"), "json"),
        **dict.fromkeys(("jsonl", "ndjson"), "jsonl"),
        **dict.fromkeys(("csv", "tsv", "tab"), "csv"),
        **dict.fromkeys(("html", "htm", "xhtml"), "html"),
    }
)
# Only what tells a file from text that begins in the same way: the rest is known by its NUL bytes.
_FOREIGN = (
    (b"PK\x03\x04", "a ZIP archive (so are .docx, .xlsx, .pptx, .odt and .epub)"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"BZh91AY&SY", "compressed by bzip2"),
    (b"\xfd7zXZ\x00", "compressed by xz"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\xd0\xcf\x11\xe0", "an office document of the old kind (.doc, .xls, .ppt)"),
    (b"{\\rtf", "a rich text document"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"GIF87a", "an image"),
    (b"GIF89a", "an image"),
    (b"II*\x00", "an image"),
    (b"MM\x00*", "an image"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\x00", "a database"),
)
_READ_HERE = "plain text, Markdown, source code, JSON, JSONL, CSV, HTML and PDF can be read"


def kind_of(suffix: str, head: bytes) -> str:
    """One of KINDS for a file named `*suffix` (`.pdf`, or "") that begins with `head`, its first HEAD_BYTES.

    Raises UnsupportedFile for what is no text and no PDF, and FileUnreadable for what is only named a PDF.
    """
    suffix = suffix.lower().removeprefix(".")
    if _is_pdf(suffix, head):
        return "pdf"
    if suffix == "pdf":
        raise FileUnreadable("it is named a PDF and is none: it has no %PDF header; upload the original file")
    for magic, what in _FOREIGN:
        if head.startswith(magic):
            raise UnsupportedFile(f"it is {what}: {_READ_HERE}; convert it first")
    if b"\0" in head and not head.startswith(_UTF16):
        raise UnsupportedFile(f"it is binary data: {_READ_HERE}; if it is text in UTF-16, save it as UTF-8")
    return _SUFFIXES.get(suffix) or ("html" if _looks_like_html(head) else "text")


def _is_pdf(suffix: str, head: bytes) -> bool:
    if suffix == "pdf":
        return _PDF in head[:_PDF_WITHIN]
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(_PDF)


def _looks_like_html(head: bytes) -> bool:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:16].lower()
    return start.startswith((b"<!doctype html", b"<html"))
