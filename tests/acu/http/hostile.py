"""Requests that nobody should send, and exactly what each gets: a status and a code. See test_hostile.py.

`python -m tests.acu.http.hostile_table` prints what the server answers.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
COMPLETIONS = "/v1/completions"
HEADER_TIMEOUT_S = 1.0
BODY_TIMEOUT_S = 1.0
HELLO = [{"role": "user", "content": "hello"}]


class Case(Struct, frozen=True, kw_only=True):
    """A request in pieces (a float is a pause), and what it must get. Status 0: no answer, the connection is closed."""

    name: str
    pieces: tuple[bytes | float, ...]
    status: int
    code: str | None = None
    param: str | None = None
    half_close: bool = False


def request(
    body: bytes = b"",
    *,
    method: str = "POST",
    path: str = CHAT,
    host: str = "localhost",
    content_type: str | None = "application/json",
    length: int | None = None,
    extra: str = "",
) -> bytes:
    """The bytes of a request; `length` contradicts the body, `extra` is more header lines."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n"
    if content_type is not None:
        head += f"Content-Type: {content_type}\r\n"
    if "ransfer-" not in extra:
        head += f"Content-Length: {len(body) if length is None else length}\r\n"
    return head.encode("latin-1") + extra.encode("latin-1") + b"\r\n" + body


def chat(**fields: Any) -> bytes:
    """A chat body with `fields` changed; a field that is `...` is left out."""
    body = {"model": "scripted", "messages": HELLO, **fields}
    return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()


def body_case(name: str, body: bytes, status: int, code: str, param: str | None = None, path: str = CHAT) -> Case:
    """A body that arrives whole."""
    return Case(name=name, pieces=(request(body, path=path),), status=status, code=code, param=param)


def field(name: str, code: str = "invalid_value", param: str | None = None, /, **fields: Any) -> Case:
    """A chat whose one odd field is refused with 400."""
    return body_case(name, chat(**fields), 400, code, param if param is not None else next(iter(fields)))


def nested(levels: int, opening: str = '{"properties":{"a":', closing: str = "}}", core: str = "{}") -> bytes:
    """JSON that is deeper than any stack."""
    return (opening * levels + core + closing * levels).encode()


def tool(name: Any, parameters: Any = None) -> dict[str, Any]:
    """A function tool."""
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


def message(**fields: Any) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [fields]


def _json_cases() -> Iterator[Case]:
    yield body_case("empty body", b"", 400, "invalid_json")
    yield body_case("white space", b"  \r\n ", 400, "invalid_json")
    yield body_case("broken JSON", b'{"model": "scripted", messages: []}', 400, "invalid_json")
    yield body_case("truncated JSON", chat()[:-7], 400, "invalid_json")
    yield body_case("JSON and more", chat() + b" {}", 400, "invalid_json")
    yield body_case("single quotes", b"{'model': 'scripted'}", 400, "invalid_json")
    yield body_case("array for object", b"[]", 400, "invalid_type")
    yield body_case("null for object", b"null", 400, "invalid_type")
    yield body_case("string for object", b'"chat"', 400, "invalid_type")
    yield body_case(
        "bad UTF-8", chat(messages=message(role="user", content="X")).replace(b"X", b"\xff\xfe"), 400, "invalid_json"
    )
    yield body_case("UTF-16", chat().decode().encode("utf-16"), 400, "invalid_json")
    yield body_case("lone surrogate", chat(messages=message(role="user", content="\ud800")), 400, "invalid_json")
    yield body_case(
        "raw NUL", chat(messages=message(role="user", content="X")).replace(b"X", b"\0"), 400, "invalid_json"
    )
    yield field("escaped NUL", "invalid_value", "messages[0].content", messages=message(role="user", content="a\0b"))
    yield body_case("NaN", b'{"model":"scripted","temperature":NaN}', 400, "invalid_json")
    yield body_case("Infinity", b'{"model":"scripted","temperature":-Infinity}', 400, "invalid_json")
    yield body_case("1e400", b'{"model":"scripted","temperature":1e400}', 400, "invalid_value", "temperature")
    yield body_case("100,000 brackets", b"[" * 100_000, 400, "invalid_type")
    yield body_case("100,000 nested messages", b'{"messages":' + b"[" * 100_000, 400, "invalid_type", "messages[0]")
    deep = b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
    yield body_case("deep JSON in a tool", deep + b'{"name":"f","parameters":' + nested(10_000), 400, "invalid_json")


