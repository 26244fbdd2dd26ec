"""The manifest of a history: which log shards of its folder are valid.

    manifest.json          every valid shard, in the order in which they came: one line of JSON, one line with its SHA-256
    log-00000007.parquet   a log shard

The manifest is replaced atomically, and each time whole; the shards that it names are durable before. What it does not
name is not there. Shards are numbered, and no number is used twice while its shard may be open somewhere.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Self

import msgspec

from dataplane.errors import ChecksumMismatch, Damaged, UnsupportedFormat
from dataplane.files import remove_files
from dataplane.state.logshards import LogShardEntry
from dataplane.warm.parquet import REPAIR

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FORMAT = 1
MANIFEST = "manifest.json"


class Manifest(msgspec.Struct, frozen=True):
    """The names that are valid. `next_number` is above every number that a shard ever had."""

    next_number: int = 1
    shards: tuple[LogShardEntry, ...] = ()
    format: int = FORMAT

    def encode(self) -> bytes:
        """As a file's content."""
        body = msgspec.json.encode(self)
        return body + b"\nsha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a file. Raises ChecksumMismatch, UnsupportedFormat, Damaged."""
        try:
            body, _, end = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise Damaged(
                f"{path} cannot be read: {error.strerror or error}. Restore it from a backup or the bucket."
            ) from error
        if end != b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n":
            raise ChecksumMismatch(f"{path} is not what was written. Restore it from a backup or the bucket.")
        try:
            if msgspec.json.decode(body, type=_Version).format > FORMAT:
                raise UnsupportedFormat(f"{path} was written by a newer release. Use that release.")
            return msgspec.json.decode(body, type=cls)
        except msgspec.MsgspecError as error:
            raise Damaged(f"{path} is no manifest: {error}. Restore it from a backup or the bucket.") from error


class _Version(msgspec.Struct):
    format: int


def shard_name(number: int) -> str:
    """The file name of the shard of that number."""
    return f"log-{number:08d}.parquet"


def shard_names(folder: Path) -> list[str]:
    """The names of all files in `folder` that are named as log shards are, sorted."""
    return sorted(path.name for path in folder.glob("log-*.parquet"))


def remove_unnamed(folder: Path, entries: Iterable[LogShardEntry]) -> None:
    """Remove, durably, the log shards in `folder` that none of `entries` names."""
    named = {entry.name for entry in entries}
    surplus = [name for name in shard_names(folder) if name not in named]
    if surplus:
        remove_files(folder, surplus)


def misnamed(folder: Path, entries: tuple[LogShardEntry, ...]) -> list[str]:
    """What is wrong with the manifest in `folder`, where these shards are in use, and files that none names."""
    path = folder / MANIFEST
    problems = []
    try:
        if Manifest.read(path).shards != entries:
            problems.append(f"{path} does not name the shards that are in use. {REPAIR}")
    except Damaged as error:
        problems.append(str(error))
    named = {entry.name for entry in entries}
    unnamed = (name for name in shard_names(folder) if name not in named)
    return problems + [f"{folder / name} is in no manifest. {REPAIR}" for name in unnamed]
