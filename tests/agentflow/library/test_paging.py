"""Parts of lists: any way through a list meets every member once, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import InvalidRequest
from agentflow.library.paging import paged
from agentflow.library.refusals import NotStored
from agentflow.library.values import Order, PageRequest


@given(st.integers(0, 30), st.integers(1, 10), st.sampled_from(["asc", "desc"]))
def test_going_on_after_the_last_member_meets_every_one_once(members: int, limit: int, order: Order) -> None:
    ids = [f"id{n:02}" for n in range(members)]
    met: list[str] = []
    after = None
    for _ in range(members + 1):
        page = paged(ids, str, PageRequest(limit=limit, order=order, after=after))
        met.extend(page.data)
        if not page.has_more:
            break
        after = page.data[-1]
    assert met == (ids if order == "asc" else ids[::-1])


@given(st.integers(1, 30), st.integers(1, 10), st.sampled_from(["asc", "desc"]))
def test_going_back_before_the_first_member_meets_every_one_once(members: int, limit: int, order: Order) -> None:
    ids = [f"id{n:02}" for n in range(members)]
    listed = ids if order == "asc" else ids[::-1]
    met = [listed[-1]]
    for _ in range(members):
        page = paged(ids, str, PageRequest(limit=limit, order=order, before=met[0]))
        met = [*page.data, *met]
        if not page.has_more:
            break
    assert met == listed


def test_between_two_members_lies_what_is_between() -> None:
    page = paged("abcdef", str, PageRequest(order="asc", after="b", before="e"))
    assert (page.data, page.has_more) == (("c", "d"), False)
    page = paged("abcdef", str, PageRequest(order="asc", after="a", before="f", limit=2))
    assert (page.data, page.has_more) == (("b", "c"), True)
    page = paged("abcdef", str, PageRequest(order="asc", after="e", before="b"))
    assert (page.data, page.has_more) == ((), False)


@pytest.mark.parametrize("limit", [0, -1, 101])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(InvalidRequest, match="from 1 to 100"):
        paged("abc", str, PageRequest(limit=limit))


@pytest.mark.parametrize("bound", ["after", "before"])
def test_a_bound_that_is_not_there_is_named(bound: str) -> None:
    with pytest.raises(NotStored) as refused:
        paged("abc", str, PageRequest(**{bound: "z"}))  # type: ignore[arg-type]
    assert refused.value.param == bound
