"""Tools of an assistant that answers from documents: search a folder of Markdown files, and read a section whole.

The index is SQLite's full text search (FTS5), in memory, made in the tool's own process when it is first asked: a section
under its heading is a row. English words are found in all their forms (porter), Chinese by each two characters that stand
together. Put your own files into `texts`.
"""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import functools
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from agentflow.tools.function import tool

# A small model need not spell what the user has written.
Request = Annotated[str, Meta(extra_json_schema={"x-from-user": "message"})]
FOLDER = Path(__file__).resolve().parent / "texts"
SHOWN = 400  # characters of a section in an answer: a small model loses what is longer
_SECTION = re.compile(r"^#{1,3} +(.+)$", re.MULTILINE)
_CHINESE = r"[\u4e00-\u9fff]"
_TERM = re.compile(rf"{_CHINESE}+|[^\W\u4e00-\u9fff]+")
# What questions are made of; a section is not found by these.
_ASKING = """
a about an and are be can could do does find for from has have how i if in is it its look may me much must my of on or s say
says search should tell that the their there this to was were what when where which who whom whose why will with would you
your document documents docs manual handbook guide
"""
_CHINESE_ASKING = re.compile(
    "怎么样|怎么|怎样|什么|如何|关于|文档|手册|多少|哪些|哪里|请问|有没有|没有|是谁|是否|能不能|可以|[的吗呢了是里吧]"
)
# What a reader asks for a section with; none is found by these.
_READING = "read show section sections chapter document documents page whole full text all please 读一 一下 全文"


