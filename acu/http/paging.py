"""Lists in pages: the query that asks for a part of one, and what a part says of itself.

A query's values come as text. They are checked by the types of a struct, as bodies are, and what is wrong with them is
told in the same words. Unknown parameters and those that are given twice are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from multidict import MultiMapping

from acu.http.errors import BadRequest
from acu.http.wire.decode import MAX_ECHO, clean_text, refusal
from agentflow.library.values import FileStatus, PageRequest

T = TypeVar("T", bound=Struct)

MOST_FILES = 10_000
MAX_ID = 128

Cursor = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
Order = Literal["asc", "desc"]


class FilesQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of files."""

    purpose: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MOST_FILES)] = MOST_FILES
    order: Order = "desc"
    after: Cursor | UnsetType = UNSET


class StoresQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of vector stores."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Order = "desc"
    after: Cursor | UnsetType = UNSET
    before: Cursor | UnsetType = UNSET


class StoreFilesQuery(StoresQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of a vector store's files; `filter` leaves those of one status."""

    filter: FileStatus | UnsetType = UNSET


class ContentQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a file's chunks. `page` is the `next_page` of the answer before."""

    page: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 256


class Listed(Protocol):
    """An item of a list."""

    @property
    def id(self) -> str: ...


def decode_query(query: MultiMapping[str], kind: type[T]) -> T:
    """The query of a request as a `kind`. Raises BadRequest."""
    values: dict[str, str] = {}
    for name, text in query.items():
        if name in values:
            raise BadRequest(f"The parameter '{name[:MAX_ECHO]}' is given twice.", param=name[:MAX_ECHO])
        values[name] = clean_text(text, name[:MAX_ECHO])
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(str(error), kind.__struct_encode_fields__) from None


def page_request(query: FilesQuery | StoresQuery) -> PageRequest:
    """The part of a list that a query asks for."""
    before = query.before if isinstance(query, StoresQuery) else UNSET
    return PageRequest(limit=query.limit, order=query.order, after=given(query.after), before=given(before))


def given(value: str | UnsetType) -> str | None:
    """The text of an optional parameter."""
    return None if value is UNSET else value


def ends(items: Sequence[Listed]) -> tuple[str | None, str | None]:
    """The ids of the first and the last of a page's items; None for an empty page."""
    return (items[0].id, items[-1].id) if items else (None, None)
