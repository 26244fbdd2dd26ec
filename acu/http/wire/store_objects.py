"""Answers of /v1/vector_stores, made of the library's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from acu.http.wire.vector_stores import ExpiresAfter, StaticChunking, StaticSizes
from agentflow.library import values
from agentflow.library.chunking import ChunkingStrategy
from agentflow.library.values import Attribute, BatchStatus, ErrorCode, FileStatus, StoreStatus

Score = Annotated[float, Meta(ge=0, le=1)]


class FileCounts(Struct, frozen=True, kw_only=True):
    """How many files are in which state."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStore(Struct, frozen=True, kw_only=True):
    """A vector store. `name` is empty where none was given."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    usage_bytes: int
    file_counts: FileCounts
    status: StoreStatus
    expires_after: ExpiresAfter | None
    expires_at: int | None
    last_active_at: int
    metadata: dict[str, str]


class VectorStoreList(Struct, frozen=True, kw_only=True):
    """A page of vector stores."""

    object: Literal["list"] = "list"
    data: list[VectorStore]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VectorStoreDeleted(Struct, frozen=True, kw_only=True):
    """A vector store is gone."""

    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: bool = True


class TextContent(Struct, frozen=True, kw_only=True):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class SearchResult(Struct, frozen=True, kw_only=True):
    """A chunk that was found."""

    file_id: str
    filename: str
    score: Score
    attributes: dict[str, Attribute]
    content: list[TextContent]


class SearchResults(Struct, frozen=True, kw_only=True):
    """What a search found, best first. There is one page."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[SearchResult]
    has_more: bool = False
    next_page: None = None


class LastError(Struct, frozen=True):
    """Why a file could not be put into a vector store."""

    code: ErrorCode
    message: str


class StoreFile(Struct, frozen=True, kw_only=True):
    """A file in a vector store."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    usage_bytes: int
    created_at: int
    vector_store_id: str
    status: FileStatus
    last_error: LastError | None
    attributes: dict[str, Attribute]
    chunking_strategy: StaticChunking


class StoreFileList(Struct, frozen=True, kw_only=True):
    """A page of the files of a vector store or of a batch."""

    object: Literal["list"] = "list"
    data: list[StoreFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoreFileDeleted(Struct, frozen=True, kw_only=True):
    """A file is no longer in a vector store."""

    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: bool = True


class StoreFileContent(Struct, frozen=True, kw_only=True):
    """Chunks of a file as they are searched. `next_page` is the query's `page` of those that follow."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[TextContent]
    has_more: bool
    next_page: str | None


class FileBatch(Struct, frozen=True, kw_only=True):
    """Files that were put into a vector store together."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: BatchStatus
    file_counts: FileCounts


def store_object(store: values.VectorStore) -> VectorStore:
    """OpenAI's shape of a vector store."""
    days = store.expires_after_days
    return VectorStore(
        id=store.id,
        created_at=store.created_at,
        name=store.name or "",
        usage_bytes=store.usage_bytes,
        file_counts=_counts(store.file_counts),
        status=store.status,
        expires_after=None if days is None else ExpiresAfter(anchor="last_active_at", days=days),
        expires_at=store.expires_at,
        last_active_at=store.last_active_at,
        metadata=store.metadata,
    )


def file_object(file: values.StoreFile) -> StoreFile:
    """OpenAI's shape of a file in a vector store. What was cut by `auto` tells the sizes that this stands for."""
    cut = file.chunking or ChunkingStrategy()
    error = file.last_error
    return StoreFile(
        id=file.id,
        usage_bytes=file.usage_bytes,
        created_at=file.created_at,
        vector_store_id=file.vector_store_id,
        status=file.status,
        last_error=None if error is None else LastError(error.code, error.message),
        attributes=file.attributes,
        chunking_strategy=StaticChunking(
            static=StaticSizes(
                max_chunk_size_tokens=cut.max_chunk_size_tokens, chunk_overlap_tokens=cut.chunk_overlap_tokens
            )
        ),
    )


def batch_object(batch: values.FileBatch) -> FileBatch:
    """OpenAI's shape of a batch."""
    return FileBatch(
        id=batch.id,
        created_at=batch.created_at,
        vector_store_id=batch.vector_store_id,
        status=batch.status,
        file_counts=_counts(batch.file_counts),
    )


def content_object(content: values.Content) -> StoreFileContent:
    """OpenAI's shape of a part of a file's chunks."""
    following = content.following
    return StoreFileContent(
        data=[TextContent(text=text) for text in content.texts],
        has_more=following is not None,
        next_page=None if following is None else str(following),
    )


def search_results(queries: Sequence[str], hits: Sequence[values.SearchHit]) -> SearchResults:
    """OpenAI's shape of what was found for `queries`."""
    data = [
        SearchResult(
            file_id=hit.file_id,
            filename=hit.filename,
            score=hit.score,
            attributes=hit.attributes,
            content=[TextContent(text=hit.text)],
        )
        for hit in hits
    ]
    return SearchResults(search_query=list(queries), data=data)


def _counts(counts: values.FileCounts) -> FileCounts:
    return FileCounts(
        in_progress=counts.in_progress,
        completed=counts.completed,
        failed=counts.failed,
        cancelled=counts.cancelled,
        total=counts.total,
    )
