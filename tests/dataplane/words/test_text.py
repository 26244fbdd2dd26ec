"""The full-text index: what it finds, and what crashes, damage and a full disk leave of it."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dataplane.errors import Closed, Damaged, StorageFull, Unavailable
from dataplane.words.segment import words
from dataplane.words.text import FEW_ROWS, FREQUENT, MAX_QUERY_ROWS, MAX_QUERY_WORDS, Rows, TextIndex, deciding_words
from tests.dataplane.killing import killed

TEXTS = [
    "The cat sat on the mat.",
    "A dog chased the cat.",
    "上海的天气很好。",
    "北京有一只猫。",
    "",
    "Straße nach Köln, 2024",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "text.db"


@pytest.fixture
def index(path: Path) -> Iterator[TextIndex]:
    index = TextIndex.open(path)
    index.add(list(enumerate(TEXTS)), [], seq=6)
    yield index
    index.close()


def found(index: TextIndex, query: str, limit: int = 10) -> list[int]:
    return [number for number, _ in index.search(query, limit)]


def test_a_new_index_is_empty_and_built_up_to_nothing(path: Path) -> None:
    index = TextIndex.open(path)
    assert (index.seq, index.count(), index.search("cat", 10)) == (0, 0, [])
    index.close()


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("cat", [0, 1]),
        ("CAT mat", [0, 1]),
        ("dog", [1]),
        ("上海明天天气怎么样", [2]),
        ("猫", [3]),
        ("天", [2]),
        ("strasse", [5]),
        ("köln", [5]),
        ("koln", []),
        ("elephant", []),
        ("", []),
        ("?!", []),
    ],
)
def test_a_query_finds_the_rows_that_have_its_words(index: TextIndex, query: str, rows: list[int]) -> None:
    assert sorted(found(index, query)) == rows


def test_scores_are_over_0_and_fall_and_more_words_are_better(index: TextIndex) -> None:
    ranked = index.search("cat on a mat", 10)
    assert [number for number, _ in ranked] == [0, 1]
    assert ranked[0][1] > ranked[1][1] > 0


def test_a_limit_is_kept(index: TextIndex) -> None:
    assert found(index, "cat", 1) == found(index, "cat")[:1]
    assert found(index, "cat", 0) == found(index, "cat", -1) == []


@pytest.mark.parametrize(
    "query",
    [
        'cat" OR "dog',
        "NOT cat",
        "words : cat",
        "cat AND elephant",
        "NEAR(cat dog)",
        "^cat",
        "c*",
        "cat')--",
        "{cat}",
        "-cat",
    ],
)
def test_a_query_is_never_read_as_syntax(index: TextIndex, query: str) -> None:
    wanted = set(words(query))
    assert sorted(found(index, query)) == [at for at, text in enumerate(TEXTS) if wanted & set(words(text))]


def test_endless_and_malformed_queries_are_answered(index: TextIndex) -> None:
    assert found(index, "cat " * 100_000) == found(index, "cat")
    assert found(index, " ".join(f"w{at}" for at in range(5000)) + " cat") == []
    assert found(index, "\x00cat\ud800") == found(index, "cat")


def test_removed_rows_are_found_no_more_and_seq_moves_on(index: TextIndex) -> None:
    index.add([(6, "A cat again")], [(0, TEXTS[0]), (4, TEXTS[4])], seq=9)
    assert sorted(found(index, "cat")) == [1, 6]
    assert (index.seq, index.count()) == (9, 5)
    index.verify()


def test_batches_may_be_replayed(index: TextIndex) -> None:
    for _ in range(2):
        index.add([(0, TEXTS[0]), (7, "one more cat")], [(1, TEXTS[1]), (99, "never there: cat")], seq=8)
    assert sorted(found(index, "cat")) == [0, 7]
    assert index.count() == 6
    index.add([], [], seq=3)
    assert index.seq == 8
    index.verify()


def test_what_is_added_and_removed_in_one_batch_is_not_there(index: TextIndex) -> None:
    index.add([(8, "ephemeral")], [(8, "ephemeral")], seq=8)
    assert found(index, "ephemeral") == []
    assert index.count() == 6


def test_all_of_it_is_there_after_reopening(index: TextIndex, path: Path) -> None:
    before = index.search("cat", 10)
    index.close()
    again = TextIndex.open(path)
    assert (again.seq, again.count(), again.search("cat", 10)) == (6, 6, before)
    assert again.bytes == path.stat().st_size + sum(
        path.with_name(path.name + end).stat().st_size
        for end in ("-wal", "-shm")
        if path.with_name(path.name + end).exists()
    )
    again.close()


def test_allowed_rows_are_found_however_few_they_are(path: Path) -> None:
    index = TextIndex.open(path)
    rng = random.Random(3)
    rows = [(at, "needle " + "hay " * rng.randrange(30)) for at in range(900)]
    index.add(rows, [], seq=900)
    everything = index.search("needle", 900)
    assert len(everything) == 900
    for share in (1, 2, 50, 400, 899, 1000):

        def allowed(numbers: Rows, share: int = share) -> NDArray[np.bool_]:
            return np.equal(numbers % share, share - 1)

        wanted = [(number, score) for number, score in everything if number % share == share - 1]
        assert index.search("needle", 10, allowed) == wanted[:10]
    assert index.search("needle", 10, lambda numbers: np.zeros(len(numbers), dtype=np.bool_)) == []
    index.close()


def test_words_of_a_third_of_the_rows_give_way_to_rarer_ones() -> None:
    rows = 3 * FEW_ROWS
    assert deciding_words({"the": FEW_ROWS + 1, "cat": FEW_ROWS, "absent": 0}, rows) == ["cat"]
    assert deciding_words({"the": FEW_ROWS + 1, "a": rows}, rows) == ["the", "a"]
    assert deciding_words({"absent": 0}, rows) == []


def test_in_a_small_index_every_word_counts() -> None:
    assert deciding_words({"shanghai": 9, "weather": 1}, 10) == ["weather", "shanghai"]


def test_a_querys_work_is_bounded_and_its_rarest_word_is_always_searched_for() -> None:
    many = 100 * MAX_QUERY_ROWS
    half = MAX_QUERY_ROWS // 2
    assert deciding_words({"a": half, "b": half, "c": half + 1}, many) == ["a", "b"]
    assert deciding_words({"a": 2 * MAX_QUERY_ROWS, "b": 2 * MAX_QUERY_ROWS + 1}, many) == ["a"]
    assert len(deciding_words({str(at): 1 for at in range(1000)}, many)) == MAX_QUERY_WORDS


def test_a_frequent_word_decides_nothing_in_an_index_of_many_rows(path: Path) -> None:
    index = TextIndex.open(path)
    rows = [(at, f"of w{at}") for at in range(2 * FREQUENT)]
    index.add(rows, [], seq=len(rows))
    for _ in range(2):  # the second time the count of "of" is known
        assert found(index, "of w7") == [7]
        assert found(index, "of", 3) == [0, 1, 2]
    index.add([], rows[: 2 * FREQUENT - 50], seq=len(rows) + 1)
    assert sorted(found(index, "of w1990", 100)) == list(range(2 * FREQUENT - 50, 2 * FREQUENT))
    index.close()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.text(alphabet="ab 上海。éÉ", max_size=12), max_size=12),
    st.sets(st.integers(0, 11)),
    st.text(alphabet="ab 上海é", max_size=6),
)
def test_a_search_finds_exactly_the_rows_that_share_a_word(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], removed: set[int], query: str
) -> None:
    index = TextIndex.open(tmp_path_factory.mktemp("text") / "text.db")
    rows = list(enumerate(texts))
    gone = [row for row in rows if row[0] in removed]
    index.add(rows, [], seq=1)
    index.add([], gone, seq=2)
    index.verify()
    left = [row for row in rows if row[0] not in removed]
    asked = set(words(query))

    def shares(text: str) -> bool:
        return any(word in words(text) or (word in ("上", "海") and word in text) for word in asked)

    assert sorted(found(index, query, 100)) == [number for number, text in left if shares(text)]
    assert index.count() == len(left)
    index.close()


def test_compacting_leaves_no_word_of_a_removed_row_in_the_file(path: Path) -> None:
    index = TextIndex.open(path)
    secret = "xyzzysecret"
    for start in range(0, 2000, 100):
        index.add([(at, f"{secret}{at} common text") for at in range(start, start + 100)], [], seq=start)
    index.add([], [(at, f"{secret}{at} common text") for at in range(0, 2000, 2)], seq=3000)
    index.add([], [(at, f"{secret}{at} common text") for at in range(1, 1999, 2)], seq=4000)
    before = index.bytes
    index.compact()
    assert index.bytes < before // 2
    assert found(index, f"{secret}1999 common") == [1999]
    index.verify()
    index.close()
    left = path.read_bytes()
    assert left.count(secret.encode()) == 1  # terms share their beginning; the one row's term is whole
    assert f"{secret}1999".encode() in left


def test_an_index_that_rests_holds_no_file_and_answers_and_takes_in_as_before(index: TextIndex, path: Path) -> None:
    def held() -> list[str]:
        return [file.path for file in psutil.Process().open_files() if file.path.startswith(str(path))]

    before = found(index, "cat")
    assert held()
    index.rest()
    index.rest()
    assert (held(), index.is_open) == ([], False)
    assert found(index, "cat") == before
    index.rest()
    index.add([(90, "another cat")], [], seq=90)
    assert sorted(found(index, "cat")) == sorted([*before, 90])
    assert index.is_open


@pytest.mark.parametrize("rested", [True, False])
@pytest.mark.parametrize("other", ["none", "folder", "older"])
def test_a_file_that_another_has_taken_the_place_of_is_damage(
    index: TextIndex, path: Path, rested: bool, other: str
) -> None:
    index.rest()
    older = path.read_bytes()
    index.add([(90, "another cat")], [], seq=90)
    if rested:
        index.rest()
    path.unlink()
    if other == "folder":
        path.mkdir()
    elif other == "older":
        path.write_bytes(older)
    with pytest.raises(Damaged, match="made anew"):
        index.verify()
    assert path.exists() == (other != "none")


def test_a_closed_index_says_so(index: TextIndex) -> None:
    index.close()
    index.close()
    for call in (
        lambda: index.add([], [], 1),
        lambda: index.search("cat", 1),
        index.compact,
        index.verify,
    ):
        with pytest.raises(Closed):
            call()


def test_removing_leaves_nothing_and_may_be_done_again(index: TextIndex, path: Path) -> None:
    index.close()
    TextIndex.remove(path)
    TextIndex.remove(path)
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        TextIndex.open(tmp_path / "none" / "text.db")


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
def test_a_folder_that_is_in_the_way_is_removed_and_told(tmp_path: Path, end: str) -> None:
    TextIndex.open(tmp_path / "text.db").close()
    (tmp_path / f"text.db{end}").unlink(missing_ok=True)
    (tmp_path / f"text.db{end}" / "within").mkdir(parents=True)
    index = TextIndex.open(tmp_path / "text.db")
    assert f"text.db{end} is no file" in str(index.replaced)
    index.add([(1, "an apple")], [], 1)
    index.verify()
    assert [row for row, _ in index.search("apple", 10)] == [1]
    index.close()
    assert TextIndex.open(tmp_path / "text.db").replaced is None


def test_a_folder_without_a_file_in_it_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        TextIndex.open(tmp_path / "missing" / "text.db")


def test_one_that_stands_in_for_an_index_is_empty_and_closed(tmp_path: Path) -> None:
    index = TextIndex(tmp_path / "text.db", closed=True)
    assert (index.seq, index.count(), index.bytes) == (0, 0, 0)
    with pytest.raises(Closed):
        index.search("apple", 10)
    with pytest.raises(Closed):
        index.add([(1, "an apple")], [], 1)
    index.close()


@pytest.mark.parametrize("statement", ["UPDATE meta SET value = '0.0.0' WHERE name = 'format'", "DROP TABLE vocab"])
def test_a_file_of_another_format_is_made_anew(index: TextIndex, path: Path, statement: str) -> None:
    index.close()
    with sqlite3.connect(path) as other:
        other.execute(statement)
    other.close()
    again = TextIndex.open(path)
    assert (again.seq, again.count(), found(again, "cat")) == (0, 0, [])
    again.close()


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_file_that_is_no_index_is_made_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    index = TextIndex.open(path)
    assert (index.seq, index.count()) == (0, 0)
    index.add([(1, "cat")], [], 1)
    assert found(index, "cat") == [1]
    index.close()


def written(path: Path) -> bytes:
    """The bytes of a closed index of 600 rows."""
    index = TextIndex.open(path)
    for start in range(0, 600, 100):
        index.add([(at, f"cat w{at} w{at * 7 % 100}") for at in range(start, start + 100)], [], seq=start + 100)
    index.close()
    return path.read_bytes()


def test_a_cut_file_is_made_anew(path: Path) -> None:
    whole = written(path)
    for left in range(100, len(whole), len(whole) // 12):
        path.write_bytes(whole[:left])
        index = TextIndex.open(path)
        assert (index.seq, index.count()) == (0, 0)
        index.close()


def test_damage_that_sqlites_own_message_quotes_is_damage_too(path: Path) -> None:
    whole = written(path)
    assert b"USING fts5(" in whole
    path.write_bytes(whole.replace(b"USING fts5(", b"USIN\x9d fts5("))
    index = TextIndex.open(path)
    assert (index.seq, index.count()) == (0, 0)
    index.close()


def test_a_flipped_byte_is_found_or_harmless_and_never_another_error(path: Path) -> None:
    whole = written(path)
    rng = random.Random(5)
    damaged = made_anew = 0
    for at in [*range(0, 100, 7), *(rng.randrange(len(whole)) for _ in range(60))]:
        broken = bytearray(whole)
        broken[at] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        index = TextIndex.open(path)
        made_anew += index.count() == 0
        try:
            for word in ("cat", "w7", "w77", "none"):
                assert len(index.search(word, 1000, lambda numbers: (numbers >= 0) & (numbers < 600))) <= 600
            index.add([(600, "cat w600")], [(5, "cat w5 w35")], seq=601)
            index.compact()
            index.verify()
        except Damaged as error:
            assert str(path) in str(error)
            damaged += 1
        index.close()
        TextIndex.remove(path)
    assert damaged > 5
    assert made_anew > 3


def test_a_full_disk_refuses_the_batch_and_goes_on_reading(index: TextIndex) -> None:
    pages = index._writer.execute("PRAGMA page_count").fetchone()[0]
    index._writer.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    rows = [(at, " ".join(f"word{at}x{n}" for n in range(50))) for at in range(10, 400)]
    with pytest.raises(StorageFull):
        index.add(rows, [(0, TEXTS[0])], seq=50)
    assert (index.seq, index.count()) == (6, 6)
    assert sorted(found(index, "cat")) == [0, 1]
    index._writer.execute("PRAGMA max_page_count = 1000000").fetchone()
    index.add(rows, [(0, TEXTS[0])], seq=50)
    assert (index.seq, index.count()) == (50, 395)
    assert found(index, "word399x7") == [399]
    index.verify()


KILLED = """
import sys
from pathlib import Path
from dataplane.words.text import TextIndex
index = TextIndex.open(Path(sys.argv[1]))
seq = index.seq
while True:
    batch = range(seq, seq + 20)
    index.add([(n, f"cat w{n}") for n in batch], [(n - 50, f"cat w{n - 50}") for n in batch if n >= 50], seq + 20)
    seq += 20
    print(seq, flush=True)
    if seq % 1000 == 0:
        index.compact()
