"""An agent searches its tenant's vector stores, and sees no other's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.library.library import Library
from agentflow.library.refusals import DataUnavailable
from agentflow.tools.errors import InvalidArguments, ToolFailed
from agentflow.tools.filesearch import FileSearch
from agentflow.tools.tool import CallContext, Content
from tests.agentflow.library.libraries import TENANT, Desk, opened

CATS = "Cats sleep for sixteen hours a day, and dream of mice."
DOGS = "Dogs sleep less than cats do, and dream of bones."


async def call(desk: Desk, tenant: str = TENANT, **arguments: Any) -> list[Any]:
    """The passages that are found."""

    async def library() -> Library:
        return desk.library

    output = await FileSearch(library).call(arguments, context(tenant))
    assert isinstance(output.content, str)
    if output.content == "No passage was found.":
        return []
    return [msgspec.json.decode(line) for line in output.content.splitlines()]


def context(tenant: str = TENANT) -> CallContext:
    return CallContext(
        tenant=tenant,
        run_id="run_1",
        call_id="c",
        key="k",
        deadline_at=time.monotonic() + 60,
        result_path=Path("/nowhere"),
    )


async def test_passages_of_all_stores_or_of_one_are_found_for_their_tenant_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        assert await call(desk, query="sleep") == []
        cats = await desk.upload(CATS, "cats.md")
        dogs = await desk.upload(DOGS, "dogs.md")
        first, second = await desk.store(cats.id), await desk.store(dogs.id)
        third = await desk.store(cats.id)  # the same file again
        found = await call(desk, query="dream of mice")
        assert [hit["filename"] for hit in found] == ["cats.md", "dogs.md"]
        assert found[0] == {"file_id": cats.id, "filename": "cats.md", "score": 1.0, "text": CATS}
        assert [hit["text"] for hit in await call(desk, query="sleep", vector_store_id=second)] == [DOGS]
        assert len(await call(desk, query="sleep", max_results=1)) == 1
        assert await call(desk, tenant="other", query="sleep") == []
        with pytest.raises(ToolFailed, match=first) as caught:
            await call(desk, tenant="other", query="sleep", vector_store_id=first)
        assert not caught.value.again
        await desk.library.delete_store(TENANT, first)
        await desk.library.delete_store(TENANT, third)
        assert [hit["filename"] for hit in await call(desk, query="sleep")] == ["dogs.md"]


async def test_filters_leave_the_files_whose_attributes_fit(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        store = await desk.store()
        for text, name in ((CATS, "cat"), (DOGS, "dog")):
            file = await desk.upload(text, f"{name}.md")
            await desk.attach(store, file.id, attributes={"animal": name})
        found = await call(desk, query="sleep", filters={"type": "eq", "key": "animal", "value": "dog"})
        assert [(hit["filename"], hit["attributes"]) for hit in found] == [("dog.md", {"animal": "dog"})]
        with pytest.raises(ToolFailed, match=r"type must be one of eq"):
            await call(desk, query="sleep", filters={"type": "like"})


async def test_a_library_that_is_not_there_may_be_there_later(tmp_path: Path) -> None:
    async def library() -> Library:
        raise DataUnavailable("The data plane is not available.", retry_after_s=5.0)

    with pytest.raises(ToolFailed, match="The files cannot be searched: The data plane is not available") as caught:
        await FileSearch(library).call({"query": "sleep"}, context())
    assert caught.value.again
    with pytest.raises(InvalidArguments, match="not handles"):
        await FileSearch(library).call({"query": Content(tmp_path, 1)}, context())
