"""Text of files, through the real child process."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from agentflow.errors import InvalidRequest
from agentflow.library.errors import ExtractionFailed, FileRefused, FileTooLarge, FileUnreadable, UnsupportedFile
from agentflow.library.extraction import Extracted, Extractor
from agentflow.library.limits import ExtractionLimits
from tests.agentflow.library.pdf_files import pdf, zeros

LIMITS = ExtractionLimits(memory_bytes=512 << 20, text_bytes=1 << 20, file_bytes=200 << 20, cpu_s=20, wall_s=40)
Read = Callable[[str, bytes], Awaitable[Extracted]]


@pytest.fixture
async def extractor() -> AsyncIterator[Extractor]:
    extractor = Extractor(LIMITS)
    yield extractor
    extractor.close()


@pytest.fixture
def read(extractor: Extractor, tmp_path: Path) -> Read:
    """The text of a file of that name and content, which lies on the disk under another name."""

    async def read(filename: str, data: bytes) -> Extracted:
        path = tmp_path / "stored é 中"
        path.write_bytes(data)
        return await extractor.extract(path, filename)

    return read


def children(pid: int | None = None) -> list[int]:
    """The extractors that a process has, dead ones that nobody reaped included."""
    pid = pid or os.getpid()
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"extractor.py" in command or not command:  # a zombie has no command line
                found.append(int(child))
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("filename", "data", "text", "kind"),
    [
        ("a.txt", b"one\r\ntwo", "one\ntwo", "text"),
        ("README", "中文 😀".encode("utf-16"), "中文 😀", "text"),
        ("a.MD", b"\xef\xbb\xbf# Head", "# Head", "markdown"),
        ("a.py", b"def f():\n\treturn 1\n", "def f():\n\treturn 1", "code"),
        ("a.json", b'{"a": {"b": "\\ud83d\\ude00\\u0000"}}', "a.b: 😀", "json"),
        ("a.jsonl", b'{"a": 1}\n{"a": 2}', "a: 1\n\na: 2", "jsonl"),
        ("a.csv", b"x,y\n1,2\n", "x: 1\ny: 2", "csv"),
        ("a.html", b"<p>one<p>two", "one\n\ntwo", "html"),
        ("a.b.pdf", pdf(["one", "two"]), "one\ftwo", "pdf"),
        ("a.txt", pdf(["one"]), "one", "pdf"),
        ("\0\ud800" + "x" * 9000 + ".html", b"<p>odd name", "odd name", "html"),
    ],
)
async def test_each_kind_of_file_is_read(read: Read, filename: str, data: bytes, text: str, kind: str) -> None:
    extracted = await read(filename, data)
    assert (extracted.text, extracted.kind) == (text, kind)
    assert extracted.pages == (text.count("\f") + 1 if kind == "pdf" else None)
    assert extracted.notes == ()
    assert children() == []


async def test_pages_without_text_are_told(read: Read) -> None:
    extracted = await read("scan.pdf", pdf(["one", "", ""]))
    assert extracted.notes == ("2 of 3 pages have no text (they may be images)",)


@pytest.mark.parametrize(
    ("filename", "data", "error", "words"),
    [
        ("a.zip", b"PK\x03\x04" + bytes(100), UnsupportedFile, "^a.zip cannot be read: it is a ZIP archive"),
        ("a.md", gzip.compress(bytes(10 << 20)), UnsupportedFile, "gzip"),
        ("a.txt", b"x" * 5000 + b"\0", UnsupportedFile, "NUL byte at offset 5,000"),
        ("a.txt", "é".encode("latin-1"), FileUnreadable, "not in UTF-8"),
        ("a.json", b"{", FileUnreadable, "no valid JSON"),
        ("a.pdf", b"%PDF-1.7 rubbish", FileUnreadable, "damaged PDF"),
        ("a.pdf", pdf(["", ""]), FileUnreadable, "no text was found in it: .*OCR"),
        ("a.txt", b" \n", FileUnreadable, "no text was found"),
        ("a.txt", b"", FileUnreadable, "is empty"),
        ("a\n\x1b.txt", b"", FileUnreadable, r"^a\?\?.txt cannot be read"),
        ("a.json", b"[" * 1_000_000, FileTooLarge, "nested"),
        ("a.html", b"<div>" * 1_000_000, FileTooLarge, "nested"),
        ("a.txt", b"x" * ((1 << 20) + 1), FileTooLarge, "longer than 1,048,576 bytes"),
        ("a.txt", b"x" * (3 << 20), FileTooLarge, "longer than 1,048,576 bytes"),
        ("a.csv", b"value," * (100 << 20 >> 3), FileTooLarge, "longer than 1,048,576 bytes"),
        ("a.json", b"[" + b"{}," * (60 << 20 >> 2) + b"1]", FileTooLarge, "bytes of memory"),
    ],
)
async def test_what_cannot_be_read_is_refused_with_a_reason(
    read: Read, filename: str, data: bytes, error: type[FileRefused], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        await read(filename, data)
    assert type(caught.value) is error
    assert isinstance(caught.value, InvalidRequest)
    assert (caught.value.code, caught.value.param) == (error.CODE, "file")
    assert children() == []


async def test_a_document_of_ten_thousand_pages_is_refused_before_its_pages_are_read(tmp_path: Path) -> None:
    extractor, path = Extractor(ExtractionLimits(cpu_s=3)), tmp_path / "stored"
    path.write_bytes(pdf(["x"] * 10_000))
    with pytest.raises(FileTooLarge, match="long.pdf cannot be read: it has 10,000 pages, and 2,000 are the most"):
        await extractor.extract(path, "long.pdf")
    extractor.close()


async def test_a_document_that_inflates_to_gigabytes_is_refused_for_its_memory(read: Read) -> None:
    bomb = pdf([zeros(4096)], compressed=True)
    assert len(bomb) < 8 << 20
    with pytest.raises(FileTooLarge, match="bomb.pdf takes more than 536,870,912 bytes of memory"):
        await read("bomb.pdf", bomb)


async def test_a_file_over_the_limit_of_bytes_is_not_read(extractor: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    with path.open("wb") as file:
        file.truncate(LIMITS.file_bytes + 1)
    with pytest.raises(FileTooLarge, match="209,715,201 bytes, and 209,715,200 are the most"):
        await extractor.extract(path, "a.txt")


async def test_a_file_that_takes_too_long_to_compute_is_refused(tmp_path: Path) -> None:
    extractor, path = Extractor(ExtractionLimits(cpu_s=1)), tmp_path / "stored"
    path.write_bytes(b"<div></x>" * 200_000)  # as deep as it is long, and not known by counting tags
    with pytest.raises(FileTooLarge, match="slow.html takes more than 1 s of a processor"):
        await extractor.extract(path, "slow.html")
    extractor.close()


async def test_an_element_with_a_great_many_attributes_is_refused_early(read: Read) -> None:
    page = "<p " + " ".join(f"a{n}=1" for n in range(60_000)) + ">hello</p>"
    with pytest.raises(FileTooLarge, match=r"a\.html has HTML that takes too long to read"):
        await read("a.html", page.encode())


async def test_elements_closed_in_the_wrong_order_are_refused_early(read: Read) -> None:
    with pytest.raises(FileTooLarge, match=r"a\.html has HTML that takes too long to read"):
        await read("a.html", b"<a><b><i>x</a></x></x>" * 60_000)


async def test_a_large_page_of_nothing_but_tags_is_read(read: Read) -> None:
    assert (await read("a.html", b"<p>x" * 100_000)).text.count("x") == 100_000


async def test_a_child_that_somebody_kills_is_not_told_as_too_large(extractor: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    os.mkfifo(path)
    extracting = asyncio.ensure_future(extractor.extract(path, "pipe.txt"))
    await until(children)
    os.kill(children()[0], signal.SIGKILL)
    with pytest.raises(ExtractionFailed, match=r"pipe\.txt was not read to its end: its reader was ended from outside"):
        await extracting


async def test_a_file_that_never_ends_is_refused_and_its_child_killed(tmp_path: Path) -> None:
    extractor, path = Extractor(ExtractionLimits(wall_s=0.3)), tmp_path / "stored"
    os.mkfifo(path)
    with pytest.raises(FileTooLarge, match="pipe.txt takes more than 0.3 s"):
        await extractor.extract(path, "pipe.txt")
    assert children() == []
    extractor.close()


async def test_a_file_that_is_not_there_is_nobodys_fault_but_ours(extractor: Extractor, tmp_path: Path) -> None:
    with pytest.raises(ExtractionFailed, match="a.txt was not read.*No such file") as caught:
        await extractor.extract(tmp_path / "gone", "a.txt")
    assert not isinstance(caught.value, InvalidRequest)


async def test_a_cancelled_extraction_ends_with_its_child_dead_and_reaped(extractor: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    os.mkfifo(path)
    task = asyncio.create_task(extractor.extract(path, "a.txt"))
    await until(children)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == []
    path.unlink()
    path.write_bytes(b"next")
    assert (await extractor.extract(path, "a.txt")).text == "next"


async def test_one_that_is_cancelled_at_once_leaves_nothing(extractor: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    os.mkfifo(path)
    for turns in range(8):
        task = asyncio.create_task(extractor.extract(path, "a.txt"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == []


async def test_no_more_run_at_once_than_allowed_and_a_waiting_one_can_be_cancelled(tmp_path: Path) -> None:
    extractor, path = Extractor(LIMITS, concurrency=2), tmp_path / "stored"
    os.mkfifo(path)
    tasks = [asyncio.create_task(extractor.extract(path, "a.txt")) for _ in range(4)]
    await until(lambda: len(children()) == 2)
    tasks[3].cancel()
    await asyncio.wait([tasks[3]])
    assert [task.done() for task in tasks] == [False, False, False, True]
    assert len(children()) == 2
    extractor.close()
    for task in tasks[:3]:
        with pytest.raises((ExtractionFailed, asyncio.CancelledError)):
            await task
    assert children() == []


def test_it_works_on_the_daemons_loop(tmp_path: Path) -> None:
    path = tmp_path / "stored"
    path.write_bytes(b"text")

    async def several() -> list[Extracted]:
        extractor = Extractor(LIMITS)
        try:
            return await asyncio.gather(*(extractor.extract(path, f"{number}.txt") for number in range(3)))
        finally:
            extractor.close()

    assert [extracted.text for extracted in uvloop.run(several())] == ["text"] * 3


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "stored"
    os.mkfifo(path)
    program = (
        "import asyncio, sys; from pathlib import Path; from agentflow.library.extraction import Extractor\n"
        "asyncio.run(Extractor().extract(Path(sys.argv[1]), 'a.txt'))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=Path(__file__).resolve().parents[3])
    deadline = time.monotonic() + 20
    while not (found := children(parent.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    status = Path(f"/proc/{found[0]}/status")
    while "stored" not in Path(f"/proc/{found[0]}/cmdline").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # so that it has reached the file, where it waits
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while status.exists() and "State:\tZ" not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_the_child_imports_little() -> None:
    program = Path(__file__).resolve().parents[3] / "agentflow/library/extractor.py"
    code = (
        f"import runpy, sys, json; sys.path.append({str(program.parents[2])!r}); runpy.run_path({str(program)!r})\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout))
    assert modules.isdisjoint({"asyncio", "msgspec", "numpy", "pypdfium2_raw", "selectolax", "subprocess", "threading"})
