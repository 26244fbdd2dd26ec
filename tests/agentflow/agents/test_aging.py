"""Results that hold for a while only."""

from __future__ import annotations

from agentflow.agents.aging import holds_of, is_old, mark, marked, remark
from agentflow.messages import Message
from agentflow.tools.tool import ToolSpec

HOLDS = {"price": 60.0}
AT = 1_700_000_000_000


def test_only_tools_that_say_so_have_results_that_age() -> None:
    assert holds_of([ToolSpec(name="price", fresh_for_s=60.0), ToolSpec(name="pi")]) == HOLDS
    assert is_old("price", AT, HOLDS, AT + 60_001)
    assert not is_old("price", AT, HOLDS, AT + 60_000)
    assert not is_old("pi", AT, HOLDS, AT + 10**9)
    assert not is_old("price", 0, HOLDS, AT)


def test_a_mark_names_the_moment_and_stays_what_it_is() -> None:
    text = "(This result is of 2023-11-14 22:13 UTC, and may not hold any more.)\n7"
    assert mark("7", AT) == text
    assert mark(text, AT + 10**7) == text


def test_only_old_results_of_a_conversation_are_marked() -> None:
    old, new = Message("tool", "7", name="price", at=AT), Message("tool", "8", name="price", at=AT + 50_000)
    said = Message("user", "How much?")
    marked_, *rest = marked([old, new, said], HOLDS, AT + 61_000)
    assert marked_.content == mark("7", AT)
    assert rest == [new, said]


def test_a_remark_names_each_tool_and_when_it_answered() -> None:
    assert remark([("price", AT), ("rate", AT + 60_000)]) == (
        "(The result of price of 2023-11-14 22:13 UTC may not hold any more.)\n"
        "(The result of rate of 2023-11-14 22:14 UTC may not hold any more.)"
    )
