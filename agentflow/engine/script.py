"""Script: what the scripted engine answers, how fast, and how it fails. Frozen values and their file.

A script is a YAML mapping of `Script`'s fields; `examples/script.yaml` shows all of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta, Struct

from agentflow.errors import EngineStartFailed

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[float, Meta(ge=0)]


class Rule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers the requests that it matches. What is None is taken from the script.

    `match` is a regular expression that is searched `within` the last user message, or the whole prompt; an empty one
    matches everything. `{user}` in an answer stands for the last user message. Of several `answers` the request's
    seed picks one. After `die_after_tokens` of a matching answer the engine dies; after `hang_after_tokens` it goes
    silent, with all that runs on it.
    """

    match: str = ""
    within: Literal["user", "prompt"] = "user"
    answer: str | None = None
    answers: tuple[str, ...] = ()
    tokens_per_s: NotNegative | None = None
    ttft_s: NotNegative | None = None
    tokens_per_delta: Positive | None = None
    die_after_tokens: Count | None = None
    hang_after_tokens: Count | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.match)
        except re.error as error:
            raise ValueError(f"`match` is no regular expression: {error}") from error
        if self.answer is not None and self.answers:
            raise ValueError("`answer` and `answers` exclude each other")

    @property
    def fails(self) -> bool:
        """Whether the engine dies or hangs of it."""
        return self.die_after_tokens is not None or self.hang_after_tokens is not None


class Script(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules, of which the first that matches answers, and what they default to.

    `tokens_per_s` is the rate of one stream; 0 is as fast as the stream is read. `ttft_s` seconds pass before the
    first token. A start takes `start_s` seconds, and fails with the message `fail_start` if there is one.
    `dimensions` is the length of the embedder's vectors, each batch of which takes `embed_s` seconds.
    """

    rules: tuple[Rule, ...] = ()
    answer: str = "You said: {user}"
    tokens_per_s: NotNegative = 0.0
    ttft_s: NotNegative = 0.0
    tokens_per_delta: Positive = 1
    start_s: NotNegative = 0.0
    fail_start: str | None = None
    dimensions: Annotated[int, Meta(ge=8, le=8192)] = 384
    embed_s: NotNegative = 0.0

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a YAML file. Raises EngineStartFailed, naming the file and the field."""
        try:
            return msgspec.yaml.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise EngineStartFailed(f"the script {path} cannot be read: {error.strerror}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise EngineStartFailed(f"the script {path} is wrong: {error}") from error
