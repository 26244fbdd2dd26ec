"""Bodies of /v1/vector_stores, and their translation to and from the library's values.

`attributes` and `filters` are any JSON object of a sane size here: their rules are the library's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from acu.http.errors import BadRequest
from acu.http.wire.decode import BodyDecoder, clean_json, clean_text
from acu.http.wire.sampling import Short
from agentflow.library.chunking import ChunkingStrategy
from agentflow.library.values import Attachment, NewStore, Ranker, SearchRequest, StoreChanges

MAX_BATCH = 500
MAX_QUERIES = 16

FileId = Annotated[str, Meta(min_length=1, max_length=128)]
Name = Annotated[str, Meta(max_length=256)]
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Short], Meta(max_length=16)]
Attributes = Annotated[
    dict[str, Any], Meta(max_length=16, description="Strings of at most 512 characters, numbers and booleans.")
]
Query = Annotated[str, Meta(min_length=1, max_length=65_536)]


class ExpiresAfter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a vector store expires: so many days after it was last used."""

    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class StaticSizes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of chunks in tokens. The overlap is at most half of a chunk."""

    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Meta(ge=0, le=2048)]


class AutoChunking(Struct, frozen=True, tag_field="type", tag="auto", forbid_unknown_fields=True):
    """Chunks of 800 tokens that overlap by 400."""


class StaticChunking(Struct, frozen=True, kw_only=True, tag_field="type", tag="static", forbid_unknown_fields=True):
    """Chunks of one's own size."""

    static: StaticSizes


Chunking = AutoChunking | StaticChunking


class StoreBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A vector store to make. `description` is checked for its form, and without effect."""

    name: Name | None = None
    description: Short | None = None
    file_ids: Annotated[list[FileId], Meta(max_length=MAX_BATCH)] | None = None
    expires_after: ExpiresAfter | None = None
    chunking_strategy: Chunking | None = None
    metadata: Metadata | None = None


class StoreUpdateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a vector store; a null removes."""

    name: Name | UnsetType | None = UNSET
    expires_after: ExpiresAfter | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class RankingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to rank: `none` by vectors alone, else with full text too. Scores are from 0 to 1."""

    ranker: Ranker | None = None
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None


class SearchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to look for in a vector store. `rewrite_query` is a hint; queries are never rewritten here."""

    query: Query | Annotated[list[Query], Meta(min_length=1, max_length=MAX_QUERIES)]
    filters: dict[str, Any] | None = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    ranking_options: RankingOptions | None = None
    rewrite_query: bool | None = None


class AttachBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file to put into a vector store."""

    file_id: FileId
    attributes: Attributes | None = None
    chunking_strategy: Chunking | None = None


class AttributesBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new attributes of a file in a vector store; null for none."""

    attributes: Attributes | None


class BatchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files to put into a vector store together: either `file_ids`, to which the rest applies, or `files`."""

    file_ids: Annotated[list[FileId], Meta(min_length=1, max_length=MAX_BATCH)] | None = None
    files: Annotated[list[AttachBody], Meta(min_length=1, max_length=MAX_BATCH)] | None = None
    attributes: Attributes | None = None
    chunking_strategy: Chunking | None = None


STORE_DECODER = BodyDecoder(StoreBody)
STORE_UPDATE_DECODER = BodyDecoder(StoreUpdateBody)
SEARCH_DECODER = BodyDecoder(SearchBody)
ATTACH_DECODER = BodyDecoder(AttachBody)
ATTRIBUTES_DECODER = BodyDecoder(AttributesBody)
BATCH_DECODER = BodyDecoder(BatchBody)


def new_store(body: StoreBody) -> NewStore:
    """The library's value of `body`. This and those below raise BadRequest for what the types could not say."""
    if body.description is not None:
        clean_text(body.description, "description")
    return NewStore(
        name=None if body.name is None else clean_text(body.name, "name"),
        file_ids=tuple(body.file_ids or ()),
        expires_after_days=None if body.expires_after is None else body.expires_after.days,
        chunking=chunking(body.chunking_strategy),
        metadata=_metadata(body.metadata),
    )


def store_changes(body: StoreUpdateBody) -> StoreChanges:
    """The library's value of `body`."""
    expires = body.expires_after
    return StoreChanges(
        name=clean_text(body.name, "name") if isinstance(body.name, str) else body.name,
        expires_after_days=expires.days if isinstance(expires, ExpiresAfter) else expires,
        metadata=_metadata(body.metadata) if isinstance(body.metadata, dict) else body.metadata,
    )


def search_request(body: SearchBody, deadline_s: float | None) -> SearchRequest:
    """The library's value of `body`; `deadline_s` as in agentflow.messages."""
    queries = [body.query] if isinstance(body.query, str) else body.query
    many = not isinstance(body.query, str)
    ranking = body.ranking_options or RankingOptions()
    return SearchRequest(
        queries=tuple(clean_text(text, f"query[{i}]" if many else "query") for i, text in enumerate(queries)),
        filters=_json(body.filters, "filters"),
        max_num_results=body.max_num_results or 10,
        ranker=ranking.ranker or "auto",
        score_threshold=ranking.score_threshold or 0.0,
        deadline_s=deadline_s,
    )


def attachment(body: AttachBody, where: str = "") -> Attachment:
    """The library's value of `body`, which stands at `where` in the request."""
    return Attachment(
        file_id=body.file_id,
        attributes=_json(body.attributes, f"{where}attributes"),
        chunking=chunking(body.chunking_strategy),
    )


def attachments(body: BatchBody) -> tuple[Attachment, ...]:
    """The library's values of `body`. As OpenAI has it, `files` have attributes and strategies of their own only."""
    if (body.file_ids is None) == (body.files is None):
        raise BadRequest("Give either 'file_ids' or 'files'.", param="file_ids" if body.files is None else "files")
    if body.files is not None:
        return tuple(attachment(file, f"files[{i}].") for i, file in enumerate(body.files))
    attributes = _json(body.attributes, "attributes")
    cut = chunking(body.chunking_strategy)
    return tuple(Attachment(file_id=file, attributes=attributes, chunking=cut) for file in body.file_ids or ())


def chunking(given: Chunking | None) -> ChunkingStrategy | None:
    """How to cut a text; None for `auto`."""
    if not isinstance(given, StaticChunking):
        return None
    return ChunkingStrategy(given.static.max_chunk_size_tokens, given.static.chunk_overlap_tokens)


def new_attributes(body: AttributesBody) -> dict[str, Any]:
    """The new attributes, which may be none."""
    return _json(body.attributes, "attributes") or {}


def _metadata(metadata: dict[str, str] | None) -> dict[str, str] | None:
    for key, value in (metadata or {}).items():
        clean_text(key, "metadata")
        clean_text(value, f"metadata.{key}")
    return metadata


def _json(value: dict[str, Any] | None, param: str) -> dict[str, Any] | None:
    if value is not None:
        clean_json(value, param)
    return value
