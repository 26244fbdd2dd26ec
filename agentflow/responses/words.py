"""Words: what a person says about calls that wait for approval, as a response's input brings it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from agentflow.agents.progress import Progress
from agentflow.agents.record import Added, ApprovalGiven, Event
from agentflow.errors import InvalidRequest
from agentflow.messages import Message
from agentflow.responses.ids import approval_of, call_of
from agentflow.responses.items import MessageItem, WordItem
from agentflow.responses.values import NewResponse


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

    def check(self, progress: Progress) -> None:
        """Raises InvalidRequest for a word about a call that does not wait for one."""
        if not progress.waits_for_word:
            raise self.answered()
        waiting = {call.id for call in progress.waiting}
        known = {call.id for call in progress.calls if call.asked}
        for call_id, item in self.given.items():
            if call_id not in waiting:
                raise self.answered() if call_id in known else unknown_approval(item.request)

    def events(self, by: str) -> tuple[Event, ...]:
        """What the run is told. `by`: the name of the key that says so."""
        words = [
            ApprovalGiven(call_id=call_id, allowed=item.approve, why=item.reason or "", by=by)
            for call_id, item in self.given.items()
        ]
        return (*words, *(Added(message=message) for message in self.messages))

    def unknown(self) -> InvalidRequest:
        """None of them is a word about a call of the response that is gone on from."""
        return unknown_approval(", ".join(item.request for item in self.given.values()))

    def answered(self) -> InvalidRequest:
        """Somebody else was quicker, or the run is over."""
        names = ", ".join(item.request for item in self.given.values())
        return InvalidRequest(
            f"The approval request '{names[:256]}' was answered already, or its run is over. Go on with a message.",
            param="input",
            code="approval_already_answered",
        )


def unknown_approval(request: str) -> InvalidRequest:
    """What was never asked, or not of this tenant, or not by the response that is gone on from."""
    return InvalidRequest(
        f"No approval request with id '{request[:64]}' was found in the response that is gone on from.",
        param="input",
        code="approval_request_not_found",
    )


def unanswered(response_id: str, progress: Progress) -> InvalidRequest:
    """A response cannot be gone on from while its calls wait."""
    names = ", ".join(approval_of(call.id) for call in progress.waiting)
    return InvalidRequest(
        f"The response '{response_id}' waits for a word about {names}: give an item of type 'mcp_approval_response' for each.",
        param="input",
        code="approval_required",
    )
