"""What /proc/PID/numa_maps tells: on which nodes the pages of a process lie. Pure: its text in, sums out.

A line is one mapping: its address, its policy, words and numbers. `N0=5` are pages on node 0, of `kernelpagesize_kB` each (a
transparent huge page counts as its 4 KiB pages, a page of hugetlbfs as one). Two kinds are kept apart:

* memory of the process itself: heap, stack, anonymous mappings, private copies of a file's pages, shared memory (memfd,
  /dev/shm, System V). Its place is decided by the policy of whoever touches it first, so this is what a binding can promise.
* pages of files: libraries, weights that are mapped. They are the page cache's, lie where they lay when somebody first read
  the file, perhaps before the start and for another process, and no policy of this process moves them.
"""

from __future__ import annotations

from msgspec import Struct

SHARED_MEMORY = ("file=/memfd:", "file=/dev/shm/", "file=/dev/zero", "file=/SYSV", "file=/anon_hugepage")
GOOD_SHARE = 0.98
"""Of a process's own memory that is to lie on its node."""


class Pages(Struct, frozen=True):
    """Bytes of a process on each node: its own memory, and pages of files that it has mapped."""

    own: dict[int, int] = {}
    files: dict[int, int] = {}

    def share(self, node: int) -> float:
        """The part of its own memory that lies on `node`, 0.0 to 1.0; 1.0 of nothing."""
        return _share(self.own, node)

    def file_share(self, node: int) -> float:
        """The same of its files' pages."""
        return _share(self.files, node)


def parse(text: str) -> Pages:
    """Sum the mappings up. A line that is none, as one that was cut off, adds nothing."""
    own: dict[int, int] = {}
    files: dict[int, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        pages, size, private, is_file = _mapping(words[2:])
        if not pages:
            continue
        kept = files if is_file and private < sum(pages.values()) else own
        for node, count in pages.items():
            kept[node] = kept.get(node, 0) + count * size
    return Pages(own, files)


def _mapping(words: list[str]) -> tuple[dict[int, int], int, int, bool]:
    """Pages on each node, bytes of a page, how many of the pages are private, and whether it is a file on a disk."""
    pages: dict[int, int] = {}
    size, private, is_file = 4096, 0, False
    for word in words:
        name, _, value = word.partition("=")
        if name == "file":
            is_file = not word.startswith(SHARED_MEMORY)
        elif value.isdecimal():
            if name[:1] == "N" and name[1:].isdecimal():
                pages[int(name[1:])] = int(value)
            elif name == "kernelpagesize_kB":
                size = int(value) * 1024
            elif name == "anon":
                private = int(value)
    return pages, size, private, is_file


def _share(sizes: dict[int, int], node: int) -> float:
    total = sum(sizes.values())
    return sizes.get(node, 0) / total if total else 1.0
