"""Pulling from the model hub, played by servers that speak its protocol (see fakehub.py)."""

import http
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from acu import models
from acu.errors import ChecksumMismatch, NoSpace, SourceUnreachable
from acu.models import HubSource
from acu.models.cache import MANIFEST
from tests.acu.models.fakehub import FakeCdn, FakeHub, serving
from tests.acu.models.modelfiles import entry_for, leftovers, write_model


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    files = {path.name: path.read_bytes() for path in write_model(tmp_path / "original").iterdir()}
    files["pytorch_model.bin"] = b"pickle"

    class Hub(FakeHub):
        pass

    Hub.files, Hub.lies, Hub.refusals, Hub.cdn = files, {}, {}, None
    Hub.requested, Hub.tokens = [], []
    with serving(Hub) as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield Hub


@pytest.fixture
def cdn(hub: type[FakeHub]) -> Iterator[type[FakeCdn]]:
    """The other host, to which the hub sends whoever wants a large file. The weights are one and a half chunks."""
    size = CHUNK * 3 // 2
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    hub.files["model.safetensors"] = len(header).to_bytes(8, "little") + header + random.Random(0).randbytes(size)

    class Cdn(FakeCdn):
        pass

    Cdn.files, Cdn.faults, Cdn.seen = hub.files, [], []
    with serving(Cdn) as port:
        hub.cdn = f"http://localhost:{port}"
        yield Cdn


