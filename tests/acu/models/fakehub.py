"""The model hub, played by servers that speak its protocol: the hub itself, and the host that its large files lie on."""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from typing import ClassVar

LARGE = (".safetensors", ".bin")


class Server(http.server.BaseHTTPRequestHandler):
    """Answers, and logs nothing."""

    def answer(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send an answer; the body not to HEAD."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Be silent."""


class FakeHub(Server):
    """One repository org/tiny at one commit: listing, metadata, files.

    `lies` are sums that the hub tells wrongly. `refusals` maps parts of paths to an answer (status, headers) that they
    get instead. With `cdn` (an address) large files are answered with a redirect. `tokens` are the credentials that came.
    """

    commit = "c" * 40
    files: ClassVar[dict[str, bytes]]
    lies: ClassVar[dict[str, str]]
    refusals: ClassVar[dict[str, tuple[int, dict[str, str]]]]
    cdn: ClassVar[str | None]
    requested: ClassVar[list[str]]
    tokens: ClassVar[list[str | None]]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = path.rsplit("/", 1)[-1]
        self.requested.append(path)
        self.tokens.append(self.headers["Authorization"])
        if refusal := next((self.refusals[part] for part in self.refusals if part in path), None):
            self.answer(*refusal)
        elif path.startswith("/api/models/org/tiny"):
            content = self.tree() if "/tree/" in path else self.info()
            self.answer(200, {"Content-Type": "application/json"}, json.dumps(content).encode())
        elif path.startswith("/org/tiny/resolve/") and name in self.files:
            self.answer_file(name)
        else:
            self.answer(404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def lfs(self, name: str) -> dict[str, object]:
        """What the hub says of a large file."""
        content = self.files[name]
        digest = self.lies.get(name, hashlib.sha256(content).hexdigest())
        return {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 130}

    def info(self) -> dict[str, object]:
        """The repository, with its files' sizes and sums."""
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": "b" * 40}
            | ({"lfs": self.lfs(name)} if name.endswith(LARGE) else {})
            for name, content in self.files.items()
        ]
        return {"id": "org/tiny", "modelId": "org/tiny", "sha": self.commit, "siblings": siblings}

    def tree(self) -> list[dict[str, object]]:
        """The repository's files, as the other listing tells them."""
        return [
            {"type": "file", "path": name, "size": len(content), "oid": "b" * 40}
            | ({"lfs": self.lfs(name)} if name.endswith(LARGE) else {})
            for name, content in self.files.items()
        ]

    def answer_file(self, name: str) -> None:
        """A file, or where it lies."""
        body = self.files[name]
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        known = {"X-Repo-Commit": self.commit, "ETag": etag}
        if self.cdn is None or not name.endswith(LARGE):
            self.answer(200, known, body)
            return
        linked = {"Location": f"{self.cdn}/{name}?signature=x", "X-Linked-Etag": etag, "X-Linked-Size": str(len(body))}
        self.answer(302, known | {"ETag": '"another"'} | linked)


class FakeCdn(Server):
    """Large files for whoever has their signed address.

    Each entry of `faults` spoils one request: an integer breaks the body off after so many bytes, a status
    refuses. `seen` are (Range, Authorization) of the requests.
    """

    files: ClassVar[dict[str, bytes]]
    faults: ClassVar[list[int | http.HTTPStatus]]
    seen: ClassVar[list[tuple[str | None, str | None]]]

    def do_GET(self) -> None:
        body = self.files[self.path.partition("?")[0].lstrip("/")]
        wanted = self.headers["Range"]
        self.seen.append((wanted, self.headers["Authorization"]))
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, http.HTTPStatus):
            self.answer(fault)
        elif fault is not None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:fault])
            self.close_connection = True
        elif wanted:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            told = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
            self.answer(206, told, body[start:])
        else:
            self.answer(200, {}, body)


@contextlib.contextmanager
def serving(handler: type[Server]) -> Iterator[int]:
    """Serve on a port of loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
