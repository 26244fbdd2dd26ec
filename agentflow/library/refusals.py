"""What the library refuses.

InvalidRequest
├── NotStored               nothing of that id is there for this tenant
├── QuotaExceeded           the tenant has as much as it may have
├── StoreExpired            the vector store expired: its rows are gone
└── EmbedderChanged         the vector store's vectors are of another model than the one that is served
Refused
└── DataUnavailable         the data plane cannot do it now
    └── DiskFull            writes are refused, reads go on
AgentFlowError
└── DataDamaged             stored bytes are missing, or not what was written
"""

from __future__ import annotations

from agentflow.errors import AgentFlowError, InvalidRequest, Refused


class NotStored(InvalidRequest):
    """Nothing of that id is there for this tenant; whether another has it cannot be told."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="not_found")


class QuotaExceeded(InvalidRequest):
    """The tenant has as many bytes, files or stores as it may have. The message says what to delete."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="quota_exceeded")


class StoreExpired(InvalidRequest):
    """The vector store expired: it can be read and deleted, but not searched or filled."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="vector_store_id", code="vector_store_expired")


class EmbedderChanged(InvalidRequest):
    """The vector store was made with another embedding model than the one that is served now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="vector_store_id", code="embedder_changed")


class DataUnavailable(Refused):
    """The data plane cannot do it now."""


class DiskFull(DataUnavailable):
    """The disk is full: writes are refused, reads go on."""


class DataDamaged(AgentFlowError):
    """Stored bytes are missing, or not what was written. The message names them, for the log.

    `of`: what they are of, such as `run run_1`, for who asked for it.
    """

    def __init__(self, message: str, *, of: str | None = None) -> None:
        super().__init__(message)
        self.of = of