def test_a_hub_model_is_pulled_at_a_commit_that_the_manifest_records(hub: type[FakeHub], cache: Path) -> None:
    model = models.pull("org/tiny", cache)
    assert (model.name, model.path) == ("org/tiny", cache / "org--tiny")
    assert models.locate("org/tiny", cache) == models.verify("org/tiny", cache) == model
    manifest = json.loads((model.path / MANIFEST).read_text())
    assert (manifest["source"], manifest["revision"]) == ("hub org/tiny", hub.commit)
    assert {path.name for path in model.path.iterdir()} == {
        MANIFEST,
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert not [path for path in hub.requested if path.endswith((".bin", ".md"))]
    assert leftovers(cache) == []


def test_a_hub_file_with_another_sum_than_the_hub_says_is_refused(hub: type[FakeHub], cache: Path) -> None:
    hub.lies["model.safetensors"] = "f" * 64
    with pytest.raises(ChecksumMismatch, match=r"model\.safetensors of hub org/tiny .*f{64}"):
        models.pull("org/tiny", cache)
    assert models.installed(cache) == ()


def test_a_hub_entry_is_held_to_its_own_sums_too(hub: type[FakeHub], cache: Path) -> None:
    pinned = HubSource(repo="org/tiny", revision=hub.commit, sha256={"config.json": "e" * 64})
    with pytest.raises(ChecksumMismatch, match=r"config\.json"):
        models.pull(entry_for(pinned), cache)
    assert models.pull(entry_for(HubSource(repo="org/tiny", revision=hub.commit)), cache).name == "tiny"


def test_a_hub_that_lacks_the_model_is_told(hub: type[FakeHub], cache: Path) -> None:
    del hub
    with pytest.raises(SourceUnreachable, match="the hub has no org/other"):
        models.pull("org/other", cache)


def test_a_hub_that_does_not_answer_is_told_with_the_way_round_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with pytest.raises(SourceUnreachable, match="acu models pull NAME --from FOLDER"):
        models.pull("qwen2.5-0.5b-instruct", cache)
    assert leftovers(cache) == []


# Large files lie on another host

CHUNK = 10 << 20  # bytes; the client writes so many at a time


def test_a_large_file_is_fetched_from_another_host_without_the_token(
    hub: type[FakeHub], cdn: type[FakeCdn], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    model = models.pull("org/tiny", cache)
    assert set(hub.tokens) == {"Bearer hf_secret"}  # and no request beside those for the model: no telemetry
    assert cdn.seen == [(None, None)]
    assert (model.path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_a_download_that_breaks_off_goes_on_where_it_broke(hub: type[FakeHub], cdn: type[FakeCdn], cache: Path) -> None:
    cdn.faults.append(CHUNK + 5000)
    model = models.pull("org/tiny", cache)
    assert [wanted for wanted, _ in cdn.seen] == [None, f"bytes={CHUNK}-"]
    assert (model.path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert models.verify("org/tiny", cache) == model


def test_the_next_pull_keeps_what_is_whole_and_begins_what_is_not_anew(
    hub: type[FakeHub], cdn: type[FakeCdn], cache: Path
) -> None:
    cdn.faults += [CHUNK + 5000, http.HTTPStatus.FORBIDDEN]
    with pytest.raises(SourceUnreachable):
        models.pull("org/tiny", cache)
    assert leftovers(cache) == [".partial-org--tiny"]
    asked, fetched = len(hub.requested), len(cdn.seen)
    model = models.pull("org/tiny", cache)
    assert [path.rsplit("/", 1)[-1] for path in hub.requested[asked:] if "/resolve/" in path] == ["model.safetensors"]
    assert len(cdn.seen) == fetched + 1
    assert (model.path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert leftovers(cache) == []


def test_what_a_killed_download_had_begun_does_not_count_as_downloaded(
    hub: type[FakeHub], cdn: type[FakeCdn], cache: Path
) -> None:
    begun = cache / ".partial-org--tiny" / hub.commit / ".cache" / "huggingface" / "download" / "x.1.incomplete"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(bytes(CHUNK))
    with pytest.raises(NoSpace, match=r"needs 272 MB"):
        models.pull("org/tiny", cache, free_bytes=lambda _: 266_000_000)
    assert not begun.exists()
    assert cdn.seen == []


# What the hub refuses is told with what to do about it


PARTS = ("/api/models/", "/tree/", "/resolve/")
REFUSALS: tuple[tuple[int, dict[str, str], str], ...] = (
    (
        401,
        {"X-Error-Message": "Invalid credentials in Authorization header"},
        "does not accept the token in HF_TOKEN",
    ),
    (401, {"X-Error-Code": "GatedRepo"}, "org/tiny wants you to accept its terms on the hub first"),
    (403, {"X-Error-Code": "GatedRepo"}, "org/tiny wants you to accept its terms on the hub first"),
    (403, {"X-Error-Message": "no such right"}, "does not let this token read org/tiny"),
    (403, {"X-Error-Message": "Access to this resource is disabled."}, "the hub has closed org/tiny"),
    (404, {"X-Error-Code": "RepoNotFound"}, "the hub has no org/tiny"),
    (404, {"X-Error-Code": "RevisionNotFound"}, "no longer has this commit of org/tiny"),
)
CLIENT = """
import sys
from acu.models.hub import main
for line in sys.stdin:
    main(*line.split())
    sys.stdout.flush()
"""


def test_each_refusal_of_each_part_is_told_with_what_to_do(hub: type[FakeHub], tmp_path: Path) -> None:
    """The client itself, started once for all of them."""
    command = [sys.executable, "-c", CLIENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        for number, (part, (status, headers, told)) in enumerate(itertools.product(PARTS, REFUSALS)):
            hub.refusals = {part: (status, headers)}
            folder = tmp_path / f"get{number}"
            print(
                *(("list", "org/tiny") if part == PARTS[0] else ("get", "org/tiny", hub.commit, folder, "config.json")),
                file=client.stdin,
                flush=True,
            )
            assert told in json.loads(client.stdout.readline())["error"], (part, status, headers)
            assert not (folder / "config.json").exists()
        client.stdin.close()
        assert client.wait(60) == 0


@pytest.mark.parametrize("part", PARTS)
def test_a_refusal_ends_the_pull_and_leaves_no_model(part: str, hub: type[FakeHub], cache: Path) -> None:
    status, headers, told = REFUSALS[2]
    hub.refusals[part] = status, headers
    with pytest.raises(SourceUnreachable, match=told):
        models.pull("org/tiny", cache)
    assert models.installed(cache) == ()


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [
        (429, {"RateLimit": '"api";r=0;t=55'}, "too many requests from here: pull again in 55 seconds"),
        (429, {"Retry-After": "7"}, "too many requests from here: pull again in 7 seconds"),
        (429, {}, "too many requests from here: pull again later"),
        (503, {}, "does not answer for org/tiny .*acu models pull NAME --from FOLDER"),
    ],
)
def test_a_hub_that_is_overloaded_is_told_with_when_to_come_back(
    status: int, headers: dict[str, str], told: str, hub: type[FakeHub], cache: Path
) -> None:
    hub.refusals["/api/models/"] = status, headers
    with pytest.raises(SourceUnreachable, match=told):
        models.pull("org/tiny", cache)


def test_what_is_left_of_an_earlier_pull_is_not_taken_for_the_whole(hub: type[FakeHub], cache: Path) -> None:
    partial = cache / ".partial-org--tiny" / hub.commit
    partial.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (partial / name).write_bytes(hub.files[name])
    hub.refusals["/tree/"] = 403, {}
    with pytest.raises(SourceUnreachable, match=r"the whole of org/tiny \(tokenizer.*\.json is missing\): pull again"):
        models.pull("org/tiny", cache)
    hub.refusals.clear()
    assert models.pull("org/tiny", cache) == models.verify("org/tiny", cache)
