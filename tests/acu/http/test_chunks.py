"""The bytes of a stream, one by one."""

from __future__ import annotations

import msgspec
import pytest

from acu.http.chunks import ChatChunks, CompletionChunks, Shown
from acu.http.wire.responses import ChatCompletionChunk, Completion
from agentflow.events import (
    ChoiceFinished,
    Event,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallOpened,
    Usage,
)

HEAD = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":['


def chat(n: int = 1, *, include_usage: bool = False) -> ChatChunks:
    return ChatChunks("chatcmpl-1", 1_700_000_000, "m", n, Shown(usage=include_usage))


def test_the_first_chunk_carries_the_role() -> None:
    assert chat().opening() == (
        HEAD + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    )


def test_each_choice_has_a_first_chunk() -> None:
    opening = chat(3).opening()
    assert [msgspec.json.decode(line[6:])["choices"][0]["index"] for line in opening.split(b"\n\n")[:-1]] == [0, 1, 2]


def test_text_is_the_only_thing_that_changes_between_two_chunks() -> None:
    chunks = chat(2)
    assert chunks.encode(TextDelta(1, 'say "hi"\n\u2603')) == (
        HEAD
        + '{"index":1,"delta":{"content":"say \\"hi\\"\\n\u2603"},"logprobs":null,"finish_reason":null}]}\n\n'.encode()
    )


def test_the_last_chunk_of_a_choice_has_an_empty_delta() -> None:
    assert chat().encode(ChoiceFinished(0, "length")) == (
        HEAD + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}\n\n'
    )


def test_with_usage_every_chunk_says_null_and_the_last_has_no_choice() -> None:
    chunks = chat(include_usage=True)
    assert chunks.encode(TextDelta(0, "a")).endswith(b'"finish_reason":null}],"usage":null}\n\n')
    assert chunks.opening().endswith(b'"finish_reason":null}],"usage":null}\n\n')
    assert chunks.encode(ChoiceFinished(0, "stop")).endswith(b'"finish_reason":"stop"}],"usage":null}\n\n')
    assert chunks.usage(Usage(3, 5, 2)) == (
        HEAD + b'],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,'
        b'"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
    )


def test_a_tool_call_opens_with_its_name_and_goes_on_with_its_arguments() -> None:
    chunks = chat()
    assert chunks.encode(ToolCallOpened(0, 1, "call_9", "f")) == (
        HEAD + b'{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_9","type":"function",'
        b'"function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert chunks.encode(ToolCallArguments(0, 1, '{"a')) == (
        HEAD + b'{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\\"a"}}]},'
        b'"logprobs":null,"finish_reason":null}]}\n\n'
    )


def test_a_delta_without_text_gives_no_chunk() -> None:
    assert chat().encode(TextDelta(0, "", (7,))) == b""
    assert CompletionChunks("c", 1, "m", include_usage=False).encode(TextDelta(0, "", (7,))) == b""


def test_log_probabilities_come_with_their_bytes_and_alternatives() -> None:
    token = TokenLogprob("\u2603", 5, -0.5, (TokenLogprob("\u2603", 5, -0.5), TokenLogprob("x", 6, float("-inf"))))
    chunk = msgspec.json.decode(chat().encode(TextDelta(0, "\u2603", (5,), (token,)))[6:])
    assert chunk["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "\u2603",
                "logprob": -0.5,
                "bytes": [0xE2, 0x98, 0x83],
                "top_logprobs": [
                    {"token": "\u2603", "logprob": -0.5, "bytes": [0xE2, 0x98, 0x83]},
                    {"token": "x", "logprob": -9999.0, "bytes": [120]},
                ],
            }
        ],
        "refusal": None,
    }


def test_a_completions_chunk_carries_text_and_then_a_reason() -> None:
    chunks = CompletionChunks("cmpl-1", 1_700_000_000, "m", include_usage=False)
    head = b'data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":['
    assert chunks.opening() == b""
    assert chunks.encode(TextDelta(2, "a")) == (
        head + b'{"index":2,"text":"a","logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert chunks.encode(ChoiceFinished(2, "stop")) == (
        head + b'{"index":2,"text":"","logprobs":null,"finish_reason":"stop"}]}\n\n'
    )


def test_a_completions_offsets_go_on_from_chunk_to_chunk() -> None:
    chunks = CompletionChunks("cmpl-1", 1, "m", include_usage=False)
    tokens = (TokenLogprob("ab", 1, -1.0), TokenLogprob("c", 2, -2.0))
    first = msgspec.json.decode(chunks.encode(TextDelta(0, "abc", (1, 2), tokens))[6:])["choices"][0]["logprobs"]
    second = msgspec.json.decode(chunks.encode(TextDelta(0, "abc", (1, 2), tokens))[6:])["choices"][0]["logprobs"]
    assert first == {"tokens": ["ab", "c"], "token_logprobs": [-1.0, -2.0], "top_logprobs": None, "text_offset": [0, 2]}
    assert second["text_offset"] == [3, 5]


@pytest.mark.parametrize(
    "event",
    [
        TextDelta(0, "a\u2028\x7f"),
        ToolCallOpened(0, 0, "i", "n"),
        ToolCallArguments(0, 0, "{}"),
        ChoiceFinished(0, "stop"),
    ],
)
@pytest.mark.parametrize("include_usage", [True, False])
def test_a_chunk_is_what_the_document_says(event: Event, include_usage: bool) -> None:
    encoded = chat(include_usage=include_usage).encode(event)
    assert encoded.startswith(b"data: ")
    assert encoded.endswith(b"\n\n")
    assert b"\n" not in encoded[:-2]
    chunk = msgspec.json.decode(encoded[6:-2], type=ChatCompletionChunk)
    assert msgspec.json.encode(chunk) == encoded[6:-2]


def test_a_completions_chunk_is_what_the_document_says() -> None:
    encoded = CompletionChunks("c", 1, "m", include_usage=True).encode(TextDelta(0, "a"))
    assert msgspec.json.encode(msgspec.json.decode(encoded[6:-2], type=Completion)) == encoded[6:-2]
