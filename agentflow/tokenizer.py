"""Tokenizers: text to token ids and back.

Two implementations ship: `FileTokenizer` reads a model folder's `tokenizer.json`, and `ByteTokenizer` makes one token
of each UTF-8 byte for the scripted engine. Both are immutable once built and may be used from any thread.

**Control tokens** are the ones that text must never produce when it comes from a stranger: every added token that the
model calls special, and those that are written like one (`<|...|>`). `encode_guarded` is how a rendered chat is
encoded: the whole text is encoded as any text is, and a control token that touches a guarded span (the content of
a message) is replaced by the ordinary tokens that spell it. What is outside of the guarded spans gets the very ids
that `encode` gives it, so a harmless chat is encoded exactly as the model's authors do it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

from tokenizers import Tokenizer as Backend

from agentflow.errors import EngineStartFailed, InvalidRequest

Span = tuple[int, int]
"""Half-open range of characters of a text."""

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LIKE_A_CONTROL_TOKEN = re.compile("<[|\N{FULLWIDTH VERTICAL LINE}].*[|\N{FULLWIDTH VERTICAL LINE}]>", re.DOTALL)
_BYTE_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


class Tokenizer(Protocol):
    """What the orchestrator needs to know of a model's vocabulary.

    `vocab_size` is one more than the largest id. `eos_token_ids` end a sequence. `specials` holds the texts that chat
    templates know by name (`bos_token`, `eos_token`, ...). `control_tokens` maps text to id (see the module).
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def specials(self) -> Mapping[str, str]: ...

    @property
    def control_tokens(self) -> Mapping[str, int]: ...

    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. Raises InvalidRequest when it is no valid Unicode (a lone surrogate)."""

    def encode_guarded(self, text: str, guarded: Sequence[Span]) -> list[int]:
        """As `encode` with no special tokens added; no control token comes out of the `guarded` spans.

        The spans are in order and do not overlap.
        """

    def spans(self, text: str) -> list[Span]:
        """For each token that `encode` gives with no special tokens added, the characters that it stands for.

        Tokens may share a character (one of several bytes), and characters may belong to none (white space).
        """

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of `ids`, each in [0, vocab_size). U+FFFD stands where a character is incomplete."""

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself."""


class FileTokenizer:
    """The tokenizer of a model folder in Hugging Face's layout.

    Encodes 0.6 to 1.5 MB/s on one core: a text of 1 MB takes about a second and belongs in a thread (the encoding
    itself runs without the interpreter's lock).
    """

    def __init__(
        self, backend: Backend, *, specials: Mapping[str, str], eos_token_ids: Iterable[int], chat_template: str | None
    ) -> None:
        self._backend = backend
        self.specials = MappingProxyType(dict(specials))
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))
        self.chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        self.vocab_size = max([backend.get_vocab_size(with_added_tokens=True), *(token_id + 1 for token_id in added)])
        self.control_tokens = MappingProxyType(
            {
                token.content: token_id
                for token_id, token in added.items()
                if token.special or _LIKE_A_CONTROL_TOKEN.fullmatch(token.content)
            }
        )
        self._spelled = _spell(backend, self.control_tokens)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a model folder. Blocks for up to a second. Raises EngineStartFailed, naming the file."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise EngineStartFailed(f"{folder} has no tokenizer.json: pull the model again, or choose another folder")
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise EngineStartFailed(f"{path} is not a tokenizer that can be read: {error}") from error
        backend.no_truncation()  # some embedding models ship a truncation, which would hide an overlong input
        backend.no_padding()
        config = _read_object(folder / "tokenizer_config.json")
        named = {**_read_object(folder / "special_tokens_map.json"), **config}
        specials = {name: text for name in _SPECIAL_NAMES if (text := _token_text(named.get(name)))}
        eos_ids = {
            *_token_ids(_read_object(folder / "config.json").get("eos_token_id")),
            *_token_ids(_read_object(folder / "generation_config.json").get("eos_token_id")),
        }
        if (eos := specials.get("eos_token")) and (eos_id := backend.token_to_id(eos)) is not None:
            eos_ids.add(eos_id)
        return cls(backend, specials=specials, eos_token_ids=eos_ids, chat_template=_read_chat_template(folder, config))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """As Tokenizer.encode."""
        return list(self._encode(text, add_special_tokens).ids)

    def encode_guarded(self, text: str, guarded: Sequence[Span]) -> list[int]:
        """As Tokenizer.encode_guarded."""
        encoding = self._encode(text, False)
        ids: list[int] = list(encoding.ids)
        if not guarded or self._spelled.keys().isdisjoint(ids):
            return ids
        guards = _Spans(guarded)
        out: list[int] = []
        for token_id, (start, end) in zip(ids, encoding.offsets, strict=True):
            spelled = self._spelled.get(token_id)
            if spelled is not None and guards.touches(start, end):
                out.extend(spelled)
            else:
                out.append(token_id)
        return out

    def spans(self, text: str) -> list[Span]:
        """As Tokenizer.spans."""
        return list(self._encode(text, False).offsets)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """As Tokenizer.decode."""
        return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """As Tokenizer.token_text."""
        return self.decode([token_id], skip_special_tokens=False)

    def _encode(self, text: str, add_special_tokens: bool) -> Any:
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens)
        except (UnicodeError, TypeError) as error:
            raise InvalidRequest("the text is not valid Unicode (it holds half of a surrogate pair)") from error


class ByteTokenizer:
    """One token a UTF-8 byte (ids 0 to 255), and 256 for the end of a text. Encodes 100 MB/s.

    No text encodes to 256, so nothing needs guarding. The built-in template writes each turn as
    `<|role|>`, a line feed, the content, `<|end|>` and a line feed.
    """

    EOS = 256
    EOS_TEXT = "<|end|>"

    vocab_size = 257
    eos_token_ids = (EOS,)
    specials: Mapping[str, str] = MappingProxyType({"eos_token": EOS_TEXT})
    control_tokens: Mapping[str, int] = MappingProxyType({})
    chat_template = _BYTE_TEMPLATE

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """As Tokenizer.encode."""
        try:
            return list(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest("the text is not valid Unicode (it holds half of a surrogate pair)") from error

    def encode_guarded(self, text: str, guarded: Sequence[Span]) -> list[int]:
        """As Tokenizer.encode_guarded."""
        return self.encode(text, add_special_tokens=False)

    def spans(self, text: str) -> list[Span]:
        """As Tokenizer.spans."""
        lengths = (len(character.encode(errors="surrogatepass")) for character in text)
        return [(at, at + 1) for at, length in enumerate(lengths) for _ in range(length)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """As Tokenizer.decode."""
        if self.EOS not in ids:
            return bytes(ids).decode(errors="replace")
        end = b"" if skip_special_tokens else self.EOS_TEXT.encode()
        pieces = (end if token_id == self.EOS else bytes((token_id,)) for token_id in ids)
        return b"".join(pieces).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        """As Tokenizer.token_text."""
        return self.decode((token_id,), skip_special_tokens=False)


def _spell(backend: Backend, control_tokens: Mapping[str, int]) -> dict[int, list[int]]:
    """The ordinary tokens that spell each control token; made once, because the switch is not thread-safe."""
    controls = frozenset(control_tokens.values())
    spelled: dict[int, list[int]] = {}
    for text, token_id in control_tokens.items():
        backend.encode_special_tokens = True
        ids = backend.encode(text, add_special_tokens=False).ids
        backend.encode_special_tokens = False
        if not controls.isdisjoint(ids):  # the switch spares tokens that are only written like a control token
            pieces = [backend.encode(character, add_special_tokens=False).ids for character in text]
            ids = [piece for piece in chain.from_iterable(pieces) if piece not in controls]
        spelled[token_id] = list(ids)
    return spelled


class _Spans:
    """Asks of sorted, disjoint spans whether one of them shares a character with another span."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._starts = [start for start, _ in spans]
        self._ends = [end for _, end in spans]

    def touches(self, start: int, end: int) -> bool:
        last_before_end = bisect_right(self._starts, end - 1) - 1
        return last_before_end >= 0 and self._ends[last_before_end] > start


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one where there is no such file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise EngineStartFailed(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise EngineStartFailed(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value


def _read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` where it exists, else tokenizer_config.json's entry: a text, or a list of named ones."""
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise EngineStartFailed(f"{folder / 'chat_template.jinja'} cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token_text(value: object) -> str | None:
    """A special token is written as its text, or as an object whose `content` is the text."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _token_ids(value: object) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    return [token_id for token_id in value if isinstance(token_id, int)] if isinstance(value, list) else []
