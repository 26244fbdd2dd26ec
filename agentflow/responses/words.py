"""Words: what a person says about calls that wait for approval, as a response's input brings it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from agentflow.agents.progress import Call, Progress
from agentflow.agents.record import Added, ApprovalGiven, Event
from agentflow.errors import InvalidRequest
from agentflow.messages import Message
from agentflow.responses.ids import approval_of, call_of, response_of
from agentflow.responses.items import MessageItem, WordItem
from agentflow.responses.records import ResponseRecord, Settings
from agentflow.responses.values import NewResponse

_OF_THE_RUN: Final = (
    "instructions",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "max_output_tokens",
    "max_tool_calls",
    "parallel_tool_calls",
    "text",
)


class Words(NamedTuple):
    """All that one response brings to the run `run_id`: words about calls, by their ids, and what the user says besides."""

    run_id: str
    given: dict[str, WordItem]
    messages: tuple[Message, ...]

    @classmethod
    def of(cls, new: NewResponse) -> Words:
        """The words of an input that has some. Raises InvalidRequest."""
        runs: set[str] = set()
        given: dict[str, WordItem] = {}
        messages: list[Message] = []
        for item in new.input:
            if isinstance(item, WordItem):
                named = call_of(item.request)
                if named is None:
                    raise unknown_approval(item.request)
                runs.add(named[0])
                if named[1] in given:
                    raise InvalidRequest(f"Two items answer the approval request '{item.request}'.", param="input")
                given[named[1]] = item
            elif isinstance(item, MessageItem) and item.role == "user":
                messages.append(Message("user", "".join(item.texts)))
            else:
                raise InvalidRequest(
                    "Beside approvals an input may have messages of the user's, and nothing else: give the outputs of your "
                    "functions with the response after it.",
                    param="input",
                )
        if len(runs) > 1:
            raise InvalidRequest("The approvals are of different responses: answer each on its own.", param="input")
        return cls(runs.pop(), given, tuple(messages))

    def fit(self, progress: Progress) -> bool:
        """Whether all of the calls wait for a word. Raises InvalidRequest for one that nobody was asked about, and while
        other calls are under way.
        """
        asked = {call.id for call in progress.calls if call.asked}
        if progress.waits_for_word:
            for call_id, item in self.given.items():
                if call_id not in asked:
                    raise unknown_approval(item.request)
        if progress.ended is not None or not self.given.keys() <= {call.id for call in _unheard(progress)}:
            return False
        if not progress.waits_for_word:
            raise _under_way(response_of(self.run_id))
        return True

    def events(self, by: str, response: str) -> tuple[Event, ...]:
        """What the run is told, words first. `by`: the name of the key that says so; `response`: the id of what brings them."""
        words = [
            ApprovalGiven(call_id=call_id, allowed=item.approve, why=item.reason or "", by=by, response=response)
            for call_id, item in self.given.items()
        ]
        return (*words, *(Added(message=message) for message in self.messages))

    def unknown(self) -> InvalidRequest:
        """None of them is a word about a call of the response that is gone on from."""
        return unknown_approval(", ".join(item.request for item in self.given.values()))

    def answered(self, of_run: Iterable[ResponseRecord]) -> InvalidRequest:
        """Somebody else was quicker, in one of the run's responses or at the run itself, or the run is over."""
        asked = {item.request for item in self.given.values()}
        names = ", ".join(sorted(asked))[:256]
        says = f"The approval request '{names}' was answered already, or its run is over. Go on with a message."
        for record in of_run:
            if any(isinstance(item, WordItem) and item.request in asked for item in record.input):
                says = f"The approval request '{names}' was answered already. Go on from the response '{record.id}'."
        return InvalidRequest(
            says,
            param="input",
            code="approval_already_answered",
        )


def same_run(began: Settings, new: NewResponse) -> Settings:
    """The settings of a response that goes on with the run of another, whose settings that run goes by.

    Raises InvalidRequest for others. The same can be given again: many clients send all of them each time.
    """
    for name in _OF_THE_RUN:
        if name in new.given and getattr(new.settings, name) != getattr(began, name):
            raise InvalidRequest(
                f"Unsupported parameter: '{name}'. A response with approvals goes on with the run that asked, which goes by what "
                "it was begun with: leave it out, or give the same again.",
                param=name,
                code="unsupported_parameter",
            )
    return replace(new.settings, **{name: getattr(began, name) for name in _OF_THE_RUN})


def unknown_approval(request: str) -> InvalidRequest:
    """What was never asked, or not of this tenant, or not by the response that is gone on from."""
    return InvalidRequest(
        f"No approval request with id '{request[:64]}' was found in the response that is gone on from.",
        param="input",
        code="approval_request_not_found",
    )


def check_heard(response_id: str, progress: Progress) -> None:
    """A response can be gone on from once its run's calls have their results. Raises InvalidRequest."""
    if progress.ended is not None or not progress.waiting:
        return
    if not progress.waits_for_word:
        raise _under_way(response_id)
    names = ", ".join(approval_of(call.id) for call in _unheard(progress))
    raise InvalidRequest(
        f"The response '{response_id}' waits for a word about {names}: give an item of type 'mcp_approval_response' for each.",
        param="input",
        code="approval_required",
    )


def _unheard(progress: Progress) -> list[Call]:
    """The calls that wait for a person."""
    return [call for call in progress.waiting if call.asked and call.answer is None]


def _under_way(response_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"Calls of the response '{response_id}' are under way: wait until they have their results, or ask without it.",
        param="previous_response_id",
        code="previous_response_in_progress",
    )
