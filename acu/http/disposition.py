"""Content-Disposition: what the parts of a form are called, and what a file that is sent should be called. Pure.

Read strictly, and without a word to the log: names are quoted as browsers and RFC 7578 have it (`%22` for a quotation
mark), or in the manner of RFC 5987 (`filename*`). A file's name is a label here and nothing else, yet it is kept clean.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote, unquote

from msgspec import Struct
from multidict import CIMultiDictProxy

from acu.http.errors import BadRequest

FILE_FIELD = "file"
FILENAME_CHARS = 255

_PARAMETER = re.compile(r'\s*;\s*(?P<key>[A-Za-z]+\*?)\s*=\s*(?P<value>"(?:[^"\\]|\\.)*"|[^\s;"]+)\s*')
_PLAIN_ENCODINGS = ("", "7bit", "8bit", "binary")


class PartHead(Struct, frozen=True):
    """What a part is called. `filename` is None for a text."""

    name: str
    filename: str | None


def part_head(headers: CIMultiDictProxy[str]) -> PartHead:
    """What a part's headers say. Raises BadRequest for what is no part of a form, or is encoded."""
    if headers.get("Content-Transfer-Encoding", "").lower() not in _PLAIN_ENCODINGS or "Content-Encoding" in headers:
        raise BadRequest("A part of the form is encoded; send the file's bytes as they are.", code="invalid_form")
    given = headers.getall("Content-Disposition", [])
    parameters = _disposition(given[0]) if len(given) == 1 else {}
    name = parameters.get("name")
    if not name:
        raise BadRequest(
            "A part of the form has no 'Content-Disposition: form-data; name=\"...\"'.", code="invalid_form"
        )
    return PartHead(name, _wide_filename(parameters) or parameters.get("filename"))


def clean_filename(filename: str | None) -> str:
    """The name of a file without the folders that some clients send with it. Raises BadRequest for what is no name."""
    if filename is None:
        raise BadRequest(f"'{FILE_FIELD}' must be a file: its part of the form needs a 'filename'.", param=FILE_FIELD)
    name = filename.replace("\\", "/").rpartition("/")[2].strip()
    if not name or name in (".", ".."):
        raise BadRequest("The file has no name.", param=FILE_FIELD, code="invalid_filename")
    if len(name) > FILENAME_CHARS:
        raise BadRequest(
            f"The file's name is longer than {FILENAME_CHARS} characters.", param=FILE_FIELD, code="invalid_filename"
        )
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in name):  # Cs: bytes that are no UTF-8
        raise BadRequest(
            "The file's name must be UTF-8 without control characters.", param=FILE_FIELD, code="invalid_filename"
        )
    return name


def attachment(filename: str) -> str:
    """The header of a file that is to be saved and not shown, with its name for clients old and new."""
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%' else "_" for char in filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


def _disposition(value: str) -> dict[str, str]:
    """The parameters of `form-data; ...`; none where it is anything else. Quoted as browsers and RFC 7578 have it."""
    kind, _, _ = value.partition(";")
    if kind.strip().lower() != "form-data":
        return {}
    parameters: dict[str, str] = {}
    at = len(kind)
    while at < len(value):
        found = _PARAMETER.match(value, at)
        if found is None or found["key"].lower() in parameters:
            return {}
        text = found["value"]
        if text.startswith('"'):
            text = re.sub(r"\\([\"\\])", r"\1", text[1:-1])
            text = text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")
        parameters[found["key"].lower()] = text
        at = found.end()
    return parameters


def _wide_filename(parameters: dict[str, str]) -> str | None:
    """The `filename*` of RFC 5987: `UTF-8''%e2%82%ac.txt`."""
    charset, quote, rest = parameters.get("filename*", "").partition("'")
    if not quote or charset.lower() != "utf-8":
        return None
    return unquote(rest.partition("'")[2], errors="surrogateescape")
