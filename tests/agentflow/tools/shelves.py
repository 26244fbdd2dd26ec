"""What a store of handles has, as its users see it."""

from __future__ import annotations

from collections.abc import Iterable

from agentflow.tools.errors import UnknownHandle
from agentflow.tools.handles import HandleStore
from agentflow.tools.tool import Content


def found(handles: HandleStore, tenant: str, handle: str) -> Content:
    """Raises UnknownHandle."""
    content = handles.hold(tenant, handle)
    handles.release(tenant, handle)
    return content


def still_there(handles: HandleStore, tenant: str, names: Iterable[str]) -> list[str]:
    there = []
    for name in names:
        try:
            found(handles, tenant, name)
        except UnknownHandle:
            continue
        there.append(name)
    return there
