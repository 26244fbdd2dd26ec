"""Turns: what a run's prompt grows by, in token ids. Pure.

**Tokens in, tokens out.** What a model said is never rendered and encoded again: the next prompt is the last one, the ids that
the model said, the rest of its turn's end, and the new turns. So the engine finds all of the last step in its KV cache. The
new turns are rendered behind a short conversation that stands for the real one, so that a long run costs no more than a
short one, and nothing that a template would do to earlier turns (drop thoughts, move the tools) changes what was said.

**The check.** That rendering is only right where a template writes a turn in the same way whatever went before. `Turns` tries it
when it is made, on conversations such as agents have, against the whole template. Where they differ (`problem` says how), the
whole conversation is rendered for each step instead: right, but what the model said is encoded again, and the cache may not
hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from agentflow.errors import InvalidRequest
from agentflow.messages import Message, Tool, ToolCall
from agentflow.prompt import ChatEncoder
from agentflow.tokenizer import Tokenizer

_TOOL = Tool("look", "Looks something up.", {"type": "object", "properties": {"what": {"type": "string"}}})
_CALL_IDS = 9  # characters: Mistral's templates take no other length


class Turns:
    """The prompts of runs on one model. `problem`: why new turns cannot be rendered alone; None where they can."""

    def __init__(self, tokenizer: Tokenizer, encoder: ChatEncoder) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._end = ""
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

        `history` is the conversation up to and with what was said, for models that have a `problem`. Raises InvalidRequest.
        """
        if self.problem is not None:
            return self._encoder.encode(_numbered([*history, *new]), tools)
        return [*prompt, *said, *self._behind(said, new, tools)]

    def _behind(self, said: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """What follows `said`: the rest of the turn's end, and the turns `new`."""
        end = self._end
        if said and said[-1] in self._tokenizer.eos_token_ids:
            written = self._tokenizer.token_text(said[-1])
            # A model may end with another token than its template writes: then that one is its end.
            end = end.removeprefix(written) if end.startswith(written) else end.lstrip().partition("\n")[1]
        called = new[0].role == "tool"
        return self._encoder.encode_after(_stand_in(called=called), _numbered(new), tools, end=end)

    def _differing(self) -> str | None:
        """How a turn that is rendered alone differs from the same turn in a whole conversation, if it does."""
        for what, history, new in _probes():
            alone = self._encoder.encode_after(_stand_in(called=new[0].role == "tool"), new, [_TOOL])
            whole = self._encoder.encode([*history, *new], [_TOOL])
            if whole[-len(alone) :] != alone:
                return f"the chat template writes {what} in another way within a longer conversation"
        return None


def _stand_in(*, called: bool) -> list[Message]:
    """The short conversation behind which new turns are rendered: an answer, or a call whose results are to follow."""
    calls = (_call(0),) if called else ()
    return [Message("user", "Hello."), Message("assistant", "Hello.", tool_calls=calls)]


def _probes() -> list[tuple[str, list[Message], list[Message]]]:
    """What to try: what the new turns are, a conversation, and the turns."""
    asked = [Message("system", "Be brief."), Message("user", "What is the capital of France?")]
    called = Message("assistant", "I shall look.", tool_calls=(_call(0),))
    result = Message("tool", "Paris", name="look", tool_call_id=_call_id(0))
    answered = [*asked, called, result, Message("assistant", "It is Paris.")]
    thought = [*asked, Message("assistant", "<think>\nFrance...\n</think>\n\nParis.")]
    again = Message("user", "And of Spain?")
    return [
        ("a tool's result", [*asked, called], [result]),
        ("a second result", [*asked, called, result, called], [result]),
        ("a user's next message", answered, [again]),
        ("a message behind a thought", thought, [again]),
        ("a later result", [*answered, again, called], [result]),
    ]


def _numbered(messages: Sequence[Message]) -> list[Message]:
    """The messages with short call ids by their order, as every template takes them, and the same at every step."""
    names: dict[str, str] = {}

    def short(call_id: str) -> str:
        return names.setdefault(call_id, _call_id(len(names)))

    return [
        replace(
            message,
            tool_calls=tuple(replace(call, id=short(call.id)) for call in message.tool_calls),
            tool_call_id=None if message.tool_call_id is None else short(message.tool_call_id),
        )
        for message in messages
    ]


def _call(number: int) -> ToolCall:
    return ToolCall(_call_id(number), _TOOL.name, '{"what": "it"}')


def _call_id(number: int) -> str:
    return f"call{number:0{_CALL_IDS - 4}}"
