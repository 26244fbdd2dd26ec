"""Bucket: the objects under one prefix of an S3 bucket or of a local folder. The one place that knows obstore.

An object is put whole or not at all. `put_new` is create-if-absent, which both kinds of store decide in one step: of two
writers of one name, one is told that it lost. In a local folder an object that was put is fsynced, and so is its folder;
a crash there can leave files named `OBJECT#NUMBER` with half an object, which no listing shows: `sweep` removes them.

`replace` is compare-and-swap. S3 decides it in one step (If-Match). A file system has no such step: there it holds an
exclusive lock on a file beside the objects while it compares and puts, which binds all who use this class, and nobody else.

All calls are asynchronous and wait outside the interpreter, in obstore's threads: they block no loop, and work in any.
A request is sent again at most `retries` times within `request_timeout_s`, and none waits longer than that for its answer.
A put whose answer got lost is sent again as well, so `put_new` may say that the name is taken by what this very call put:
where that matters, compare.

Errors: BucketUnreachable for everything that may pass or that the operator must set right; NotFound; StorageFull.
They name endpoint and bucket, and of what the store answered only its status and code: never a header or a key.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import obstore
from obstore import exceptions, store

from dataplane.cold_config import ColdConfig
from dataplane.errors import BucketUnreachable, DataPlaneError, InvalidInput, NotFound, StorageFull, VersionConflict
from dataplane.files import storage_errors, sync_folder

RETRY_AFTER_S = 30.0
CONNECT_TIMEOUT = timedelta(seconds=5)
DELETE_BATCH = 1000
_FOREIGN = (exceptions.BaseError, OSError, NotImplementedError, ValueError)
_LOCK = ".replace.lock"
_LEFTOVER = re.compile(r"#\d+$")


class Object(NamedTuple):
    """An object as a listing shows it. `size` in bytes."""

    name: str
    size: int


class Bucket:
    """Open objects. Names are relative to the prefix, with `/` between their parts."""

    def __init__(self, config: ColdConfig, default_folder: Path) -> None:
        """`default_folder` is where the archive lies when the configuration names neither bucket nor folder.

        Opens no connection. Raises InvalidInput for credentials that cannot be read, BucketUnreachable for a folder that
        cannot be made.
        """
        self._prefix = config.prefix
        self._encryption = config.server_side_encryption
        self._secrets: tuple[str, ...] = ()
        self._folder: Path | None = None
        self._store: Any
        if config.bucket is None:
            self._folder = default_folder if config.folder == "auto" else Path(config.folder)
            self.where = f"the folder {self._folder}"
            with self._translated(""):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._store = store.LocalStore(self._folder.resolve())
        else:
            self.where = f"bucket {config.bucket} at {config.endpoint or f'Amazon S3 in {config.region}'}"
            credentials = _credentials(config)
            self._secrets = tuple(credentials.values())
            with self._translated(""):
                self._store = store.S3Store(config.bucket, **_s3_options(config), **credentials)

    async def put_new(self, name: str, content: Any) -> bool:
        """Put an object (bytes or a flat buffer) unless its name is taken. Returns whether it was put."""
        try:
            await self._put(name, content, "create")
        except exceptions.AlreadyExistsError:
            return False
        return True

    async def put(self, name: str, content: Any) -> None:
        """Put an object, in the place of what may be there."""
        await self._put(name, content, "overwrite")

    async def replace(self, name: str, content: bytes, etag: str) -> None:
        """Put an object in the place of the one whose `etag` was told. Raises VersionConflict if that is another now."""
        if self._folder is not None:
            with await asyncio.to_thread(_locked, self._folder):
                if await self.etag(name) != etag:
                    raise self._changed(name)
                await self._put(name, content, "overwrite")
            return
        try:
            await self._put(name, content, {"e_tag": etag})
        except exceptions.PreconditionError as error:
            raise self._changed(name) from error

    async def get(self, name: str) -> Any:
        """The content of an object, as a buffer of bytes that is not copied. Raises NotFound."""
        with self._translated(name):
            return await (await obstore.get_async(self._store, self._at(name))).buffer_async()

    async def etag(self, name: str) -> str:
        """What tells this version of an object from others. Raises NotFound."""
        with self._translated(name):
            return str((await obstore.head_async(self._store, self._at(name)))["e_tag"])

    async def list(self, folder: str) -> AsyncIterator[Object]:
        """All objects in `folder` (empty: all there are), in no order. A bucket that is not there has none."""
        try:
            async for found in obstore.list(self._store, self._at(folder).rstrip("/")):
                for entry in found:
                    yield Object(entry["path"][len(self._prefix) + 1 :], entry["size"])
        except _FOREIGN as error:
            if "NoSuchBucket" not in str(error):
                raise self._translation(error, folder) from error

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects. Those that are not there are no error."""
        if self._folder is not None:
            for name in names:
                with contextlib.suppress(NotFound), self._translated(name):
                    await obstore.delete_async(self._store, self._at(name))
            return
        for start in range(0, len(names), DELETE_BATCH):
            with self._translated(names[start]):
                await obstore.delete_async(
                    self._store, [self._at(name) for name in names[start : start + DELETE_BATCH]]
                )

    async def sweep(self) -> int:
        """Remove what broken writes left in a local folder, while nobody writes there. Returns how many files."""
        return 0 if self._folder is None else await asyncio.to_thread(_sweep, self._folder / self._prefix)

    async def check(self) -> None:
        """Write, read and remove a small object. Raises BucketUnreachable or StorageFull with what is wrong."""
        name, content = f"check/{secrets.token_hex(8)}", b"may be removed"
        if not await self.put_new(name, content) or bytes(await self.get(name)) != content:
            raise BucketUnreachable(f"{self.where} does not give back what was put there.", retry_after_s=RETRY_AFTER_S)
        await self.delete([name])

    def _at(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    async def _put(self, name: str, content: Any, mode: Any) -> None:
        with self._translated(name):
            await obstore.put_async(self._store, self._at(name), content, mode=mode, use_multipart=False)
        if self._folder is not None:
            await asyncio.to_thread(_sync, self._folder, self._folder / self._at(name))

    def _changed(self, name: str) -> VersionConflict:
        return VersionConflict(f"{name} in {self.where} was changed meanwhile: read it again.", version=0)

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, DataPlaneError):
            raise  # each is an answer
        except _FOREIGN as error:
            raise self._translation(error, name) from _without_secrets(error, self._secrets)

    def _translation(self, error: Exception, name: str) -> DataPlaneError:
        words = str(error)
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in words:
            return NotFound(f"{name} is not in {self.where}.")
        if "No space left on device" in words or "Disk quota exceeded" in words:
            return StorageFull(f"{self.where} is full: nothing was put. Free some space.", retry_after_s=RETRY_AFTER_S)
        if isinstance(error, exceptions.InvalidPathError) or "status code: 416" in words:
            return InvalidInput(f"{name} in {self.where} has no such part, or is no name for an object.")
        if isinstance(error, exceptions.UnknownConfigurationKeyError | exceptions.NotSupportedError):
            return DataPlaneError(f"{self.where} cannot do this: {_reason(words)}.")
        return BucketUnreachable(f"{self.where} {self._advice(error, words)}", retry_after_s=RETRY_AFTER_S)

    def _advice(self, error: Exception, words: str) -> str:
        reason = _reason(words)
        if "NoSuchBucket" in words:
            return "does not exist: create it, or correct its name."
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError):
            return f"refuses access ({reason}): check the credentials and their rights to read, write, list and delete."
        if self._encryption != "none" and re.search(r"status code: (400|500|501)", words):
            return (
                f"failed ({reason}). If it goes on, the service may not know server_side_encryption {self._encryption}, "
                "or not the key: set it to none, or set the service up for it."
            )
        return f"does not answer as it should ({reason}). It is tried again; check that it runs and can be reached."


