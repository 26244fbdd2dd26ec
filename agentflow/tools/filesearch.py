"""FileSearch: the tool that searches the tenant's vector stores, through the library.

Without a store it looks into all that can be searched: MOST_STORES of them, those that were used last. A score says how high a
chunk is in its own store (see library/searching.py), so the best of each store come in turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agentflow.errors import AgentFlowError, EngineFailure, InvalidRequest, Refused
from agentflow.library.values import PageRequest, SearchHit, SearchRequest
from agentflow.tools.errors import InvalidArguments, ToolFailed
from agentflow.tools.tool import CallContext, ToolOutput, ToolSpec

if TYPE_CHECKING:
    from agentflow.library.library import Library

MOST_RESULTS: Final = 20
MOST_STORES: Final = 8
_FEW: Final = 5


class FileSearch:
    """`library` gives the library, opened if it is not, and raises Refused."""

    spec = ToolSpec(
        name="file_search",
        description="Searches the user's files in vector stores, and gives the passages that fit best.",
        parameters={
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "description": "What to look for, in words or as a question.",
                    "minLength": 1,
                    "maxLength": 2000,
                },
                "vector_store_id": {
                    "type": "string",
                    "description": "Only in this vector store. Default: in all.",
                    "maxLength": 128,
                },
                "filters": {
                    "type": "object",
                    "description": 'Only files with such attributes: {"type": "eq", "key": "lang", "value": "en"}, or '
                    '{"type": "and", "filters": [...]}.',
                },
                "max_results": {
                    "type": "integer",
                    "description": f"How many passages at most. Default: {_FEW}.",
                    "minimum": 1,
                    "maximum": MOST_RESULTS,
                },
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        timeout_s=20.0,
        idempotent=True,
        result_bytes=16_384,
        examples=(
            "search my files for the contract's notice period",
            "what does the handbook say about holidays?",
            "find the passage on refunds in the documents",
            "在我的文件里查一下合同的期限",
            "文档里关于退款是怎么说的",
        ),
        aliases=(
            "my files",
            "my documents",
            "the documents",
            "uploaded file",
            "the handbook",
            "文件里",
            "文档里",
            "资料里",
        ),
    )

    def __init__(self, library: Callable[[], Awaitable[Library]]) -> None:
        self._library = library

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """A line of JSON for each passage, the best first. Raises ToolFailed, InvalidArguments."""
        request = _request(arguments, context)
        try:
            library = await self._library()
            store_id = arguments.get("vector_store_id")
            if store_id is not None:
                hits = list(await library.search(context.tenant, store_id, request))
            else:
                hits = await _everywhere(library, context.tenant, request)
        except AgentFlowError as error:
            again = isinstance(error, Refused | EngineFailure)
            raise ToolFailed(f"The files cannot be searched: {error}", again=again) from error
        lines = [_line(hit) for hit in hits[: request.max_num_results]]
        return ToolOutput("\n".join(lines) or "No passage was found.")


async def _everywhere(library: Library, tenant: str, request: SearchRequest) -> list[SearchHit]:
    """Raises InvalidRequest where no store at all can be searched for this, and what the library does."""
    page = await library.stores(tenant, PageRequest(limit=100))
    usable = [store for store in page.data if store.status != "expired" and store.file_counts.total]
    newest = sorted(usable, key=lambda store: -store.last_active_at)[:MOST_STORES]
    found = await asyncio.gather(
        *(library.search(tenant, store.id, request) for store in newest), return_exceptions=True
    )
    failures = [each for each in found if isinstance(each, BaseException)]
    lists = [each for each in found if not isinstance(each, BaseException)]
    for failure in failures:
        # One that went meanwhile, or has vectors of another model, keeps none of the others.
        if not lists or not isinstance(failure, InvalidRequest):
            raise failure
    return _in_turn(lists)


def _in_turn(lists: Sequence[Sequence[SearchHit]]) -> list[SearchHit]:
    """The first of each list, by their scores, then the second of each. A passage of a file that is in two stores comes once."""
    seen: dict[tuple[str, str], SearchHit] = {}
    for rank in range(max(map(len, lists), default=0)):
        level = [hits[rank] for hits in lists if rank < len(hits)]
        for hit in sorted(level, key=lambda hit: -hit.score):
            seen.setdefault((hit.file_id, hit.text), hit)
    return list(seen.values())


def _request(arguments: dict[str, Any], context: CallContext) -> SearchRequest:
    query, store_id, filters = arguments["query"], arguments.get("vector_store_id"), arguments.get("filters")
    if not isinstance(query, str) or not isinstance(store_id, str | None) or not isinstance(filters, dict | None):
        raise InvalidArguments("query and vector_store_id must be texts, and filters an object, not handles.")
    return SearchRequest(
        queries=(query,),
        filters=filters,
        max_num_results=int(arguments.get("max_results", _FEW)),
        deadline_s=max(0.1, context.deadline_at - time.monotonic()),
    )


def _line(hit: SearchHit) -> str:
    value = {"file_id": hit.file_id, "filename": hit.filename, "score": round(hit.score, 3), "text": hit.text}
    return msgspec.json.encode(value | ({"attributes": hit.attributes} if hit.attributes else {})).decode()
