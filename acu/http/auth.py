"""Who may come in: API keys, the unix socket's owner, and keeping web pages out.

A key ring is an immutable value read from a file (YAML or JSON), a list of

    - {name: ci, key: sk-..., tenant: team-a, scopes: [inference]}
    - {name: ops, key_sha256: <64 hex digits>, scopes: [inference, admin]}

It is read by the same strict reader as the configuration, and what is wrong with it is told without quoting it.

`Keys` holds the ring in use; `reload` replaces it as a whole, or keeps it when the file is not valid. A presented key is
hashed and compared with every entry in constant time, so that neither the order nor a near miss shows in the timing.

Without keys, loopback is open to programs. A web page in a browser on the same machine also reaches loopback; it is kept
out by its own headers, which it cannot change: Host (DNS rebinding), Origin and Content-Type (no simple request can
carry application/json; a form that uploads a file can be sent by any page, and always tells its Origin).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from aiohttp.http import HttpVersion11
from msgspec import Meta, Struct

from acu.config.document import MAX_BYTES, parse_value, read_regular
from acu.config.fields import Problem
from acu.http.errors import BadRequest, HttpError, KeyFileError
from acu.http.exchange import Peer
from agentflow.messages import Caller

Scope = Literal["open", "loopback", "inference", "admin"]
KeyScope = Literal["inference", "admin"]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.@-]{1,64}$(?!\n)")]
_PORT = re.compile(r"[0-9]{1,5}")
LAST_PORT = 65_535
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


class KeyEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry of the file: the key itself, or its SHA-256 in hex."""

    name: Name
    key: Annotated[str, Meta(min_length=16, max_length=512)] | None = None
    key_sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$(?!\n)")] | None = None
    tenant: Name = "default"
    scopes: Annotated[tuple[KeyScope, ...], Meta(min_length=1)] = ("inference",)


class Key(Struct, frozen=True):
    """A known key: its digest, and what it opens."""

    digest: bytes
    name: str
    tenant: str
    scopes: frozenset[KeyScope]


class KeyRing(Struct, frozen=True):
    """All known keys."""

    keys: tuple[Key, ...]

    def find(self, presented: str) -> Key | None:
        """The entry of the presented key. Looks at all of them, whatever it finds."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest()
        found: Key | None = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def load_key_ring(path: Path) -> KeyRing:
    """Read the file. Raises KeyFileError with what to do, and nothing else."""
    document = _plain_document(path)
    try:
        return KeyRing(_keys(msgspec.convert(document, list[KeyEntry]), path))
    except msgspec.ValidationError as error:
        why = _without_content(str(error))
        raise KeyFileError(f"{path}: {why}. Expected a list of {{name, key, tenant, scopes}}.") from None
    except UnicodeEncodeError:
        raise KeyFileError(f"{path}: a key holds half of a surrogate pair, which no client can send.") from None


def _plain_document(path: Path) -> Any:
    try:
        content, mode = read_regular(path)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}. Name a readable file in network.api_keys_file.") from error
    if mode & (stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH):
        raise KeyFileError(f"{path} can be read by everybody, or written by others. Run: chmod g-w,o-rw {path}")
    if len(content) > MAX_BYTES:
        raise KeyFileError(f"{path} is larger than {MAX_BYTES} bytes.")
    problems: list[Problem] = []
    try:
        document = parse_value("line", content.decode("utf-8-sig"), problems)
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is neither YAML nor JSON in UTF-8.") from None
    if problems:
        # The parser's own words quote the file, keys included: only the line is taken from them.
        line = re.search(r"\bline[: ](\d+)\b", problems[0].message)
        where = f" The mistake is near line {line[1]}." if line else ""
        raise KeyFileError(
            f"{path} is neither plain YAML (no tag, anchor or field given twice, not nested deeply) nor JSON.{where}"
        )
    return document


def _without_content(why: str) -> str:
    """msgspec's words without the name or value that they quote from the file."""
    return re.sub(r"(unknown field|enum value) (`.*?`|'.*?'|-?\d+)(?=$| - at )", r"\1", why, flags=re.DOTALL)