def _field_cases() -> Iterator[Case]:
    yield field("no model", "missing_required_parameter", "model", model=...)
    yield field("no messages", "missing_required_parameter", "messages", messages=...)
    yield field("empty messages", messages=[])
    yield field("null messages", "invalid_type", messages=None)
    yield field("messages as a string", "invalid_type", messages="hello")
    yield field("message as a string", "invalid_type", "messages[0]", messages=["hello"])
    yield field("unknown field", "unknown_parameter", temprature=1)
    yield field(
        "unknown field inside", "unknown_parameter", "messages[0].contents", messages=message(role="user", contents="x")
    )
    yield field("a field name of 100 KB", "unknown_parameter", "x" * 128 + "...", **{"x" * 100_000: 1})
    yield field("functions", "unsupported_parameter", functions=[{"name": "f"}])
    yield field("audio", "unsupported_parameter", audio={"voice": "alloy"})
    yield field("modalities", "unsupported_parameter", modalities=["text", "audio"])
    yield field("moderation", "unsupported_parameter", moderation={"model": "omni-moderation-latest"})
    yield field("prediction", "unsupported_parameter", prediction={"type": "content", "content": "x"})
    yield field("guided_json", "unsupported_parameter", guided_json={"type": "object"})
    yield field("unknown role", "invalid_value", "messages[0].role", messages=message(role="root", content="x"))
    yield field("no role", "missing_required_parameter", "messages[0].role", messages=message(content="x"))
    yield field("content a number", "invalid_type", "messages[0].content", messages=message(role="user", content=5))
    yield field("no content", "missing_required_parameter", "messages[0].content", messages=message(role="user"))
    yield field(
        "empty content array", "invalid_value", "messages[0].content", messages=message(role="user", content=[])
    )
    picture = [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    ]
    yield field(
        "an image", "unsupported_content", "messages[0].content[1]", messages=message(role="user", content=picture)
    )
    yield field(
        "tool message for no call",
        "missing_required_parameter",
        "messages[0].tool_call_id",
        messages=message(role="tool", content="x"),
    )
    yield field("negative max_tokens", max_tokens=-1)
    yield field("zero max_completion_tokens", max_completion_tokens=0)
    yield field("max_tokens past 64 bits", max_tokens=10**30)
    yield field("more tokens than the context", "context_length_exceeded", "messages", max_tokens=10**6)
    yield field("negative temperature", temperature=-0.5)
    yield field("temperature 1e308", temperature=1e308)
    yield field("temperature as text", "invalid_type", temperature="hot")
    yield field("top_p 0", top_p=0)
    yield field("n = 10000", n=10_000)
    yield field("n = 0", n=0)
    yield field("n = 1.5", "invalid_type", n=1.5)
    yield field("n = true", "invalid_type", n=True)
    yield field("ten thousand stop words", stop=["word"] * 10_000)
    yield field("a stop word of 1 MB", stop="x" * 1_000_000)
    yield field("empty stop word", stop="")
    yield field("stop as a number", "invalid_type", stop=4)
    yield field("seed past 64 bits", seed=2**64)
    yield field("logit_bias for a word", logit_bias={"hello": 1})
    yield field("logit_bias too strong", "invalid_value", "logit_bias", logit_bias={"1": 1000})
    yield field("logit_bias outside any vocabulary", "invalid_value", "logit_bias", logit_bias={"4000000000": 1})
    yield field("logit_bias as an array", "invalid_type", logit_bias=[1, 2])
    yield field("1,000 metadata", metadata={str(i): "x" for i in range(1000)})
    yield field("top_logprobs alone", top_logprobs=5)
    yield field("top_logprobs = 21", "invalid_value", "top_logprobs", logprobs=True, top_logprobs=21)
    yield field("stream as text", "invalid_type", stream="yes")
    yield field("stream_options without stream", stream_options={"include_usage": True})
    yield field("priority past its bound", priority=-(10**9))
    yield body_case("unknown model", chat(model="gpt-17"), 404, "model_not_found", "model")
    yield body_case("a model path", chat(model="../../etc/passwd"), 404, "model_not_found", "model")
    yield field("a model for embeddings", "invalid_value", "model", model="scripted-embed")
    yield field("everything null", "invalid_type", "model", model=None, messages=None)