"""


def test_a_killed_process_leaves_whole_batches(path: Path) -> None:
    for wait in (0.0, 0.03, 0.08, 0.15):
        told = killed(KILLED, path, wait_s=wait)[-1]
        index = TextIndex.open(path)
        seq = index.seq
        assert seq >= int(told)
        assert index.count() == min(seq, 50)
        assert sorted(found(index, "cat", 100)) == list(range(max(0, seq - 50), seq))
        index.verify()
        index.close()


def test_searches_in_many_threads_see_whole_batches_while_one_adds(path: Path) -> None:
    index = TextIndex.open(path)
    torn: list[int] = []
    searched = [0]
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            count = len(index.search("cat", 2000))
            searched[0] += 1
            if count % 10:
                torn.append(count)

    searchers = [threading.Thread(target=search) for _ in range(6)]
    for searcher in searchers:
        searcher.start()
    for start in range(0, 600, 10):
        index.add([(at, f"cat w{at}") for at in range(start, start + 10)], [], seq=start + 10)
    done.set()
    for searcher in searchers:
        searcher.join()
    assert torn == []
    assert searched[0] > 0
    assert len(found(index, "cat", 1000)) == 600
    index.close()


def test_closing_waits_for_searches_and_those_that_come_later_are_told(path: Path) -> None:
    index = TextIndex.open(path)
    index.add([(at, "cat") for at in range(800)], [], seq=800)
    other: list[BaseException] = []

    def search() -> None:
        try:
            while True:
                assert len(index.search("cat", 5)) == 5
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            other.append(error)

    searchers = [threading.Thread(target=search) for _ in range(8)]
    for searcher in searchers:
        searcher.start()
    time.sleep(0.05)
    index.close()
    for searcher in searchers:
        searcher.join(timeout=20)
        assert not searcher.is_alive()
    assert other == []
