"""CSV and TSV: each record becomes lines of `header: value`, and records are apart by an empty line.

So a chunk that holds one record says what its values mean, and a search for "colour: red" finds it. The first row is the
header. Values without a header stand alone; empty ones are left out. A file of one row is given as it is.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from agentflow.library.errors import FileUnreadable
from agentflow.library.transcript import Transcript

_DELIMITERS = (",", ";", "\t", "|")
_FIRST_LINE = 1 << 16  # characters of it that are looked at


def read_table(text: str, out: Transcript) -> None:
    """Write the records of `text` to `out`. Raises FileUnreadable, with the line, for what is no CSV."""
    csv.field_size_limit(len(text) + 1)  # the text is bounded already; the module's own limit is 128 KiB
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    rows = _rows(csv.reader(io.StringIO(text), delimiter=_delimiter(text)))
    header = [name.strip() for name in next(rows, [])]
    alone = True
    for row in rows:
        alone = False
        _write(header, row, out)
    if alone:
        out.add("\n".join(header))


def _rows(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Rows that hold something."""
    line = 0
    try:
        for line, row in enumerate(reader, 1):  # noqa: B007 - the error tells it
            if any(value.strip() for value in row):
                yield row
    except csv.Error as error:
        raise FileUnreadable(
            f"it is no valid CSV after record {line:,} ({error}): correct it, or name it .txt"
        ) from error


def _write(header: list[str], row: list[str], out: Transcript) -> None:
    for column, value in enumerate(row):
        if value := value.strip():
            name = header[column] if column < len(header) else ""
            out.add(f"{name}: {value}\n" if name else f"{value}\n")
    out.add("\n")


def _delimiter(text: str) -> str:
    """The one that stands most often in the first line outside of quotes."""
    end = text.find("\n")
    line = text[: min(end if end >= 0 else len(text), _FIRST_LINE)]
    unquoted = "".join(line.split('"')[::2])
    return max(_DELIMITERS, key=unquoted.count)