def _form_cases() -> Iterator[Case]:
    yield field("tools as an object", "invalid_type", tools={"name": "f"})
    yield field("a tool of no type", "missing_required_parameter", "tools[0].type", tools=[{"function": {"name": "f"}}])
    yield field("two tools, one name", "invalid_value", "tools[1].function.name", tools=[tool("f"), tool("f")])
    yield field("a tool's name with a space", "invalid_value", "tools[0].function.name", tools=[tool("rm -rf")])
    yield field("a tool's name with a newline", "invalid_value", "tools[0].function.name", tools=[tool("f\n")])
    yield field("a tool's name of 65", "invalid_value", "tools[0].function.name", tools=[tool("x" * 65)])
    yield field("parameters as a string", "invalid_type", "tools[0].function.parameters", tools=[tool("f", "none")])
    yield field(
        "parameters of an array", "invalid_value", "tools[0].function.parameters", tools=[tool("f", {"type": "array"})]
    )
    yield field("129 tools", "invalid_value", tools=[tool(f"f{i}") for i in range(129)])
    yield body_case(
        "tool_choice of no tool",
        chat(tools=[tool("f")], tool_choice={"type": "function", "function": {"name": "g"}}),
        400,
        "invalid_value",
        "tool_choice.function.name",
    )
    yield field("tool_choice without tools", tool_choice="required")
    yield body_case(
        "tool_choice nonsense", chat(tools=[tool("f")], tool_choice="maybe"), 400, "invalid_value", "tool_choice"
    )
    yield field("response_format as a string", "invalid_type", response_format="json")
    yield field("response_format of no kind", "invalid_value", "response_format.type", response_format={"type": "xml"})
    yield field(
        "json_schema without one",
        "missing_required_parameter",
        "response_format.json_schema",
        response_format={"type": "json_schema"},
    )
    yield _schema_case("a schema of no type", {"type": "nonsense"})
    yield _schema_case("a schema 40 levels deep", json.loads(nested(40)))
    yield _schema_case("a schema 100 levels deep", json.loads(nested(100)), "invalid_value")
    yield _schema_case(
        "a schema of 100 KB", {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}}
    )
    yield _schema_case("a schema that refers to itself", {"$ref": "#"})
    for name, part in [
        ("numbers for an enum", {"enum": 5}),
        ("a number for a reference", {"$ref": 5}),
        ("a billion items", {"type": "array", "minItems": 10**9}),
        ("a reference to the network", {"properties": {"city": {"$ref": "http://localhost:1/x"}}}),
    ]:
        yield _schema_case(f"{name}, where no schema is looked for", {"$ref": "#/x", "x": part})
    within = {"$id": "http://localhost:1/x", "$ref": "#/$defs/y"}
    yield _schema_case("a resource within a schema", {"properties": {"city": within}, "$defs": {"y": {}}})
    yield _schema_case("half a surrogate in a pattern", {"type": "string", "pattern": r"\ud800"})
    yield _structured_case("a regex whose flags contradict", "regex", "(?a)(?u)b")
    yield _structured_case("a count of 5,000 digits", "regex", "a{" + "9" * 5_000 + "}")
    yield _structured_case("half a surrogate in a regex", "regex", r"\ud800")
    yield _structured_case("5,000 repetitions in a grammar", "grammar", "root ::= a" + "{999999999}" * 5_000)
    for name, text in [
        ("spaces", "{" + " " * 60_000),
        ("sets", "[a" * 30_000),
        ("quotation marks", "'\\" * 30_000),
        ("slashes", "/\\" * 30_000),
    ]:
        yield _structured_case(f"a grammar of {name} that are not closed", "grammar", text)
    yield _structured_case("catastrophic regex", "regex", "(" * 20 + "a" + "+)" * 20 + "$")
    yield _structured_case("a regex that counts", "regex", "(((a{1,999}){1,999}){1,999}){1,999}")
    yield _structured_case("a regex that ends too soon", "regex", "(((")
    yield _structured_case("a regex of 1 MB", "regex", "a" * 1_000_000)
    yield _structured_case("grammar nonsense", "grammar", "root ::= ((( undefined")
    yield field("two forms at once", structured_outputs={"regex": "a", "choice": ["b"]})
    yield field("a choice of nothing", "invalid_value", "structured_outputs.choice", structured_outputs={"choice": []})


