"""Pulling from the model hub, played by a server that speaks its protocol."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from acu import models
from acu.errors import ChecksumMismatch, SourceUnreachable
from acu.models import HubSource
from acu.models.cache import MANIFEST
from tests.acu.models.modelfiles import entry_for, leftovers, write_model


class FakeHub(http.server.BaseHTTPRequestHandler):
    """One repository org/tiny at one commit: listing, metadata, files. `lies` are sums that the hub tells wrongly."""

    files: ClassVar[dict[str, bytes]]
    commit = "c" * 40
    lies: ClassVar[dict[str, str]]
    requested: ClassVar[list[str]]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.requested.append(path)
        if path.startswith("/api/models/org/tiny"):
            self.answer_json(self.tree() if "/tree/" in path else self.info(query))
        elif path.startswith("/org/tiny/resolve/") and path.rsplit("/", 1)[-1] in self.files:
            self.answer_file(path.rsplit("/", 1)[-1])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def lfs(self, name: str) -> dict[str, object]:
        content = self.files[name]
        digest = self.lies.get(name, hashlib.sha256(content).hexdigest())
        return {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 130}

    def info(self, _query: str) -> dict[str, object]:
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": "b" * 40}
            | ({"lfs": self.lfs(name)} if name.endswith((".safetensors", ".bin")) else {})
            for name, content in self.files.items()
        ]
        return {"id": "org/tiny", "modelId": "org/tiny", "sha": self.commit, "siblings": siblings}

    def tree(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(content), "oid": "b" * 40}
            | ({"lfs": self.lfs(name)} if name.endswith((".safetensors", ".bin")) else {})
            for name, content in self.files.items()
        ]

    def answer_json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.send_body(body)

    def answer_file(self, name: str) -> None:
        body = self.files[name]
        self.send_response(200)
        self.send_header("X-Repo-Commit", self.commit)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.send_body(body)

    def send_body(self, body: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    class Hub(FakeHub):
        files: ClassVar = {path.name: path.read_bytes() for path in write_model(tmp_path / "original").iterdir()}
        lies: ClassVar = {}
        requested: ClassVar = []

    Hub.files["pytorch_model.bin"] = b"pickle"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    yield Hub
    server.shutdown()
    thread.join()
    server.server_close()


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