def sections(text: str) -> list[tuple[str, str]]:
    """A document's sections: heading and text, without those that are empty."""
    found = list(_SECTION.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    cut = [(match[1], text[match.end() : end].strip()) for match, end in zip(found, ends, strict=True)]
    return [(heading, body) for heading, body in cut if body]


def spaced(text: str) -> str:
    """The text with a space around each Chinese character, which makes a word of it."""
    return re.sub(_CHINESE, r" \g<0> ", text)


def terms(query: str) -> list[str]:
    """What a query asks for: words, and each two Chinese characters that stand together."""
    said: list[str] = []
    for term in _TERM.findall(_CHINESE_ASKING.sub(" ", query.casefold())):
        said += [term] if not re.match(_CHINESE, term) else [term[at : at + 2] for at in range(max(1, len(term) - 1))]
    kept = [term for term in said if term not in _ASKING.split()]
    return [term for term in kept if len(term) > 1 or not re.match(_CHINESE, term)] or kept


@functools.cache
def index() -> sqlite3.Connection:
    """All sections of all documents. In memory, for one process."""
    base = sqlite3.connect(":memory:", check_same_thread=False)
    base.execute(
        "CREATE VIRTUAL TABLE sections USING fts5(place UNINDEXED, text UNINDEXED, heading, body, "
        "tokenize = 'porter unicode61')"
    )
    for path in sorted(FOLDER.glob("*.md")):
        for heading, body in sections(path.read_text(encoding="utf-8")):
            row = (f"{path.stem}: {heading}", body, spaced(heading), spaced(body))
            base.execute("INSERT INTO sections VALUES (?, ?, ?, ?)", row)
    return base


def found(query: str, limit: int) -> list[tuple[str, str]]:
    """Places and texts of the sections that are most like the query; a heading counts four times.

    Any term may match, but one that has few of them is about something else: half of the words, or a third of the pairs of
    Chinese characters, of which many are no words.
    """
    asked = list(dict.fromkeys(terms(query)))
    rows = [_rows_with(f'"{spaced(term).strip()}"') for term in asked]
    count = Counter(row for each in rows for row in each)
    least = len(asked) / (3 if any(re.match(_CHINESE, term) for term in asked) else 2)
    ranked = _rows_with(" OR ".join(f'"{spaced(term).strip()}"' for term in asked)) if asked else []
    kept = [row for row in ranked if count[row] >= least][:limit]
    return [index().execute("SELECT place, text FROM sections WHERE rowid = ?", (row,)).fetchone() for row in kept]


def _rows_with(match: str) -> list[int]:
    """The numbers of the sections that a query of FTS5 matches, the best first."""
    best = "SELECT rowid FROM sections WHERE sections MATCH ? ORDER BY bm25(sections, 0, 0, 4, 1)"
    return [row for (row,) in index().execute(best, (match,))]


def named(said: str) -> list[tuple[str, str]]:
    """Places and texts of what somebody names: a section by its heading, one of a document, or the document whole."""
    every = index().execute("SELECT place, text FROM sections ORDER BY rowid").fetchall()
    words = [term for term in terms(said) if term not in _READING.split()]

    def has(name: str) -> int:
        """How many words of a name were said, where all of them were."""
        of = terms(name)
        return len(of) if set(of) <= set(words) else 0

    best = max(every, key=lambda row: (has(_heading(row[0])), has(_document(row[0]))), default=None)
    if best is not None and has(_heading(best[0])):
        return [best]
    document = next((_document(place) for place, _ in every if has(_document(place))), None)
    if document is None:
        return found(" ".join(words), 1)
    within = [row for row in every if _document(row[0]) == document]
    wanted = " ".join(word for word in words if word not in terms(document))
    return [row for row in found(wanted, len(every)) if row in within][:1] or within


def _document(place: str) -> str:
    return place.partition(": ")[0]


def _heading(place: str) -> str:
    return place.partition(": ")[2]


def shortened(text: str) -> str:
    """One line, of SHOWN characters at most."""
    line = " ".join(text.replace("`", "").split())
    return line if len(line) <= SHOWN else line[: line.rfind(" ", 0, SHOWN)] + " ..."


@tool(
    idempotent=True,
    timeout_s=10,
    examples=(
        "How do I stop the daemon?",
        "Where are the models stored?",
        "How do I write a tool?",
        "What does the manual say about API keys?",
        "Find the section on routing",
        "How can I delete a tenant's data?",
        "Which languages does the small model speak?",
        "怎么停止服务？",
        "文档里关于密钥是怎么写的？",
        "怎么写一个工具？",
    ),
    aliases=(
        *(
            "document",
            "documents",
            "docs",
            "manual",
            "handbook",
            "guide",
            "section",
            "look up",
            "search",
            "find",
            "acu",
        ),
        *(
            "daemon",
            "quickstart",
            "configuration",
            "configure",
            "agent",
            "agents",
            "tool",
            "tools",
            "api key",
            "api keys",
        ),
        *("tls", "tenant", "router", "handle", "log", "gpu", "文档", "文件", "手册", "查一下", "查找", "配置", "密钥"),
        *("工具", "模型", "智能体", "服务"),
    ),
)
def search_documents(query: Request) -> str:
    """Search the documents about ACU, and return the section that answers.

    Args:
        query: What is looked for, in the user's words.
    """
    hits = found(query, 3)
    if not hits:
        chinese = f"文档里没有关于“{query[:60]}”的内容。"
        return chinese if re.search(_CHINESE, query) else f"The documents say nothing about {query[:60]!r}."
    (place, body), *more = hits
    others = f" (See also: {'; '.join(place for place, _ in more)}.)" if more else ""
    return f"{place}. {shortened(body)}{others}"


@tool(
    idempotent=True,
    timeout_s=10,
    examples=("Read the section on long results", "Show me all of 'Where models and data are stored'"),
    aliases=(
        *("read the section", "read section", "whole section", "full text", "show me all of", "全文", "读一下"),
        *("整节", "那一节", "这一节", "完整", "全部内容"),
    ),
)
def read_section(place: Request) -> str:
    """Read one section of a document whole, or all of a document.

    Args:
        place: Its document and heading, as a search names it, such as models: Languages; or one of the two.
    """
    rows = named(place)
    if not rows:
        return f"There is no section {place[:60]!r}. Search for it."
    return "\n\n".join(f"{place}\n\n{text}" for place, text in rows)