def _schema_case(name: str, schema: Any, code: str = "invalid_grammar") -> Case:
    form = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
    return field(name, code, "response_format.json_schema.schema", response_format=form)


def _structured_case(name: str, kind: str, value: Any) -> Case:
    return field(name, "invalid_grammar", f"structured_outputs.{kind}", structured_outputs={kind: value})


def _heavy_cases() -> Iterator[Case]:
    """Bodies that would take the better part of a second to decode."""

    def heavy(name: str, body: bytes, path: str = CHAT) -> Case:
        return body_case(name, body, 413, "too_many_values", path=path)

    properties = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(250_000)}}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": properties}}
    yield heavy("a schema of 250,000 properties", chat(response_format=form))
    yield heavy("a tool of 250,000 properties", chat(tools=[tool("f", properties)]))
    yield heavy("100,000 messages", chat(messages=HELLO * 100_000))
    yield heavy("250,000 parts", chat(messages=message(role="user", content=[{"type": "text", "text": "x"}] * 250_000)))
    yield heavy(
        "2,000,000 empty arrays", chat(messages=message(role="assistant", content="x", annotations=[[]] * 2_000_000))
    )
    yield heavy("10 MB of brackets", b"[" * 10_000_000)
    yield heavy("500,000 biases", chat(logit_bias={str(i): 1 for i in range(500_000)}))
    yield heavy("1,000,000 stop words", chat(stop=["word"] * 1_000_000))
    prompts = json.dumps({"model": "scripted", "prompt": [[1]] * 1_000_000}).encode()
    yield heavy("1,000,000 prompts", prompts, COMPLETIONS)
    inputs = json.dumps({"model": "scripted-embed", "input": [70_000] * 1_000_000}).encode()
    yield heavy("1,000,000 token ids", inputs, EMBEDDINGS)
    numbers = b",".join([b"7" * 4_000] * 2_000)
    options = chat()[:-1] + b',"prompt_cache_options":{"a":[' + numbers + b"]}}"
    yield heavy("2,000 numbers of 4,000 digits", options)
    yield body_case("10 MB of white space", b" " * 10_000_000, 400, "invalid_json")
    yield field("a field name of 9 MB", "unknown_parameter", "x" * 128 + "...", **{"x" * 9_000_000: 1})
    yield field(
        "a role of 9 MB", "invalid_value", "messages[0].role", messages=message(role="x" * 9_000_000, content="")
    )


def _other_endpoint_cases() -> Iterator[Case]:
    def embed(name: str, value: Any, code: str = "invalid_value", param: str = "input", **fields: Any) -> Case:
        body = json.dumps({"model": "scripted-embed", "input": value, **fields}).encode()
        return body_case(name, body, 400, code, param, EMBEDDINGS)

    def complete(name: str, value: Any, code: str = "invalid_value", param: str = "prompt", **fields: Any) -> Case:
        body = json.dumps({"model": "scripted", "prompt": value, **fields}).encode()
        return body_case(name, body, 400, code, param, COMPLETIONS)

    yield embed("no input", [])
    yield embed("an empty text", "")
    yield embed("2,049 inputs", ["x"] * 2049)
    yield embed("an input too long", "x" * 100_000, "context_length_exceeded", "input[0]")
    yield embed("texts and ids", ["a", 1], "invalid_type")
    yield embed("ids of one half", [[1.5]], "invalid_type", "input[0][0]")
    yield embed("a negative id", [-1], "invalid_value", "input[0]")
    yield embed("an id outside the vocabulary", [[2_000_000_000]], "invalid_value", "input[0]")
    yield embed("unknown encoding", "x", "invalid_value", "encoding_format", encoding_format="hex")
    yield embed("dimensions 0", "x", "invalid_value", "dimensions", dimensions=0)
    yield embed("more dimensions than there are", "x", "invalid_value", "dimensions", dimensions=4096)
    yield complete("no prompt", None, "invalid_type")
    yield complete("a prompt too long", "x" * 40_000, "context_length_exceeded", "prompt")
    yield complete("200 prompts", ["x"] * 200)
    yield complete("suffix", "x", "unsupported_parameter", "suffix", suffix="y")
    yield complete("best_of", "x", "unsupported_parameter", "best_of", best_of=4)
    yield complete("messages for a prompt", "x", "unknown_parameter", "messages", messages=HELLO)


