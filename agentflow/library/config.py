"""The library's section of the configuration. Frozen; acu/config alone reads a file or the environment."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MOST_PREFIX = 1_000  # characters


class LibraryConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds of files and vector stores. What is said of a tenant holds for each tenant by itself."""

    max_file_mb: Annotated[int, Meta(description="Largest file in MiB that may be uploaded.", ge=1, le=65_536)] = 512
    max_tenant_mb: Annotated[int, Meta(description="Bytes of all files of a tenant, in MiB.", ge=1)] = 20_480
    max_tenant_files: Annotated[int, Meta(description="Files that a tenant may have.", ge=1, le=100_000)] = 10_000
    max_tenant_stores: Annotated[int, Meta(description="Vector stores that a tenant may have.", ge=1, le=100_000)] = (
        1_000
    )
    max_store_files: Annotated[int, Meta(description="Files that a vector store may have.", ge=1, le=100_000)] = 10_000
    ingest_files: Annotated[
        int, Meta(description="Files that are read, cut and embedded at a time, over all tenants.", ge=1, le=64)
    ] = 2
    embed_batch: Annotated[
        int,
        Meta(
            description="Chunks of a file that are embedded at once. Fewer let other requests in sooner.", ge=1, le=256
        ),
    ] = 16
    query_prefix: Annotated[
        Annotated[str, Meta(max_length=MOST_PREFIX)] | None,
        Meta(
            description="What the embedding model wants before a query, such as `query: ` (e5). Default: what the model's own "
            "config_sentence_transformers.json says, else nothing. Files that are in a store already must be attached again.",
        ),
    ] = None
    passage_prefix: Annotated[
        Annotated[str, Meta(max_length=MOST_PREFIX)] | None,
        Meta(description="The same before a chunk of a file, such as `passage: `."),
    ] = None
