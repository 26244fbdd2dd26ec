"""Turns: what a run's prompt grows by, in token ids. Pure.

**Tokens in, tokens out.** What a model said is never rendered and encoded again: the next prompt is the last one, the ids that
the model said, the rest of its turn's end, and the new turns. So the engine finds all of the last step in its KV cache. The
new turns are rendered behind a short conversation that stands for the real one, so that a long run costs no more than a
short one, and nothing that a template would do to earlier turns (drop thoughts, move the tools) changes what was said. Results
stand behind calls of their own names and ids there, for some templates write a result under the name of its call.

**The check.** That rendering is only right where a template writes a turn in the same way whatever went before. `Turns` tries it
when it is made, on conversations such as agents have, with several tools, against the whole template. Where they differ
(`problem` says how), the whole conversation is rendered for each step instead: right, but what the model said is encoded
again, and the cache may not hold it. A template that refuses several calls in a turn, or a user's turn behind a result, has
nothing to differ from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from msgspec.structs import replace

from agentflow.errors import InvalidRequest
from agentflow.messages import Message, Tool, ToolCall
from agentflow.prompt import ChatEncoder
from agentflow.tokenizer import Tokenizer

_Probe = tuple[str, list[Message], list[Message]]
"""What the new turns are, a conversation, and the turns."""

_WHAT = {"type": "object", "properties": {"what": {"type": "string"}}}
_TOOLS = tuple(Tool(name, "Looks something up.", _WHAT) for name in ("look", "weather", "price"))
_CALL_IDS = 9  # characters: Mistral's templates take no other length


class Turns:
    """The prompts of runs on one model. `problem`: why new turns cannot be rendered alone; None where they can."""

    def __init__(self, tokenizer: Tokenizer, encoder: ChatEncoder) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._end = ""
        self._several = True  # whether the template takes several calls in a turn
        try:
            self._end = encoder.turn_end()
            self.problem = self._differing()
        except InvalidRequest as error:
            self.problem = str(error)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The first prompt of a run. Raises InvalidRequest."""
        return self._encoder.encode(_numbered(messages), tools)

    def next(
        self,
        prompt: Sequence[int],
        said: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int]:
        """The prompt for the next step: after `prompt` the model said `said`, and then the turns `new` came.

        `history` is the conversation up to and with what was said. Raises InvalidRequest.
        """
        if self.problem is not None:
            return self._encoder.encode(_numbered([*history, *new]), tools)
        return [*prompt, *said, *self._behind(said, _numbered(new, history), tools)]

    def _behind(self, said: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """What follows `said`: the rest of the turn's end, and the turns `new`."""
        end = self._end
        if said and said[-1] in self._tokenizer.eos_token_ids:
            written = self._tokenizer.token_text(said[-1])
            # A model may end with another token than its template writes: then that one is its end.
            end = end.removeprefix(written) if end.startswith(written) else end.lstrip().partition("\n")[1]
        return self._encoder.encode_after(self._stand_in(new), new, tools, end=end)

    def _stand_in(self, new: Sequence[Message]) -> list[Message]:
        """The short conversation behind which `new` is rendered: an answer, or the calls whose results come first in it."""
        results = list(takewhile(lambda message: message.role == "tool", new))
        calls = [ToolCall(each.tool_call_id or _call_id(0), each.name or _TOOLS[0].name, "{}") for each in results]
        return [
            Message("user", "Hello."),
            Message("assistant", "Hello.", tool_calls=tuple(calls if self._several else calls[:1])),
        ]

    def _differing(self) -> str | None:
        """How a turn that is rendered alone differs from the same turn in a whole conversation, if it does."""
        for probe in _probes():
            if differing := self._difference(probe):
                return differing
        self._several = self._takes(_several())
        for probe in (_several(), _interrupted()):
            if self._takes(probe) and (differing := self._difference(probe)):
                return differing
        return None

    def _difference(self, probe: _Probe) -> str | None:
        what, history, new = probe
        alone = self._encoder.encode_after(self._stand_in(new), new, _TOOLS)
        whole = self._encoder.encode([*history, *new], _TOOLS)
        if whole[-len(alone) :] != alone:
            return f"the chat template writes {what} in another way within a longer conversation"
        return None

    def _takes(self, probe: _Probe) -> bool:
        """Whether the template takes such a conversation at all."""
        _, history, new = probe
        try:
            self._encoder.encode([*history, *new], _TOOLS)
        except InvalidRequest:
            return False
        return True


def _probes() -> list[_Probe]:
    """What every template must take that an agent is to use. No two calls have the same name or id."""
    asked, again = _asked(), Message("user", "And of Spain?")
    first, second = _called(0), _called(1)
    answered = [*asked, first, _result(0), Message("assistant", "It is Paris.")]
    thought = [*asked, Message("assistant", "<think>\nFrance...\n</think>\n\nParis.")]
    return [
        ("a tool's result", [*asked, first], [_result(0)]),
        ("a second result", [*asked, first, _result(0), second], [_result(1)]),
        ("a user's next message", answered, [again]),
        ("a message behind a thought", thought, [again]),
        ("a later result", [*answered, again, second], [_result(1)]),
    ]


def _several() -> _Probe:
    return "results of several calls", [*_asked(), _called(0), _result(0), _called(1, 2)], [_result(1), _result(2)]


def _interrupted() -> _Probe:
    new = [_result(1), Message("user", "And of Spain?")]
    return "a message behind a result", [*_asked(), _called(0), _result(0), _called(1)], new


def _asked() -> list[Message]:
    return [Message("system", "Be brief."), Message("user", "What is the capital of France?")]


def _called(*numbers: int) -> Message:
    """A turn with the calls of these numbers."""
    calls = (ToolCall(_call_id(number), _TOOLS[number].name, '{"what": "it"}') for number in numbers)
    return Message("assistant", "I shall look.", tool_calls=tuple(calls))


def _result(number: int) -> Message:
    return Message("tool", "Paris", name=_TOOLS[number].name, tool_call_id=_call_id(number))


def _numbered(messages: Sequence[Message], before: Sequence[Message] = ()) -> list[Message]:
    """The messages with short call ids by their order, as every template takes them, and the same at every step.

    `before`: what went before them, whose calls are counted.
    """
    names: dict[str, str] = {}

    def short(call_id: str) -> str:
        return names.setdefault(call_id, _call_id(len(names)))

    for message in before:
        for call in message.tool_calls:
            short(call.id)
        if message.tool_call_id is not None:
            short(message.tool_call_id)
    return [
        replace(
            message,
            tool_calls=tuple(replace(call, id=short(call.id)) for call in message.tool_calls),
            tool_call_id=None if message.tool_call_id is None else short(message.tool_call_id),
        )
        for message in messages
    ]


def _call_id(number: int) -> str:
    return f"call{number:0{_CALL_IDS - 4}}"
