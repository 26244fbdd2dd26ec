"""Results that are too long for a model, kept as files that short handles stand for.

    <folder>/making/<random>                                what a running call writes
    <folder>/<tenant>/<handle>.<run>.<media type>           what is kept; 0600, in folders that are 0700

A handle is `h_` and 12 hex digits of chance. It holds for its tenant alone: another's is as unknown as one that never was.
No caller's text becomes part of a path as it is: tenants and runs are hashed, media types quoted.

Ordering. A file is whole and synced before it is renamed to its place, and its name says all that is known of it. So a kill
leaves files in `making`, which the next start removes, or whole files in their places, which it finds again by their names.

Bounds. Each tenant may have so many bytes and files, all together so many bytes, for so long. The oldest go first, but never
one that a running call holds: where nothing else is left, the new one is refused. The index is in memory. It counts a file
before that is in its place, and what must go for it has gone by then, so that no flood passes the bounds.

Used on the event loop. Syncing, moving and removing are done in threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote, unquote

from msgspec import Meta, Struct

from agentflow.config import Seconds
from agentflow.tools.errors import ToolFailed, UnknownHandle
from agentflow.tools.tool import Content

HANDLE: Final = re.compile(r"h_[0-9a-f]{12}")
BINARY: Final = "application/octet-stream"
_MAKING: Final = "making"
_NAME: Final = re.compile(r"(?P<handle>h_[0-9a-f]{12})\.(?P<run>[0-9a-f]{32})\.(?P<media>[a-zA-Z0-9%_.~+-]{1,120})")
_TENANT: Final = re.compile(r"[0-9a-f]{32}")
_MEDIA_LENGTH: Final = 120
MIB: Final = 1 << 20

Bytes = Annotated[int, Meta(ge=1)]


class HandleLimits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is kept of tools' long results."""

    result_max_bytes: Annotated[
        Bytes, Meta(description="Largest result of one call, in bytes. A larger one is thrown away: the call fails.")
    ] = 64 * MIB
    tenant_bytes: Annotated[Bytes, Meta(description="Bytes that are kept for one tenant. The oldest go first.")] = (
        1024 * MIB
    )
    total_bytes: Annotated[Bytes, Meta(description="Bytes that are kept in all. The oldest go first.")] = 8192 * MIB
    tenant_results: Annotated[
        int, Meta(description="Results that are kept for one tenant. The oldest go first.", ge=1, le=100_000)
    ] = 4096
    keep_s: Annotated[Seconds, Meta(description="Seconds after which a kept result is removed.")] = 86_400.0


@dataclass(slots=True)
class _Kept:
    """A file in the index. `users`: calls that hold it. `gone`: nobody finds it any more, and the last user removes it."""

    handle: str
    run: str
    content: Content
    made_at: float
    users: int = 0
    gone: bool = False


