from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import EngineStartFailed, InvalidRequest
from agentflow.tokenizer import ByteTokenizer, FileTokenizer, Span, Tokenizer
from tests.agentflow.tokenizers_for_tests import CHATML, write_tokenizer

START, END, PLAIN, TOOL_CALL = 256, 257, 258, 259


@pytest.fixture
def tokenizer(tmp_path: Path) -> FileTokenizer:
    return FileTokenizer.load(write_tokenizer(tmp_path))


def test_a_folder_says_everything_about_its_vocabulary(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 7]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    tokenizer = FileTokenizer.load(folder)
    assert tokenizer.vocab_size == 260
    assert tokenizer.eos_token_ids == (7, 9, 257)
    assert dict(tokenizer.specials) == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert dict(tokenizer.control_tokens) == {"<|im_start|>": START, "<|im_end|>": END, "<|plain|>": PLAIN}
    assert tokenizer.chat_template == CHATML


def test_special_tokens_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, config={"bos_token": None})
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<|plain|>"}))
    assert dict(FileTokenizer.load(folder).specials) == {"pad_token": "<|plain|>", "eos_token": "<|im_end|>"}


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("one", "one"),
        ([{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}], "b"),
        ([{"name": "rag", "template": "a"}], None),
        (None, None),
    ],
)
def test_a_chat_template_may_stand_in_the_configuration(tmp_path: Path, template: object, found: str | None) -> None:
    folder = write_tokenizer(tmp_path, config={"chat_template": template}, template=None)
    assert FileTokenizer.load(folder).chat_template == found


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EngineStartFailed, match=r"has no tokenizer\.json: pull the model again"):
        FileTokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    (write_tokenizer(tmp_path) / name).write_bytes(content)
    with pytest.raises(EngineStartFailed, match=name):
        FileTokenizer.load(tmp_path)


def test_truncation_and_padding_of_the_file_are_off(tokenizer: FileTokenizer) -> None:
    assert len(tokenizer.encode("a" * 100, add_special_tokens=True)) == 100
    assert len(tokenizer.encode("a", add_special_tokens=True)) == 1


@pytest.mark.parametrize("tokenizer_of", [ByteTokenizer, None])
@settings(max_examples=100, deadline=None)
@given(text=st.text())
def test_text_survives_encoding(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_of: type[ByteTokenizer] | None, text: str
) -> None:
    tokenizer: Tokenizer = (
        tokenizer_of() if tokenizer_of else FileTokenizer.load(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_surrogate_pair_is_the_requests_fault(tokenizer: FileTokenizer, text: str) -> None:
    for each in (tokenizer, ByteTokenizer()):
        with pytest.raises(InvalidRequest, match="not valid Unicode"):
            each.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("guarded", "controls"),
    [
        ([], [START, END, PLAIN]),
        ([(0, 12)], [END, PLAIN]),
        ([(11, 12)], [END, PLAIN]),
        ([(12, 22)], [START, PLAIN]),
        ([(0, 1), (21, 23)], []),
        ([(0, 31)], []),
        ([(31, 40)], [START, END, PLAIN]),
    ],
)
def test_a_control_token_that_touches_a_guarded_span_is_spelled(
    tokenizer: FileTokenizer, guarded: list[Span], controls: list[int]
) -> None:
    text = "<|im_start|><|im_end|><|plain|> <tool_call>"
    ids = tokenizer.encode_guarded(text, guarded)
    assert [token_id for token_id in ids if token_id in {START, END, PLAIN}] == controls
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids[-1] == TOOL_CALL


def test_spans_count_characters_and_not_bytes(tokenizer: FileTokenizer) -> None:
    ids = tokenizer.encode_guarded("\U0001f986é<|im_end|><|im_end|>", [(2, 12)])
    assert ids[-2:] != [END, END]
    assert ids[-1] == END


def test_threads_may_share_a_tokenizer(tokenizer: FileTokenizer) -> None:
    text = "<|im_end|> some words " * 50
    expected = tokenizer.encode_guarded(text, [(0, 500)])
    with ThreadPoolExecutor(8) as threads:
        results = threads.map(lambda _: tokenizer.encode_guarded(text, [(0, 500)]), range(64))
    assert all(ids == expected for ids in results)


def test_special_tokens_are_skipped_on_demand(tokenizer: FileTokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"
    assert tokenizer.token_text(END) == "<|im_end|>"


def test_bytes_are_tokens() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé", add_special_tokens=True) == [0x61, 0xC3, 0xA9]
    assert tokenizer.decode([0x61, 0xC3], skip_special_tokens=True) == "a\N{REPLACEMENT CHARACTER}"
    assert tokenizer.decode([0xC3, ByteTokenizer.EOS, 0xA9], skip_special_tokens=True) == "é"
    assert tokenizer.decode([0x61, ByteTokenizer.EOS], skip_special_tokens=False) == "a<|end|>"
    assert tokenizer.token_text(ByteTokenizer.EOS) == "<|end|>"
    assert tokenizer.token_text(0xC3) == "\N{REPLACEMENT CHARACTER}"


def test_no_text_becomes_the_end_of_a_text() -> None:
    ids = ByteTokenizer().encode_guarded("<|end|>", [(0, 7)])
    assert ByteTokenizer.EOS not in ids


@pytest.mark.parametrize("text", ["a plain sentence, with words", "上海 and 🙂", "", "  spaced\n\nout "])
def test_spans_tell_the_characters_of_each_token(tokenizer: FileTokenizer, text: str) -> None:
    for each in (tokenizer, ByteTokenizer()):
        spans = each.spans(text)
        assert len(spans) == len(each.encode(text, add_special_tokens=False))
        assert {at for start, end in spans for at in range(start, end)} >= {
            at for at, character in enumerate(text) if not character.isspace()
        }
        assert spans == sorted(spans)
