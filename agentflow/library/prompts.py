"""What an embedding model wants before a text: some tell queries and passages apart by words (e5: `query: `, `passage: `).

The model's files say so as sentence-transformers writes it, in `config_sentence_transformers.json`:

    {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": null}

`document` is another name for `passage`; the default prompt stands in for one that is not named. The configuration goes before
the files. What cannot be read there says nothing: the model embeds all the same.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from msgspec import Struct

from agentflow.library.config import LibraryConfig

FILE = "config_sentence_transformers.json"

_log = logging.getLogger(__name__)


class Prompts(Struct, frozen=True):
    """What stands before a query, and before a chunk of a file."""

    query: str = ""
    passage: str = ""


class _Content(Struct, frozen=True):
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None


def prompts_of(config: LibraryConfig, folder: Path | None) -> Prompts:
    """Those that are configured, else those of the model whose files lie in `folder` (None: it has no files). Reads a file."""
    own = Prompts() if folder is None else _read(folder / FILE)
    return Prompts(
        own.query if config.query_prefix is None else config.query_prefix,
        own.passage if config.passage_prefix is None else config.passage_prefix,
    )


def _read(path: Path) -> Prompts:
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_Content)
    except FileNotFoundError:
        return Prompts()
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("a model's prompts are ignored", extra={"path": str(path), "why": str(error)})
        return Prompts()
    named = content.prompts
    default = named.get(content.default_prompt_name or "", "")
    return Prompts(named.get("query", default), named.get("passage", named.get("document", default)))