class HandleStore:
    """Keeps results in `folder`, which is its alone. `open` it before it is used: else it does not know what is there."""

    def __init__(self, folder: Path, limits: HandleLimits | None = None) -> None:
        self.limits = limits or HandleLimits()
        self._folder = folder
        self._making = folder / _MAKING
        self._shelves: dict[str, dict[str, _Kept]] = {}  # by hash of tenant, then handle; the oldest first
        self._bytes: dict[str, int] = {}
        self._moving: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        """Make the folders, remove what was being made, find what was kept. Raises OSError."""
        found = await asyncio.to_thread(_scan, self._folder)
        for shelf, kept in sorted(found, key=lambda pair: pair[1].made_at):
            self._put(shelf, kept)
        await asyncio.to_thread(_remove_all, self._evict())

    @property
    def total_bytes(self) -> int:
        """Bytes that are kept in all."""
        return sum(self._bytes.values())

    def new_path(self) -> Path:
        """A file that does not exist, for a call to write its result to; then `adopt` or `discard` it. Raises OSError."""
        self._making.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._making / secrets.token_hex(16)

    async def discard(self, path: Path) -> None:
        """Remove what a call wrote, if it did."""
        if path.parent == self._making and _is_there(path):
            await asyncio.to_thread(_remove, path)

    # Keeping

    async def adopt(self, tenant: str, run_id: str, path: Path, media_type: str) -> str:
        """Keep the file that a call wrote at `path` (of `new_path`), and return its handle. Raises ToolFailed, OSError.

        Where it is refused, and when this is cancelled, nothing is kept; the file at `path` may be there still.
        """
        if path.parent != self._making:
            raise ToolFailed("The tool gave a file that is not its own.")
        size = await asyncio.to_thread(_size, path)
        return await self._keep(tenant, run_id, size, media_type, lambda place: _move(path, place))

    async def keep(self, tenant: str, run_id: str, data: bytes, media_type: str) -> str:
        """Keep bytes, and return their handle. Raises and is cancelled as `adopt`."""
        path = self.new_path()
        try:
            return await self._keep(tenant, run_id, len(data), media_type, lambda place: _write(data, path, place))
        finally:
            await self.discard(path)

    async def _keep(self, tenant: str, run_id: str, size: int, media_type: str, place: Callable[[Path], None]) -> str:
        shelf, run = _hashed(tenant), _hashed(run_id)
        self._check_size(size)
        handle = f"h_{secrets.token_hex(6)}"
        media_type = media_type if 0 < len(quote(media_type, safe="")) <= _MEDIA_LENGTH else BINARY
        path = self._folder / shelf / f"{handle}.{run}.{quote(media_type, safe='')}"
        kept = _Kept(handle, run, Content(path, size, media_type), time.time(), users=1)
        leaving = await self._placed(shelf, kept)
        moving = asyncio.ensure_future(asyncio.to_thread(_replace, leaving, path, place))
        self._moving.add(moving)
        moving.add_done_callback(self._moving.discard)
        try:
            await asyncio.shield(moving)
        except BaseException:
            self._take(shelf, kept)
            with suppress(OSError):
                await moving  # the thread goes on after a cancellation, and must be done before its file is removed
            await asyncio.to_thread(_remove, path)
            raise
        if self._shelves.get(shelf, {}).get(handle) is not kept:
            await asyncio.to_thread(_remove, path)
            raise ToolFailed("The result is not kept: the tenant's results have been erased meanwhile.")
        self._let_go(shelf, kept)
        return handle

    async def _placed(self, shelf: str, kept: _Kept) -> list[Path]:
        """Put into the index what fits there, and return the files that must go for it. Raises ToolFailed."""
        while True:
            self._put(shelf, kept)
            leaving = self._evict()
            if self._fits(shelf):
                return leaving
            self._take(shelf, kept)
            await asyncio.to_thread(_remove_all, leaving)
            if not self._moving:
                raise ToolFailed("There is no room for the result: running calls hold all that is kept.")
            # What is being moved cannot go before it is there.
            await asyncio.wait(self._moving, return_when=asyncio.FIRST_COMPLETED)

    # Finding

    def hold(self, tenant: str, handle: str) -> Content:
        """What a tenant's handle stands for. It stays until `release`, which must follow. Raises UnknownHandle."""
        kept = self._found(tenant, handle)
        kept.users += 1
        return kept.content

    def release(self, tenant: str, handle: str) -> None:
        """The end of a `hold`."""
        shelf = _hashed(tenant)
        if (kept := self._shelves.get(shelf, {}).get(handle)) is not None:
            self._let_go(shelf, kept)

    def _found(self, tenant: str, handle: str) -> _Kept:
        kept = self._shelves.get(_hashed(tenant), {}).get(handle)
        if kept is None or kept.gone or self._is_old(kept):
            raise UnknownHandle(
                f"There is nothing under the handle {handle[:32]!r}, or no longer. Call the tool again."
            )
        return kept

    # Forgetting

    async def forget(self, tenant: str, run_id: str) -> None:
        """Remove what a run's calls gave. What another call holds goes when that is over; nobody finds it any more."""
        shelf, run = _hashed(tenant), _hashed(run_id)
        leaving = []
        for kept in list(self._shelves.get(shelf, {}).values()):
            if kept.run == run:
                kept.gone = True
                if not kept.users:
                    leaving.append(self._take(shelf, kept))
        if leaving:
            await asyncio.to_thread(_remove_all, leaving)

    async def erase(self, tenant: str) -> None:
        """Remove all of a tenant, also what calls hold: end its runs first."""
        shelf = _hashed(tenant)
        self._shelves.pop(shelf, None)
        self._bytes.pop(shelf, None)
        await asyncio.to_thread(shutil.rmtree, self._folder / shelf, ignore_errors=True)

    # The index

    def _put(self, shelf: str, kept: _Kept) -> None:
        self._shelves.setdefault(shelf, {})[kept.handle] = kept
        self._bytes[shelf] = self._bytes.get(shelf, 0) + kept.content.size

    def _take(self, shelf: str, kept: _Kept) -> Path:
        """Out of the index; does nothing if the tenant was erased meanwhile. Returns the file to remove."""
        on_shelf = self._shelves.get(shelf, {})
        if on_shelf.get(kept.handle) is kept:
            del on_shelf[kept.handle]
            self._bytes[shelf] -= kept.content.size
            if not on_shelf:
                del self._shelves[shelf], self._bytes[shelf]
        return kept.content.path

    def _let_go(self, shelf: str, kept: _Kept) -> None:
        kept.users -= 1
        if kept.gone and not kept.users:
            _remove(self._take(shelf, kept))

    def _evict(self) -> list[Path]:
        """Take out what is too old, then the oldest of whoever is over a bound. Returns the files to remove."""
        leaving = []
        for shelf in list(self._shelves):
            while (first := self._oldest(shelf)) and (self._is_old(first) or not self._tenant_fits(shelf)):
                leaving.append(self._take(shelf, first))
        while self.total_bytes > self.limits.total_bytes:
            firsts = [(shelf, first) for shelf in self._shelves if (first := self._oldest(shelf))]
            if not firsts:
                break
            leaving.append(self._take(*min(firsts, key=lambda pair: pair[1].made_at)))
        return leaving

    def _oldest(self, shelf: str) -> _Kept | None:
        """Of those that no call holds."""
        return next((kept for kept in self._shelves.get(shelf, {}).values() if not kept.users), None)

    def _is_old(self, kept: _Kept) -> bool:
        return kept.made_at + self.limits.keep_s < time.time()

    def _tenant_fits(self, shelf: str) -> bool:
        if shelf not in self._shelves:
            return True
        limits = self.limits
        return self._bytes[shelf] <= limits.tenant_bytes and len(self._shelves[shelf]) <= limits.tenant_results

    def _fits(self, shelf: str) -> bool:
        return self._tenant_fits(shelf) and self.total_bytes <= self.limits.total_bytes

    def _check_size(self, size: int) -> None:
        most = min(self.limits.result_max_bytes, self.limits.tenant_bytes, self.limits.total_bytes)
        if size > most:
            raise ToolFailed(f"The result has {size:,} bytes; at most {most:,} are kept. Ask the tool for less.")


