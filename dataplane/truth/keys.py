"""How keys are made. Every key of every record begins with its tenant.

    tenant   2 bytes of length, then the name in UTF-8: no tenant's prefix begins another's
    scope    tenant, then the collection's number (4 bytes): everything that belongs to one collection
    number   8 bytes; all integers are big-endian, so that keys sort as the numbers do

Pure.
"""

from __future__ import annotations

from dataplane.errors import InvalidInput

MAX_TENANT_BYTES = 256
MAX_NAME_BYTES = 512


def tenant_prefix(tenant: str) -> bytes:
    """What every key of `tenant` begins with. Raises InvalidInput for a name that is empty or too long."""
    return _counted(tenant, "tenant", MAX_TENANT_BYTES)


def scope(tenant: str, collection: int) -> bytes:
    """What every key of a collection begins with. `collection` is its number, which is never used again."""
    return tenant_prefix(tenant) + collection.to_bytes(4, "big")


def number(value: int) -> bytes:
    """8 bytes that sort as the number does."""
    return value.to_bytes(8, "big")


def name(value: str, what: str = "id") -> bytes:
    """A name as the last part of a key. Raises InvalidInput for one that is empty or too long."""
    encoded = _encoded(value, what)
    if not 0 < len(encoded) <= MAX_NAME_BYTES:
        raise InvalidInput(f"{what} must have 1 to {MAX_NAME_BYTES} bytes; this one has {len(encoded)}.", param=what)
    return encoded


def counted_name(value: str, what: str) -> bytes:
    """A name with its length before it, for keys that go on after it."""
    return _counted(value, what, MAX_NAME_BYTES)


def after(prefix: bytes) -> bytes | None:
    """The first key that no longer begins with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _counted(value: str, what: str, limit: int) -> bytes:
    encoded = _encoded(value, what)
    if not 0 < len(encoded) <= limit:
        raise InvalidInput(f"{what} must have 1 to {limit} bytes; this one has {len(encoded)}.", param=what)
    return len(encoded).to_bytes(2, "big") + encoded


def _encoded(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} holds half of a surrogate pair, which is no text.", param=what) from error