def _http_cases() -> Iterator[Case]:
    def wire(name: str, raw: bytes, status: int, code: str | None) -> Case:
        return Case(name=name, pieces=(raw,), status=status, code=code)

    big = b'{"model":"' + b"x" * 11_000_000 + b'"}'
    yield Case(name="a body of 11 MB", pieces=(request(big),), status=413, code="body_too_large")
    chunked = request(extra="Transfer-Encoding: chunked\r\n")
    piece = b"%x\r\n%b\r\n" % (1_000_000, b"x" * 1_000_000)
    yield Case(
        name="a chunked body of 11 MB", pieces=(chunked, *[piece] * 11, b"0\r\n\r\n"), status=413, code="body_too_large"
    )
    yield wire("a length of 1 TB", request(length=10**12), 413, "body_too_large")
    bomb = gzip.compress(b"x" * 10_000_000)
    yield wire("gzip bomb", request(bomb, extra="Content-Encoding: gzip\r\n"), 415, "unsupported_encoding")
    yield wire(
        "form instead of JSON",
        request(b"a=1", content_type="application/x-www-form-urlencoded"),
        415,
        "unsupported_media_type",
    )
    yield wire(
        "text/plain (a simple request)", request(chat(), content_type="text/plain"), 415, "unsupported_media_type"
    )
    yield wire("no Content-Type", request(chat(), content_type=None), 415, "unsupported_media_type")
    yield wire("foreign Origin", request(chat(), extra="Origin: https://evil.example\r\n"), 403, "origin_not_allowed")
    yield wire("Origin null", request(chat(), extra="Origin: null\r\n"), 403, "origin_not_allowed")
    yield wire(
        "a preflight", request(method="OPTIONS", extra="Origin: https://evil.example\r\n"), 403, "origin_not_allowed"
    )
    yield wire("DNS rebinding", request(chat(), host="evil.example"), 403, "host_not_allowed")
    yield wire(
        "Host localhost.evil.example", request(chat(), host="localhost.evil.example:80"), 403, "host_not_allowed"
    )
    yield wire("Host, a port of no digits", request(chat(), host="localhost:\xb2"), 403, "host_not_allowed")
    yield wire("Host, a port that is none", request(chat(), host="localhost:99999"), 403, "host_not_allowed")
    yield wire(
        "Origin of another scheme", request(chat(), extra="Origin: evil://localhost\r\n"), 403, "origin_not_allowed"
    )
    yield wire("Host of no UTF-8", request(chat(), host="evil\xff\xfe"), 403, "host_not_allowed")
    yield wire("a path of no UTF-8", request(chat(), path="/v1/\xff\xfe"), 400, "bad_request")
    yield wire(
        "a path of no UTF-8, encoded", request(method="GET", path="/v1/models/%ff%fe%00%1b"), 404, "model_not_found"
    )
    yield wire("no Host", b"GET /v1/models HTTP/1.1\r\n\r\n", 400, "bad_request")
    yield wire("two Hosts", request(chat(), extra="Host: evil.example\r\n"), 400, "bad_request")
    yield wire("two lengths", request(chat(), extra="Content-Length: 5\r\n"), 400, "bad_request")
    smuggled = b"0\r\n\r\nGET /acu/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
    both = f"Content-Length: {len(smuggled)}\r\nTransfer-Encoding: chunked\r\n"
    yield wire("smuggling, CL and TE", request(smuggled, extra=both), 400, "bad_request")
    yield wire("smuggling, odd TE", request(smuggled, extra="Transfer-Encoding: xchunked\r\n"), 400, "bad_request")
    yield wire("a chunk size of no hex", chunked + b"zz\r\n", 400, "invalid_body")
    yield Case(
        name="a later chunk size of no hex",
        pieces=(chunked + b"1\r\n{\r\n", 0.05, b"zz\r\n"),
        status=400,
        code="invalid_body",
    )
    yield wire("negative length", request(length=-5), 400, "bad_request")
    yield wire("a method of no kind", request(method="BREW"), 400, "bad_request_line")
    yield wire("a known method, out of place", request(method="DELETE"), 405, "method_not_allowed")
    yield wire("TRACE", request(method="TRACE"), 405, "method_not_allowed")
    yield wire("CONNECT", b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", 404, "unknown_path")
    yield wire(
        "TLS on the plain port",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
        400,
        "bad_request_line",
    )
    yield wire("binary noise", bytes(range(128, 256)) + b"\r\n\r\n", 400, "bad_request_line")
    yield wire("HTTP/9.9", b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n", 400, "bad_request")
    for version in ("2.0", "0.9"):
        raw = request(method="GET", path="/healthz").replace(b"HTTP/1.1", f"HTTP/{version}".encode())
        yield wire(f"HTTP/{version}", raw, 400, "unsupported_version")
    zipped = request(extra="Transfer-Encoding: gzip, chunked\r\n") + b"2\r\n{}\r\n0\r\n\r\n"
    yield wire("a zipped transfer", zipped, 400, "unsupported_encoding")
    yield wire("a header of 100 KB", request(extra=f"X-Big: {'x' * 100_000}\r\n"), 431, "headers_too_large")
    yield wire(
        "10,000 headers", request(extra="".join(f"X-{i}: y\r\n" for i in range(10_000))), 431, "headers_too_large"
    )
    yield wire("a path of 100 KB", request(path="/" + "x" * 100_000), 431, "headers_too_large")
    yield wire("NUL in a header", request(extra="X-Nul: a\0b\r\n"), 400, "bad_request")
    yield wire("a folded header", request(chat(), extra="X-Fold: a\r\n b\r\n"), 400, "bad_request")
    yield wire(
        "an x-request-id of 1,000", request(chat(), extra=f"x-request-id: {'i' * 1000}\r\n"), 400, "invalid_value"
    )
    yield wire("a deadline of no number", request(chat(), extra="x-acu-deadline-ms: soon\r\n"), 400, "invalid_value")
    yield wire("an expectation", request(chat(), extra="Expect: miracles\r\n"), 417, "expectation_failed")
    yield wire("climbing out", request(method="GET", path="/v1/models/../../etc/passwd"), 404, "model_not_found")
    yield wire(
        "climbing out, encoded",
        request(method="GET", path="/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
        404,
        "model_not_found",
    )
    yield wire("administration from outside", request(method="GET", path="/acu/v1/status"), 403, "missing_scope")
    yield Case(
        name="slow-loris headers",
        status=408,
        code="header_timeout",
        pieces=(b"POST / HTTP/1.1\r\n", *(b"X-A: b\r\n", 0.05) * 40),
    )
    yield Case(name="slow body", status=408, code="body_timeout", pieces=(request(length=1000), *(b" ", 0.05) * 40))
    yield Case(name="slow chunked body", status=408, code="body_timeout", pieces=(chunked, *(b"1\r\n \r\n", 0.05) * 40))
    yield Case(
        name="truncated headers",
        status=400,
        code="truncated_request",
        half_close=True,
        pieces=(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc",),
    )
    slow = chat(messages=message(role="user", content="slow"))
    yield Case(name="a half-closed chat", status=400, code="half_closed", half_close=True, pieces=(request(slow),))
    yield Case(
        name="truncated body", status=400, code="invalid_body", half_close=True, pieces=(request(b"{", length=100),)
    )


CASES = (*_json_cases(), *_field_cases(), *_form_cases(), *_heavy_cases(), *_other_endpoint_cases(), *_http_cases())
