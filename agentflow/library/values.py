"""Files and vector stores as frozen values: what a caller asks of the library, and what it answers.

Times are Unix times in whole seconds. Ids are of one tenant: what another has cannot be told from what nobody has.
Nothing of the data plane is imported here, so that the HTTP side may know these words before it is there.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Struct, UnsetType

from agentflow.library.chunking import ChunkingStrategy

T = TypeVar("T")

Attribute: TypeAlias = str | int | float | bool  # int besides float, so that 5 does not come back as 5.0
Order = Literal["asc", "desc"]
FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]
StoreStatus = Literal["in_progress", "completed", "expired"]
BatchStatus = Literal["in_progress", "completed", "cancelled"]
ErrorCode = Literal["unsupported_file", "invalid_file", "server_error"]
Ranker = Literal["auto", "default-2024-11-15", "none"]

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")


class PageRequest(Struct, frozen=True, kw_only=True):
    """A part of a list. `order` is by time of making; `after` and `before` are ids, and bound the part.

    With `before` alone, the part is the one that ends just before it.
    """

    limit: int = 20
    order: Order = "desc"
    after: str | None = None
    before: str | None = None


class Page(Struct, Generic[T], frozen=True):
    """A part of a list, in the order that was asked for, and whether there is more in that direction."""

    data: tuple[T, ...]
    has_more: bool


class FileObject(Struct, frozen=True, kw_only=True):
    """An uploaded file. Its bytes do not change."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None


class FileCounts(Struct, frozen=True, kw_only=True):
    """How many files of a store or a batch are in which state."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.in_progress + self.completed + self.failed + self.cancelled


class Attachment(Struct, frozen=True, kw_only=True):
    """A file to put into a store. `attributes` as decoded JSON; `chunking` None: OpenAI's `auto`."""

    file_id: str
    attributes: Any = None
    chunking: ChunkingStrategy | None = None


class NewStore(Struct, frozen=True, kw_only=True):
    """A vector store to make. `expires_after_days` counts from its last use; `chunking` is for `file_ids`."""

    name: str | None = None
    file_ids: tuple[str, ...] = ()
    expires_after_days: int | None = None
    chunking: ChunkingStrategy | None = None
    metadata: dict[str, str] | None = None


class StoreChanges(Struct, frozen=True, kw_only=True):
    """What to change of a vector store: what is UNSET stays as it is, None removes."""

    name: str | UnsetType | None = UNSET
    expires_after_days: int | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType | None = UNSET


class VectorStore(Struct, frozen=True, kw_only=True):
    """A vector store. `usage_bytes` counts texts and vectors; `embedder` is the model that its vectors are of."""

    id: str
    name: str | None
    created_at: int
    metadata: dict[str, str]
    file_counts: FileCounts
    usage_bytes: int
    status: StoreStatus
    last_active_at: int
    expires_after_days: int | None
    expires_at: int | None
    embedder: str


class FileError(Struct, frozen=True):
    """Why a file could not be put into a store."""

    code: ErrorCode
    message: str


class StoreFile(Struct, frozen=True, kw_only=True):
    """A file in a vector store; `id` is the file's own. `chunking` None: OpenAI's `auto`."""

    id: str
    vector_store_id: str
    created_at: int
    status: FileStatus
    last_error: FileError | None
    usage_bytes: int
    attributes: dict[str, Attribute]
    chunking: ChunkingStrategy | None


class FileBatch(Struct, frozen=True, kw_only=True):
    """Files that were put into a store together. A file that is attached again, or deleted, is no longer counted."""

    id: str
    vector_store_id: str
    created_at: int
    status: BatchStatus
    file_counts: FileCounts


class Content(Struct, frozen=True):
    """A part of a file's chunks as they are searched, in order; `following` is where the next part begins, or None."""

    texts: tuple[str, ...]
    following: int | None


class SearchRequest(Struct, frozen=True, kw_only=True):
    """What is looked for in a store. `filters` is OpenAI's filter as decoded JSON, or None.

    `ranker` none: by vectors alone; the others fuse that with full text. `score_threshold`: 0 to 1. `deadline_s`: how
    long the query may wait for the embedding model, None for the scheduler's default.
    """

    queries: tuple[str, ...]
    filters: Any = None
    max_num_results: int = 10
    ranker: Ranker = "auto"
    score_threshold: float = 0.0
    deadline_s: float | None = None


class SearchHit(Struct, frozen=True, kw_only=True):
    """A chunk that was found. `score`: from 0 to 1, how well it fits (searching.py says what that means)."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, Attribute]
    text: str