def erase_folder(folder: Path, tenant: str) -> None:
    """Remove all of a tenant from the folder of a store that is not open. Blocks."""
    shutil.rmtree(folder / _hashed(tenant), ignore_errors=True)


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# What is done in threads


def _scan(folder: Path) -> list[tuple[str, _Kept]]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove(folder / _MAKING)
    (folder / _MAKING).mkdir(mode=0o700)
    found = []
    for shelf in folder.iterdir():
        if _TENANT.fullmatch(shelf.name) and shelf.is_dir() and not shelf.is_symlink():
            found += [(shelf.name, kept) for path in shelf.iterdir() if (kept := _read_name(path)) is not None]
    return found


def _read_name(path: Path) -> _Kept | None:
    name = _NAME.fullmatch(path.name)
    about = path.lstat()
    if name is None or not stat.S_ISREG(about.st_mode):
        return None  # not ours: left alone
    content = Content(path, about.st_size, unquote(name["media"]))
    return _Kept(name["handle"], name["run"], content, about.st_mtime)


def _is_there(path: Path) -> bool:
    """Quick enough for the loop."""
    return os.path.lexists(path)


def _size(path: Path) -> int:
    """Raises ToolFailed for what is no plain file of the call's own."""
    try:
        about = path.lstat()
    except FileNotFoundError as error:
        raise ToolFailed("The tool said that it wrote a file, and did not.") from error
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        raise ToolFailed("The tool gave something that is no file of its own.")
    return about.st_size


def _replace(leaving: list[Path], path: Path, place: Callable[[Path], None]) -> None:
    _remove_all(leaving)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    place(path)


def _move(source: Path, place: Path) -> None:
    file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(file, 0o600)
        os.utime(file)  # its age counts from now, whatever the tool set
        os.fsync(file)
    finally:
        os.close(file)
    source.rename(place)


def _write(data: bytes, source: Path, place: Path) -> None:
    file = os.open(source, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as writer:
        writer.write(data)
    _move(source, place)


def _remove_all(paths: list[Path]) -> None:
    for path in paths:
        _remove(path)


def _remove(path: Path) -> None:
    """Whatever it is; a folder too, which a tool can have made where a file was to be."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
