"""What stands before queries and passages: as configured, as the model's files say, and as the embedder gives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentflow.engine.scripted_embedder import ScriptedEmbedder
from agentflow.library.config import LibraryConfig
from agentflow.library.prompts import FILE, Prompts, prompts_of
from tests.agentflow.library.libraries import opened

TEXT = "The lighthouse was lit by hand."


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"prompts": {"query": "query: ", "passage": "passage: "}}, Prompts("query: ", "passage: ")),
        ({"prompts": {"query": "q: ", "document": "d: "}, "default_prompt_name": None}, Prompts("q: ", "d: ")),
        ({"prompts": {"query": "q: ", "all": "a: "}, "default_prompt_name": "all"}, Prompts("q: ", "a: ")),
        ({"prompts": {"query": "q: "}, "default_prompt_name": "missing"}, Prompts("q: ", "")),
        ({"__version__": {"transformers": "4"}}, Prompts()),
        ({"prompts": None}, Prompts()),
        ({"prompts": {"query": 1}}, Prompts()),
        ([], Prompts()),
    ],
)
def test_the_models_own_file_says_what_it_wants(tmp_path: Path, content: Any, expected: Prompts) -> None:
    (tmp_path / FILE).write_text(json.dumps(content))
    assert prompts_of(LibraryConfig(), tmp_path) == expected


def test_a_file_that_is_no_json_or_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert prompts_of(LibraryConfig(), tmp_path) == Prompts()
    assert prompts_of(LibraryConfig(), None) == Prompts()
    (tmp_path / FILE).write_text("{")
    assert prompts_of(LibraryConfig(), tmp_path) == Prompts()


def test_the_configuration_goes_before_the_file_each_word_by_itself(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"prompts": {"query": "q: ", "passage": "p: "}}')
    assert prompts_of(LibraryConfig(query_prefix="mine: "), tmp_path) == Prompts("mine: ", "p: ")
    assert prompts_of(LibraryConfig(query_prefix="", passage_prefix=""), tmp_path) == Prompts()


async def test_the_model_sees_what_it_wants_before_texts_and_readers_do_not(tmp_path: Path) -> None:
    async with opened(tmp_path, prompts=Prompts("query: ", "passage: ")) as desk:
        store = await desk.store((await desk.upload(TEXT)).id)
        assert bytes(desk.ended[-1].prompt_token_ids) == f"passage: {TEXT}".encode()
        (hit,) = await desk.search(store, "lighthouse")
        assert bytes(desk.ended[-1].prompt_token_ids) == b"query: lighthouse"
        assert hit.text == TEXT
        assert desk.library._embedder.max_tokens() == ScriptedEmbedder()._max_model_len - len("passage: ")
