"""A small client of the daemon, for `acu status` and `acu chat`: HTTP over the unix socket or TCP, blocking, stdlib only.

Blocking on purpose: a command has one request at a time, ctrl-C must interrupt it at once, and closing the connection is
what tells the daemon to stop generating.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from msgspec import Struct

from acu.errors import AcuError, ApiError, DaemonSilent, DaemonUnreachable

CONNECT_TIMEOUT_S = 5.0
MAX_LINE = 1 << 22

HOW_TO_START = "start one with `acu serve`, or name another with --socket PATH or --url URL"
WITH_A_KEY = "--api-key-file FILE gives one"
WHAT_TO_DO = {  # by the code of an error that the options of a command can mend
    "missing_api_key": WITH_A_KEY,
    "invalid_api_key": WITH_A_KEY,
    "missing_scope": "ask over the unix socket as the daemon's user (no --url), or with a key that has it (--api-key-file FILE)",
}


class Target(Struct, frozen=True):
    """Where the daemon is: paths of unix sockets to try in order, or a URL such as https://box:8228."""

    sockets: tuple[Path, ...] = ()
    url: str | None = None
    api_key: str | None = None
    ca_file: Path | None = None

    def __str__(self) -> str:
        return self.url or " or ".join(str(path) for path in dict.fromkeys(self.sockets))