def _keys(entries: list[KeyEntry], path: Path) -> tuple[Key, ...]:
    if not entries:
        raise KeyFileError(f"{path} holds no key, so that nobody could come in. Add one.")
    keys: list[Key] = []
    for entry in entries:
        if (entry.key is None) == (entry.key_sha256 is None):
            raise KeyFileError(f"{path}: '{entry.name}' needs either 'key' or 'key_sha256'.")
        digest = bytes.fromhex(entry.key_sha256 or "")
        if entry.key is not None:
            digest = hashlib.sha256(entry.key.encode()).digest()
        if any(key.name == entry.name or key.digest == digest for key in keys):
            raise KeyFileError(f"{path}: '{entry.name}' is there twice, by its name or by its key.")
        keys.append(Key(digest, entry.name, entry.tenant, frozenset(entry.scopes)))
    return tuple(keys)


class Keys:
    """The key ring in use, and the file that it came from."""

    def __init__(self, path: Path) -> None:
        """Raises KeyFileError."""
        self._path = path
        self._ring = load_key_ring(path)

    @property
    def ring(self) -> KeyRing:
        """The ring in use."""
        return self._ring

    def reload(self) -> None:
        """Read the file again (SIGHUP). Raises KeyFileError when it is not valid; the old ring stays then."""
        self._ring = load_key_ring(self._path)
        logging.getLogger(__name__).info("API keys read", extra={"keys": [key.name for key in self._ring.keys]})


class MissingScope(HttpError):
    """A caller who is known asked for what it may not have."""

    def __init__(self, scope: str, caller: Caller) -> None:
        super().__init__(403, f"This needs the scope '{scope}', which the caller does not have.", code="missing_scope")
        self.caller = caller


class Gate:
    """Decides, from a request's headers and its peer, who calls and whether they may."""

    def __init__(self, keys: Keys | None, allowed_hosts: tuple[str, ...], own_uid: int | None = None) -> None:
        self._keys = keys
        self._hosts = LOCAL_HOSTS | {host.lower() for host in allowed_hosts}
        self._owners = {0, os.getuid() if own_uid is None else own_uid}

    def admit(self, request: web.BaseRequest, peer: Peer, scope: Scope) -> Caller:
        """The caller, or HttpError 400, 401 or 403."""
        if scope == "open":
            return Caller(name="-")
        self.refuse_web_pages(request, peer)
        caller = self._identify(request, peer, scope)
        if scope == "admin" and not caller.admin:
            raise MissingScope("admin", caller)
        return caller

    def refuse_web_pages(self, request: web.BaseRequest, peer: Peer) -> None:
        """HttpError 400 or 403 for what a browser may have sent on behalf of a page."""
        host = request.headers.get("Host", "").lower()
        if not host and request.version >= HttpVersion11:
            raise BadRequest("The request has no Host header.", code="invalid_header")
        # A key proves a program; without one, /metrics is open to loopback even where keys are asked.
        keyless = self._keys is None or "Authorization" not in request.headers
        if keyless and peer.kind == "tcp" and host and _name_of(host) not in self._hosts:
            raise HttpError(
                403,
                f"The name '{host[:64]}' is not served here; add it to network.allowed_hosts.",
                code="host_not_allowed",
            )
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise HttpError(403, "Requests from web pages of other origins are not served.", code="origin_not_allowed")

    def _identify(self, request: web.BaseRequest, peer: Peer, scope: Scope) -> Caller:
        owner = peer.kind == "unix" and peer.uid in self._owners
        local = Caller(name="local" if peer.uid is None else f"uid:{peer.uid}", admin=owner)
        if self._keys is None:
            return local
        presented = _bearer(request)
        if presented is None:
            if owner or (scope == "loopback" and peer.loopback):
                return local
            raise _unauthorized("An API key is needed: 'Authorization: Bearer <key>'.", "missing_api_key")
        key = self._keys.ring.find(presented)
        if key is None:
            raise _unauthorized("The API key is not valid.", "invalid_api_key")
        caller = Caller(tenant=key.tenant, name=key.name, admin="admin" in key.scopes)
        if scope == "inference" and "inference" not in key.scopes:
            raise MissingScope("inference", caller)
        return caller


def _bearer(request: web.BaseRequest) -> str | None:
    header = request.headers.get("Authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise _unauthorized("The Authorization header must be 'Bearer <key>'.", "invalid_api_key")
    return token


def _unauthorized(message: str, code: str) -> HttpError:
    return HttpError(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})


def _name_of(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and _PORT.fullmatch(port) and int(port) <= LAST_PORT else host
