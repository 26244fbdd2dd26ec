"""PDF files that are made for each test."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

GLYPHS = (
    b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def "
    b"1 begincodespacerange <00> <FF> endcodespacerange 2 beginbfchar <41> <D83DDE00> <42> <4E2D> endbfchar endcmap end end"
)
"""What the font's codes mean: A is an emoji outside of the basic plane, B a Chinese character."""


def pdf(pages: Sequence[str | bytes], *, compressed: bool = False, trailer: str = "") -> bytes:
    """A document. A page is a line of text, or the stream of its content (zlib's format if `compressed`)."""
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 4 0 R >>",
        _stream(GLYPHS),
    ]
    for number, page in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({page}) Tj ET".encode() if isinstance(page, str) else page
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "
            + f"/Contents {6 + 2 * number} 0 R >>".encode()
        )
        objects.append(_stream(content, "/Filter /FlateDecode" if compressed else ""))
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    out += (
        f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer << /Size {size} /Root 1 0 R {trailer} >>\n".encode()
        + (f"startxref\n{len(out)}\n%%EOF\n".encode())
    )
    return bytes(out)


def zeros(mebibytes: int) -> bytes:
    """A stream in zlib's format that inflates to so many MiB of zero bytes, a thousandth of that in size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    checksum = ((mebibytes << 20) % 65521) << 16 | 1  # Adler-32 of zero bytes
    return b"\x78\xda" + block * mebibytes + end + struct.pack(">I", checksum)


def _stream(content: bytes, entries: str = "") -> bytes:
    return f"<< /Length {len(content)} {entries} >>\nstream\n".encode() + content + b"\nendstream"