class Client:
    """Requests to one daemon, one at a time. `timeout_s` bounds the silence between two pieces of an answer.

    `total_s` bounds each `get` as a whole, from the look-up of a name on, whatever comes of it and however slowly.
    """

    def __init__(self, target: Target, timeout_s: float | None = None, total_s: float | None = None) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._total_s = total_s

    def get(self, path: str, *, accept: tuple[int, ...] = (200,)) -> Any:
        """The JSON object at `path`.

        Raises ApiError for a status that is not in `accept`, DaemonUnreachable, or AcuError for an answer that is no JSON
        object and for a target that cannot be (a URL, a key or a certificate).
        """
        if self._total_s is None:
            return self._get(path, accept)
        answered: Future[Any] = Future()
        # A daemon thread: one that is stuck must not keep the process alive.
        threading.Thread(target=self._fulfil, args=(answered, path, accept), name="get", daemon=True).start()
        try:
            return answered.result(self._total_s)
        except TimeoutError as error:
            raise DaemonSilent(
                f"the daemon at {self._target} timed out: it gave no whole answer in {self._total_s:g} s; is it stuck, or is it "
                "no ACU?"
            ) from error

    def _get(self, path: str, accept: tuple[int, ...]) -> Any:
        with self._request("GET", path, None) as answer:
            return answer.json(accept)

    def _fulfil(self, answered: Future[Any], path: str, accept: tuple[int, ...]) -> None:
        try:
            answered.set_result(self._get(path, accept))
        except BaseException as error:  # noqa: BLE001  for who waits
            answered.set_exception(error)

    def post(self, path: str, body: Mapping[str, Any], *, accept: tuple[int, ...] = (200,)) -> Any:
        """The JSON object that answers `body`. Raises as `get` does."""
        with self._request("POST", path, body) as answer:
            return answer.json(accept)

    def delete(self, path: str) -> Any:
        """The JSON object that answers the removal of `path`. Raises as `get` does."""
        with self._request("DELETE", path, None) as answer:
            return answer.json((200,))

    def stream(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A streamed answer: a context manager whose `events()` are the JSON payloads. Closing it aborts the run.

        Raises DaemonUnreachable, or AcuError for a target that cannot be; `events` raises the rest.
        """
        return self._request("POST", path, body)

    def follow(self, path: str) -> Answer:
        """As `stream`, of something that goes on by itself, and without its followers."""
        return self._request("GET", path, None)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        headers = {"host": "localhost", "accept": "application/json, text/event-stream", "user-agent": "acu"}
        payload = None
        if body is not None:
            payload = json.dumps(body).encode("utf-8", "surrogatepass")
            headers["content-type"] = "application/json"
        if self._target.api_key:
            headers["authorization"] = f"Bearer {self._target.api_key}"
        connection = self._connect()
        try:
            if self._target.url:
                headers["host"] = urlsplit(self._target.url).netloc
            connection.request(method, path, payload, headers)
            return Answer(connection, connection.getresponse(), self._timeout_s)
        except TimeoutError as error:
            connection.close()
            raise DaemonSilent(f"the daemon at {self._target} {silent(self._timeout_s)}") from error
        except ValueError as error:
            connection.close()
            raise AcuError("the API key or the URL holds a character that no request may carry") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            hint = "is it stopping?"
            if self._target.url and not isinstance(connection, http.client.HTTPSConnection):
                hint = "if it speaks TLS, write https:// in --url; else, is it stopping?"
            raise DaemonSilent(f"the daemon at {self._target} closed the connection; {hint}") from error
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        if self._target.url:
            return self._connect_tcp(self._target.url)
        denied: Path | None = None
        for path in dict.fromkeys(self._target.sockets):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(CONNECT_TIMEOUT_S)
            try:
                sock.connect(str(path))
            except PermissionError:
                denied = path
                sock.close()
                continue
            except OSError:
                sock.close()
                continue
            sock.settimeout(self._timeout_s)
            connection = http.client.HTTPConnection("localhost")
            connection.sock = sock
            return connection
        if denied is not None:
            raise DaemonUnreachable(
                f"a daemon's socket is at {denied}, and you may not use it: ask for its group (network.socket_mode), or "
                "use --url with an API key"
            )
        raise DaemonUnreachable(f"no daemon listens on {self._target}: {HOW_TO_START}")

    def _connect_tcp(self, url: str) -> http.client.HTTPConnection:
        host, port, tls = split_url(url)
        connection: http.client.HTTPConnection
        if tls:
            connection = http.client.HTTPSConnection(host, port, context=self._tls_context())
        else:
            connection = http.client.HTTPConnection(host, port)
        connection.timeout = CONNECT_TIMEOUT_S
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise AcuError(
                f"{url}: TLS failed: {error.reason or error}; --ca-file names the certificate to trust"
            ) from error
        except ssl.SSLError as error:
            raise AcuError(
                f"{url}: TLS failed: {error.reason or error}; if it speaks none, write http:// in --url"
            ) from error
        except OSError as error:
            raise DaemonUnreachable(
                f"no daemon listens on {url} ({error.strerror or error}): {HOW_TO_START}"
            ) from error
        except UnicodeError as error:  # a name that DNS cannot carry
            raise AcuError(f"--url: {url!r} names no host") from error
        connection.sock.settimeout(self._timeout_s)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._target.ca_file)
        except OSError as error:
            why = error.strerror or "holds no certificate"
            raise AcuError(f"--ca-file: {self._target.ca_file}: {why}") from error


def split_url(url: str) -> tuple[str, int, bool]:
    """(host, port, whether TLS is asked) of a daemon's address. Raises AcuError."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:  # a port beyond 65535, a bracket that is not closed
        scheme, host, port = "", None, None
    if not host or scheme not in {"http", "https"}:
        raise AcuError(f"--url: {url!r} is no URL; expected http://127.0.0.1:8228 or https://HOST:PORT")
    tls = scheme == "https"
    return host, port or (443 if tls else 80), tls


def silent(timeout_s: float | None) -> str:
    """What a time-out is called."""
    return f"timed out: nothing came from it for {timeout_s:g} s; is it stuck, or is it no ACU?"


class Answer:
    """An answer whose headers have arrived. Close it, or use it as a context manager."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, timeout_s: float | None
    ) -> None:
        self._connection = connection
        self._response = response
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and with it whatever still runs for it."""
        self._response.close()
        self._connection.close()

    def json(self, accept: tuple[int, ...]) -> Any:
        """The whole body, a JSON object. Raises ApiError for another status, DaemonUnreachable when it breaks off."""
        body = self._read()
        if self._response.status not in accept:
            raise self._error(body)
        return json_object(body)

    def events(self) -> Iterator[dict[str, Any]]:
        """The payloads of a stream of server-sent events, until [DONE]. Raises ApiError, also for one in the stream."""
        if self._response.status != 200:
            raise self._error(self._read())
        while True:
            try:
                line = self._response.readline(MAX_LINE)
            except TimeoutError as error:
                raise DaemonSilent(f"the daemon {silent(self._timeout_s)}") from error
            except (OSError, http.client.HTTPException) as error:
                raise DaemonSilent("the daemon went away in the middle of the answer") from error
            if not line:
                raise DaemonSilent("the answer ended early: the daemon closed the connection")
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = json_object(data)
            if "error" in event and "sequence_number" not in event:  # an event of a run may tell of its failure
                failure = event["error"]
                text = failure.get("message", failure) if isinstance(failure, dict) else failure
                raise ApiError(str(text), status=200)
            yield event

    def _read(self) -> bytes:
        try:
            return self._response.read()
        except TimeoutError as error:
            raise DaemonSilent(f"the daemon {silent(self._timeout_s)}") from error
        except (OSError, http.client.HTTPException) as error:
            raise DaemonSilent("the daemon went away in the middle of the answer") from error

    def _error(self, body: bytes) -> ApiError:
        code = None
        try:
            failure = json.loads(body)["error"]
            message, code = str(failure["message"]), failure.get("code")
        except (ValueError, KeyError, TypeError, RecursionError):
            message = body[:200].decode(errors="replace").strip() or f"HTTP {self._response.status}"
        code = code if isinstance(code, str) else None
        if code in WHAT_TO_DO:
            message = f"{message.rstrip('.')}: {WHAT_TO_DO[code]}"
        after = self._response.headers.get("retry-after-ms")
        try:
            retry_after_s = float(after) / 1000 if after else None
        except ValueError:
            retry_after_s = None
        return ApiError(message, status=self._response.status, code=code, retry_after_s=retry_after_s)


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in an answer. Raises AcuError for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AcuError("the daemon's answer is not JSON: is it an ACU?") from error
    if not isinstance(value, dict):
        raise AcuError("the daemon's answer is not what an ACU says: is it one?")
    return value
