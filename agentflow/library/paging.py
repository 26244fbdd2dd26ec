"""A part of a list, between two of its members. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from agentflow.errors import InvalidRequest
from agentflow.library.extraction import shown
from agentflow.library.refusals import NotStored
from agentflow.library.values import Page, PageRequest

T = TypeVar("T")


def paged(oldest_first: Iterable[T], id_of: Callable[[T], str], request: PageRequest, most: int = 100) -> Page[T]:
    """The part that `request` asks for. `has_more` is of the direction that was read in.

    Raises InvalidRequest for a limit that is not from 1 to `most`, NotStored for an `after` or `before` that is not there.
    """
    if not 1 <= request.limit <= most:
        raise InvalidRequest(f"limit must be from 1 to {most}, not {request.limit}.", param="limit")
    items = list(oldest_first)
    if request.order == "desc":
        items.reverse()
    place = {id_of(item): number for number, item in enumerate(items)} if request.after or request.before else {}
    start, end = 0, len(items)
    if request.after is not None:
        start = _place(place, request.after, "after") + 1
    if request.before is not None:
        end = _place(place, request.before, "before")
        if request.after is None:
            start = max(0, end - request.limit)
            return Page(tuple(items[start:end]), start > 0)
    found = tuple(islice(items, start, max(start, min(end, start + request.limit))))
    return Page(found, start + len(found) < end)


def _place(places: dict[str, int], id_: str, param: str) -> int:
    if id_ not in places:
        raise NotStored(f"There is no {shown(id_)!r} in this list.", param=param)
    return places[id_]
