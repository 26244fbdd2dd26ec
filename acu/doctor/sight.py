"""Sight: the kernel's small files, read through a root, where what cannot be read is noted instead of raised.

A file that is not there is None and no note: kernels, boxes and drivers differ in what they have. One that is there and does not
open is None and a sentence in `unread`, once. Threads may share a Sight.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from acu.hardware.numa import SLASH
from acu.process.mounts import Mount, mounts_in


class Sight:
    """A view of the machine, or of a recorded tree of its files. Paths are without their leading slash."""

    def __init__(self, root: Path = SLASH) -> None:
        self.root = root
        self.unread: list[str] = []

    @property
    def here(self) -> bool:
        """Whether this is the machine itself: what has no file can be asked of the kernel."""
        return self.root == SLASH

    def note(self, what: str, error: BaseException) -> None:
        """Remember what could not be read, and why."""
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        self.note_all([f"{what}: {reason}"])

    def note_all(self, sentences: Iterable[str]) -> None:
        """Remember sentences, each once."""
        self.unread += [sentence for sentence in sentences if sentence not in self.unread]

    def mounts(self) -> tuple[Mount, ...]:
        """All mounts that this process sees."""
        return mounts_in(self.text("proc/self/mountinfo") or "")

    def text(self, path: str) -> str | None:
        """What a file holds, without space around it."""
        try:
            return (self.root / path).read_bytes().decode(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.note(f"/{path}", error)
            return None

    def number(self, path: str) -> int | None:
        """The whole number that a file holds."""
        text = self.text(path)
        try:
            return None if text is None else int(text)
        except ValueError as error:
            self.note(f"/{path}", error)
            return None

    def chosen(self, path: str) -> str | None:
        """The word in brackets, of a file that lists what may be chosen: `none [mq-deadline]`; else its only word."""
        text = self.text(path) or ""
        words = text.split()
        inside = [word[1:-1] for word in words if word.startswith("[") and word.endswith("]")]
        if inside:
            return inside[0]
        return words[0] if len(words) == 1 else None

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, in order."""
        try:
            return tuple(sorted(path.name for path in (self.root / folder).iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            self.note(f"/{folder}", error)
            return ()

    def fields(self, path: str) -> dict[str, str]:
        """The values of a file of `Name: value` lines."""
        pairs = (line.partition(":") for line in (self.text(path) or "").splitlines())
        return {name.strip(): value.strip() for name, colon, value in pairs if colon}
