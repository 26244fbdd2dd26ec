"""`python -I extractor.py PARENT SUFFIX LIMITS FILE`: read the text of a file, as the child of an Extractor.

PARENT is the process id that it dies with, SUFFIX the name's (`.pdf`, or empty), LIMITS a JSON object with the fields of
ExtractionLimits. Standard output is a file. On it go one line of JSON and then, if all went well, the text in UTF-8:

    {"kind": "pdf", "pages": 12, "notes": ["..."]}          or, for a file that is refused:
    {"code": "file_too_large", "message": "..."}

Nothing is written before all is known, so a child that is killed has said nothing. An error of its own ends it with a
traceback on standard error. Started by its path and isolated (-I), so that nothing in the working folder or in the
environment is imported by mistake; the parsers are imported when a file needs them.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # where `agentflow` is, installed or not

from agentflow.library.confinement import confine
from agentflow.library.decoding import decode
from agentflow.library.errors import FileRefused, FileTooLarge, FileUnreadable
from agentflow.library.kinds import HEAD_BYTES, kind_of
from agentflow.library.limits import ExtractionLimits
from agentflow.library.transcript import Transcript


class Answer(NamedTuple):
    """The first line of what is written, and the text."""

    head: dict[str, Any]
    text: str = ""


def main() -> None:
    """Confine this process, read the file, write the answer."""
    parent, suffix, settings, path = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    limits = ExtractionLimits(**json.loads(settings))
    confine(parent, limits)
    try:
        answer = _read(path, suffix, limits)
        written = answer.text.encode()
    except MemoryError:
        refusal = FileTooLarge(f"reading it takes more than {limits.memory_bytes:,} bytes of memory: split it")
        answer, written = _refused(refusal), b""
    except FileRefused as refusal:
        answer, written = _refused(refusal), b""
    with open(1, "wb", closefd=False) as out:
        out.write(json.dumps(answer.head).encode() + b"\n")
        out.write(written)
    sys.stderr.flush()
    os._exit(0)  # nothing is worth tidying up, and a damaged document may crash when it is


def _refused(refusal: FileRefused) -> Answer:
    return Answer({"code": refusal.code, "message": str(refusal)})


def _read(path: str, suffix: str, limits: ExtractionLimits) -> Answer:
    with open(path, "rb") as file:  # noqa: PTH123 - no Path, which may not hold what a name on disk holds
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise FileUnreadable("it is empty: upload a file with text in it")
        if size > limits.file_bytes:
            raise FileTooLarge(f"it has {size:,} bytes, and {limits.file_bytes:,} are the most that are read: split it")
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    kind = kind_of(suffix, data[:HEAD_BYTES])
    out = Transcript(limits.text_bytes)
    pages: int | None = None
    notes: list[str] = []
    if kind == "pdf":
        pages, notes = _read_pdf(data, limits, out)
    else:
        _read_text(kind, data, limits, out)
    text = out.text()
    if not text.strip():
        raise FileUnreadable("no text was found in it: " + _why_no_text(kind))
    return Answer({"kind": kind, "pages": pages, "notes": notes}, text)


def _read_pdf(data: mmap.mmap, limits: ExtractionLimits, out: Transcript) -> tuple[int, list[str]]:
    from agentflow.library.formats.pdf import read_pdf

    pages, empty = read_pdf(data, limits.pages, out)
    return pages, [f"{empty:,} of {pages:,} pages have no text (they may be images)"] if empty else []


def _read_text(kind: str, data: mmap.mmap, limits: ExtractionLimits, out: Transcript) -> None:
    if (
        kind in ("text", "markdown", "code", "csv") and len(data) > 2 * limits.text_bytes + 2
    ):  # UTF-16 may be twice as long
        raise FileTooLarge(f"its text is longer than {limits.text_bytes:,} bytes: split the file into smaller ones")
    text = decode(data)
    data.close()
    if kind == "html":
        from agentflow.library.formats.markup import read_html

        read_html(text, out)
    elif kind == "csv":
        from agentflow.library.formats.tables import read_table

        read_table(text, out)
    elif kind in ("json", "jsonl"):
        from agentflow.library.formats.records import read_json, read_jsonl

        (read_json if kind == "json" else read_jsonl)(text, out)
    else:
        out.add(text)


def _why_no_text(kind: str) -> str:
    if kind == "pdf":
        return "its pages are probably images; run a text recognition (OCR) over it first"
    return "upload a file with text in it"


if __name__ == "__main__":
    main()
