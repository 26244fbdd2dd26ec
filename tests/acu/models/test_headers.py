"""acu.models.headers: what real models weigh by their headers, and headers that say nothing or too much."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from acu.errors import ModelIncomplete
from acu.models.headers import Tensor, Weights, read_header, read_weights
from tests.acu.models.headerfiles import QWEN_7B, model_folder, qwen_7b, qwen_7b_awq, write_file


def test_qwen_7b_weighs_what_its_makers_publish(tmp_path: Path) -> None:
    weights = read_weights(qwen_7b(tmp_path / "m"))
    assert weights == Weights(stored=15_231_233_024, values=7_615_616_512, kept=0)
    assert (weights.held("bfloat16"), weights.held("float32")) == (15_231_233_024, 30_462_466_048)


def test_its_awq_keeps_packed_integers_and_scales_as_they_are(tmp_path: Path) -> None:
    weights = read_weights(qwen_7b_awq(tmp_path / "m"))
    packed = 6_525_288_448  # values in the layers' matrices
    scales = packed // 128 * 2
    assert weights.kept == packed // 2 + packed // 128 // 2 + scales
    assert weights.values == 7_615_616_512 - packed
    assert weights.stored == weights.held("float16") == 5_570_747_392  # and 11 MB of tokenizer: 5.58 GB to pull


def test_a_type_of_the_file_becomes_that_of_the_engine(tmp_path: Path) -> None:
    shapes = [("a", "F32", (1000, 10)), ("b", "F8_E4M3", (7,)), ("c", "I32", (3,))]
    weights = read_weights(model_folder(tmp_path / "m", {}, shapes))
    assert weights == Weights(stored=40_019, values=10_000, kept=19)
    assert weights.held("bfloat16") == 20_019


@pytest.mark.parametrize("config", [{"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True}}])
def test_tied_embeddings_count_once(tmp_path: Path, config: dict[str, object]) -> None:
    shapes = [("model.embed_tokens.weight", "BF16", (100, 8)), ("lm_head.weight", "BF16", (100, 8))]
    assert read_weights(model_folder(tmp_path / "tied", config, shapes)).stored == 1600
    assert read_weights(model_folder(tmp_path / "untied", {}, shapes)).stored == 3200
    assert read_weights(model_folder(tmp_path / "alone", config, shapes[1:])).stored == 1600


def test_files_that_the_index_does_not_name_are_not_loaded_and_not_counted(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", {}, [("a", "BF16", (4,)), ("b", "BF16", (6,))], shards=2)
    write_file(folder / "consolidated.safetensors", [("x", "BF16", (1000,))])
    assert read_weights(folder).stored == 20
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelIncomplete, match=r"lacks model-00002-of-00002\.safetensors"):
        read_weights(folder)


def test_a_header_is_read_without_its_metadata(tmp_path: Path) -> None:
    write_file(path := tmp_path / "a.safetensors", [("w", "I32", (2, 3))])
    assert read_header(path) == (Tensor("w", "I32", (2, 3), 24),)


def _header(content: object, data: int = 0) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "its beginning is damaged"),
        (b"\x08\0\0", "has 3 bytes, and a header of 8"),
        ((1 << 62).to_bytes(8, "little"), "its beginning is damaged"),
        (bytes(8), "its beginning is damaged"),
        ((100_000_001).to_bytes(8, "little") + b"{}", "its beginning is damaged"),
        ((99_999_999).to_bytes(8, "little") + b"{}", "has 10 bytes, and a header of 99999999"),
        (_header(b"nope"), "damaged safetensors header"),
        (_header(b"\xff\xfe"), "damaged safetensors header"),
        (_header(b"[" * 100_000), "damaged safetensors header"),
        (_header([]), "damaged safetensors header"),
        (_header({"w": 1}), "damaged safetensors header"),
        (_header({"w": {"dtype": "F32", "shape": [2]}}), "damaged safetensors header"),
        (_header({"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, 8), "damaged safetensors header"),
        (_header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}), r"w takes -8 bytes"),
        (
            _header({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, 8),
            r"8 bytes, which is not F32 .* \[3\]",
        ),
        (_header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 7), "cut short"),
        (_header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 9), "or damaged"),
    ],
)
def test_what_is_no_whole_file_is_refused_by_name(tmp_path: Path, content: bytes, why: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelIncomplete, match=rf"(?s)model\.safetensors .*{why}"):
        read_weights(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "model.safetensors.index.json").write_bytes(b"\xff"),
        lambda folder: (folder / "config.json").write_text("[" * 200_000),
    ],
)
def test_a_description_that_is_no_json_is_refused_by_name(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    folder = model_folder(tmp_path / "m", QWEN_7B, [("w", "BF16", (4,))])
    damage(folder)
    with pytest.raises(ModelIncomplete, match=r"\.json is not JSON"):
        read_weights(folder)


def test_a_type_that_came_later_is_taken_at_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(_header({"w": {"dtype": "F4", "shape": [32], "data_offsets": [0, 16]}}, 16))
    assert read_weights(tmp_path) == Weights(stored=16, values=0, kept=16)