def _s3_options(config: ColdConfig) -> dict[str, Any]:
    """What S3Store takes, credentials apart."""
    timeout = timedelta(seconds=config.request_timeout_s)
    options: dict[str, Any] = {
        "region": config.region,
        "client_options": {
            "allow_http": config.allow_http,
            "connect_timeout": min(CONNECT_TIMEOUT, timeout),
            "timeout": timeout,
        },
        "retry_config": {"max_retries": config.retries, "retry_timeout": timeout},
    }
    if config.endpoint is not None:
        options["endpoint"] = config.endpoint
    if config.server_side_encryption != "none":
        options["server_side_encryption"] = config.server_side_encryption
    if config.kms_key_id is not None:
        options["sse_kms_key_id"] = config.kms_key_id
    return options


def _credentials(config: ColdConfig) -> dict[str, Any]:
    """What the configuration or its file gives; empty: obstore asks the machine's role."""
    if config.access_key_id is not None and config.secret_access_key is not None:
        return {"access_key_id": config.access_key_id, "secret_access_key": config.secret_access_key}
    if config.credentials_file is None:
        return {}
    path = Path(config.credentials_file)
    parser = configparser.ConfigParser(interpolation=None)
    try:
        if path.stat().st_mode & 0o027:
            raise InvalidInput(f"{path} is open to others: chmod 600 {path}", param="credentials_file")
        parser.read_string(path.read_text())
        section = parser["default"]
        found = {name: section[f"aws_{name}"] for name in ("access_key_id", "secret_access_key")}
        if "aws_session_token" in section:
            found["token"] = section["aws_session_token"]
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError) as error:
        # The parser's own words would quote the line that it could not read.
        raise InvalidInput(
            f"{path} gives no credentials ({type(error).__name__}): it needs a section [default] with aws_access_key_id "
            "and aws_secret_access_key.",
            param="credentials_file",
        ) from None
    return found


def _reason(words: str) -> str:
    """What may be told of an answer: its status and code, or the first line without what follows the address."""
    status = re.search(r"status code: (\d+ [A-Za-z ]+)", words)
    code = re.search(r"<Code>(\w+)</Code>", words)
    if status is not None:
        return status[1].strip() + (f", {code[1]}" if code else "")
    line = words.splitlines()[0] if words else "no reason given"
    if "TimedOut" in words or "timed out" in words:
        return "no answer in time"
    return "no connection" if "kind: Connect" in words else line.rpartition(" - ")[2][:200]


def _without_secrets(error: Exception, hidden: Sequence[str]) -> Exception | None:
    """The error as a cause, unless it tells a secret."""
    return None if any(secret in str(error) for secret in hidden) else error


def _sync(root: Path, path: Path) -> None:
    """Make a new file and its name durable, and the names of the folders down to it."""
    with storage_errors(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with _held(descriptor):
            os.fsync(descriptor)
    for folder in path.parents:
        sync_folder(folder)
        if folder == root:
            return


def _sweep(folder: Path) -> int:
    leftovers = [path for path in folder.rglob("*") if _LEFTOVER.search(path.name)]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)  # which gives the lock back


def _locked(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Wait for the lock, and hold it within the context."""
    descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return _held(descriptor)
