"""Textfile: the SQLite database of a full-text index: its tables, how it is opened, which files it is, and its errors as ours."""

from __future__ import annotations

import os
import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dataplane.errors import Damaged, DataPlaneError, StorageFull, Unavailable, UnsupportedFormat
from dataplane.words.segment import FORMAT as SEGMENT_FORMAT

CACHE_KIB = 1024
BUSY_S = 10.0
FORMAT = f"1.{SEGMENT_FORMAT}.{unicodedata.unidata_version}"
SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE VIRTUAL TABLE terms USING fts5(words, content='', tokenize='ascii')",
    "CREATE VIRTUAL TABLE vocab USING fts5vocab(terms, row)",
)


def connect(path: Path) -> sqlite3.Connection:
    """Open it, or make it, with what a full-text index needs. Raises sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # what a removed row had is overwritten, not only let go
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA journal_size_limit = 4194304")
    except BaseException:
        connection.close()
        raise
    return connection


def files_of(path: Path) -> Iterator[Path]:
    """The database, and what SQLite keeps beside it."""
    for end in ("", "-wal", "-shm", "-journal"):
        yield path.with_name(path.name + end)


def is_usable(file: Path) -> bool:
    """Whether it is a file that we can read and write."""
    return file.is_file() and os.access(file, os.R_OK | os.W_OK)


def identity(file: Path) -> tuple[int, int]:
    """Its device and inode, which another file in its place does not have. (0, 0): there is none."""
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _ours(error, path) from error
    except UnicodeDecodeError as error:  # of SQLite's message, which quotes what is damaged
        raise Damaged(damage(path)) from error


def _ours(error: sqlite3.Error, path: Path) -> DataPlaneError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # none: what was stored is not of the type it had
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
        return StorageFull(f"The disk of the full-text index {path} is full. Free some space on it.")
    if code & 0xFF in (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR),
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOLFS),
        *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_ABORT, sqlite3.SQLITE_PROTOCOL),
        *(sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE),
    ):
        return Unavailable(
            f"The full-text index {path} cannot be used now: {error}. See to its disk and its permissions."
        )
    return Damaged(damage(path))


def damage(path: Path) -> str:
    """What is said of a damaged one."""
    return f"The full-text index {path} is damaged. Remove it, and it is made anew from the rows."


def prepare(writer: sqlite3.Connection) -> None:
    """Make the tables of a new file; raise UnsupportedFormat when those of an old one are not ours."""
    if writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        writer.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts only before the first page is written
        writer.execute("PRAGMA journal_mode = WAL").fetchone()
        writer.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            writer.execute(statement)
        values: list[tuple[str, Any]] = [("format", FORMAT), ("seq", 0), ("rows", 0)]
        writer.executemany("INSERT INTO meta VALUES (?, ?)", values)
        writer.execute("COMMIT")
        return
    for statement in SCHEMA:
        if writer.execute("SELECT 1 FROM sqlite_master WHERE sql = ?", (statement,)).fetchone() is None:
            raise UnsupportedFormat("The full-text index has other tables than this release's. It must be made anew.")
    if writer.execute("SELECT 1 FROM meta WHERE name = 'format' AND value = ?", (FORMAT,)).fetchone() is None:
        raise UnsupportedFormat("The full-text index is of another format than this release's. It must be made anew.")


def built(writer: sqlite3.Connection) -> tuple[int, int]:
    """(seq, rows). Looks at the index too, so that the worst damage is found now."""
    found = dict(writer.execute("SELECT name, value FROM meta WHERE name IN ('seq', 'rows')"))
    seq, rows = found.get("seq"), found.get("rows")
    if not isinstance(seq, int) or not isinstance(rows, int) or seq < 0 or rows < 0:
        raise Damaged("The full-text index does not say how far it is built. It must be made anew.")
    writer.execute("SELECT rowid FROM terms WHERE terms MATCH 'a' LIMIT 1").fetchone()
    return seq, rows
