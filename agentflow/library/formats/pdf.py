"""PDF: the text of each page, with a form feed between pages, so that a passage's page can be counted.

The library is used by its C interface. It is started without the machine's fonts: text needs none, and a file must not
make the child read them. The page count is looked at before any page is.

When the library is refused memory it ends the process by an abort, which the parent knows by its signal.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Any

import pypdfium2_raw as pdfium  # type: ignore[import-untyped]

from agentflow.library.errors import FileTooLarge, FileUnreadable
from agentflow.library.transcript import Transcript

PAGE_BREAK = "\f"

_HYPHEN_AT_LINE_END = "\x02"
_EVERYWHERE = (-1e9, 1e9, 1e9, -1e9)  # left, top, right, bottom


def read_pdf(data: mmap, most_pages: int, out: Transcript) -> tuple[int, int]:
    """Write the text of `data`, a file mapped copy-on-write. Gives the pages, and how many of them have no text.

    Raises FileUnreadable for a broken or encrypted file, FileTooLarge for more than `most_pages`.
    """
    no_fonts = (ctypes.POINTER(ctypes.c_char) * 1)()
    pdfium.FPDF_InitLibraryWithConfig(pdfium.FPDF_LIBRARY_CONFIG(version=2, m_pUserFontPaths=no_fonts))
    buffer = (ctypes.c_char * len(data)).from_buffer(data)
    document = pdfium.FPDF_LoadMemDocument64(buffer, len(data), None)
    if not document:
        raise _why_not_loaded()
    pages = pdfium.FPDF_GetPageCount(document)
    if pages < 1:
        raise FileUnreadable("it is a damaged PDF, without pages: open and save it with another program")
    if pages > most_pages:
        raise FileTooLarge(f"it has {pages:,} pages, and {most_pages:,} are the most that are read: split it")
    empty = 0
    for number in range(pages):
        text = _page_text(document, number)
        empty += not text.strip()
        out.add(text if number == 0 else PAGE_BREAK + text)
    return pages, empty


def _why_not_loaded() -> FileUnreadable:
    if pdfium.FPDF_GetLastError() in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY):
        return FileUnreadable("it is an encrypted PDF: remove its password and upload it again")
    return FileUnreadable("it is a damaged PDF: open and save it with another program, and upload that")


def _page_text(document: Any, number: int) -> str:
    """Text of one page, and "" for a page that is broken."""
    with _opened(pdfium.FPDF_LoadPage(document, number), pdfium.FPDF_ClosePage) as page:
        if not page:
            return ""
        with _opened(pdfium.FPDFText_LoadPage(page), pdfium.FPDFText_ClosePage) as text:
            return _read(text) if text else ""


@contextmanager
def _opened(handle: Any, close: Any) -> Iterator[Any]:
    """Close what was opened, so that the memory of one page at a time is held."""
    try:
        yield handle
    finally:
        if handle:
            close(handle)


def _read(text: Any) -> str:
    """All text, by its place on the page: the other way of asking loses what lies outside of the basic plane."""
    units = pdfium.FPDFText_GetBoundedText(text, *_EVERYWHERE, None, 0)
    if units <= 0:
        return ""
    buffer = (ctypes.c_ushort * units)()
    pdfium.FPDFText_GetBoundedText(text, *_EVERYWHERE, buffer, units)
    found = bytes(buffer).decode("utf-16-le", "replace")
    return found.replace(_HYPHEN_AT_LINE_END, "").replace("\f", " ").replace("\r\n", "\n")
