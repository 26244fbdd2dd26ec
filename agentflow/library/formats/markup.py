"""HTML: the text that a reader sees, with the blocks of the page as lines and paragraphs.

Scripts, styles and what is marked as hidden are left out; the title comes first. For elements that lie in each other the
parser takes time in proportion to the square of their depth (20,000 levels take a second), so a page that nests deeper than
any real one is refused before it is parsed. It does so too for the attributes of one element (100,000 take a minute), and for
elements that are closed in the wrong order. These cannot be counted without parsing, so the parser has an allowance of
processor time, some ten times what any real page takes; when it is used up the kernel ends the process by TOO_SLOW. So this
belongs in a process of its own (extractor.py).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from selectolax.lexbor import LexborHTMLParser

from agentflow.library.errors import FileTooLarge
from agentflow.library.transcript import Transcript

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

MAX_DEPTH = 5_000
TOO_SLOW = signal.SIGVTALRM
"""What ends a process whose page is built to hold the parser up."""

_ALLOWED_S = 1.0
_ALLOWED_S_A_CHARACTER = 1e-6  # pages that are all tags take 1.3e-7


def _tags(names: str) -> frozenset[str]:
    return frozenset(names.split())


_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_SPACE = re.compile(r"[ \t\n\f\r]+")
_HIDING = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_UNSEEN = _tags(
    "script style template noscript iframe object embed applet canvas svg math audio video datalist dialog "
    "-comment !doctype"
)
_NO_END_TAG = _tags(  # those that end by themselves do not add to the depth
    "area base br col embed hr img input link meta param source track wbr "
    "p li dt dd tr td th thead tbody tfoot colgroup caption option optgroup rp rt html head body"
)
_PARAGRAPHS = _tags(
    "address article aside blockquote body center details dl div fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr "
    "main menu nav ol p pre section table title ul"
)
_LINES = _tags("br caption dd dt figcaption legend li option summary tr")
_CELLS = frozenset(("td", "th"))


def read_html(text: str, out: Transcript) -> None:
    """Write the visible text of a page. Raises FileTooLarge for elements nested more than MAX_DEPTH deep."""
    _check_depth(text)
    lines = _Lines(out)
    with _allowance(len(text)):
        root = LexborHTMLParser(text).root
    if root is not None:
        _walk(root, lines)
    lines.end("\n")


def _check_depth(text: str) -> None:
    depth = 0
    for tag in _TAG.finditer(text):
        if tag[2].lower() in _NO_END_TAG:
            continue
        depth = max(depth - 1, 0) if tag[1] else depth + 1
        if depth > MAX_DEPTH:
            raise FileTooLarge(
                f"its HTML is nested more than {MAX_DEPTH:,} elements deep: simplify it, or upload the text"
            )


@contextmanager
def _allowance(characters: int) -> Iterator[None]:
    """Let the kernel end this process if it computes longer than the parser may for so many characters."""
    signal.setitimer(signal.ITIMER_VIRTUAL, _ALLOWED_S + characters * _ALLOWED_S_A_CHARACTER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class _Lines:
    """Puts text together as a browser does: white space is one space, and blocks begin on a line of their own."""

    def __init__(self, out: Transcript) -> None:
        self._out = out
        self._gap = ""
        self._begun = False

    def end(self, gap: str) -> None:
        """What comes next is apart from what came before: by "\\n\\n", "\\n", a tab or a space, the widest that was asked for."""
        order = ("", " ", "\t", "\n", "\n\n")
        self._gap = max(self._gap, gap, key=order.index)

    def add(self, text: str, *, as_is: bool) -> None:
        """Add a piece of text; `as_is`: its white space counts."""
        words = text if as_is else _SPACE.sub(" ", text)
        if words.startswith(" ") and not as_is:
            self.end(" ")
        if stripped := words if as_is else words.strip(" "):
            self._out.add((self._gap if self._begun else "") + stripped)
            self._gap, self._begun = "", True
        if words.endswith(" ") and not as_is:
            self.end(" ")


def _walk(root: LexborNode, lines: _Lines) -> None:
    """Visit the tree in the order of the page, without recursion. A `pre` element keeps its white space."""
    node: LexborNode | None = root
    pre = 0
    while node is not None:
        tag = node.tag or ""
        if node.is_text_node:
            lines.add(node.text_content or "", as_is=pre > 0)
        elif not _is_unseen(node, tag):
            lines.end(_gap_of(tag))
            if (child := node.first_child) is not None:
                pre += tag == "pre"
                node = child
                continue
        while node is not None and node.next is None:
            node = node.parent
            if node is not None:
                closed = node.tag or ""
                lines.end(_gap_of(closed))
                pre -= closed == "pre"
        node = node.next if node is not None else None


def _gap_of(tag: str) -> str:
    if tag in _PARAGRAPHS:
        return "\n\n"
    if tag in _LINES:
        return "\n"
    return "\t" if tag in _CELLS else ""


def _is_unseen(node: LexborNode, tag: str) -> bool:
    if tag in _UNSEEN or not node.is_element_node:
        return True
    attributes = node.attributes
    if not attributes:
        return False
    return "hidden" in attributes or bool(_HIDING.search(attributes.get("style") or ""))
