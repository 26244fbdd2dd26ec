"""Why the text of a file could not be had.

InvalidRequest
└── FileRefused             the caller's file is at fault
    ├── UnsupportedFile     no kind of file that is read here: an archive, an image, an office document, binary data
    ├── FileUnreadable      of a kind that is read, but broken, encrypted, in another encoding, or without text
    └── FileTooLarge        over a limit: of bytes, of pages, of text, of time, of memory
AgentFlowError
└── ExtractionFailed        the reader could not be started, or failed for no fault of the file
"""

from __future__ import annotations

from typing import ClassVar

from agentflow.errors import AgentFlowError, InvalidRequest


class FileRefused(InvalidRequest):
    """The file cannot be read as it is. `str(error)` says what is wrong with it and what to do."""

    CODE: ClassVar[str] = "file_refused"

    def __init__(self, message: str, *, param: str | None = "file") -> None:
        super().__init__(message, param=param, code=self.CODE)


class UnsupportedFile(FileRefused):
    """The file is of a kind that is not read here."""

    CODE = "unsupported_file"


class FileUnreadable(FileRefused):
    """The file is of a kind that is read here, but this one is broken, encrypted, not in UTF-8, or has no text."""

    CODE = "file_unreadable"


class FileTooLarge(FileRefused):
    """The file is over a limit of bytes, pages, text, nesting, time or memory."""

    CODE = "file_too_large"


class ExtractionFailed(AgentFlowError):
    """The reader could not be started, or failed for no fault of the file. The message has the reader's last words."""
