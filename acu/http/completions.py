"""POST /v1/completions."""

from __future__ import annotations

import msgspec

from acu.http.chunks import CompletionChunks
from acu.http.generation import REFUSALS, Kind, generating
from acu.http.route import Answer, Route
from acu.http.wire.completions import COMPLETION_DECODER, CompletionBody, completion_request
from acu.http.wire.responses import Completion, CompletionChoice, completion_logprobs, usage_of
from agentflow.events import ChoiceFinished, Event, FinishReason, TextDelta, TokenLogprob, Usage
from agentflow.messages import CompletionRequest
from agentflow.service import Service


def routes(service: Service) -> tuple[Route, ...]:
    """The endpoint's entry in the table."""
    kind = Kind(
        id_prefix="cmpl-",
        decoder=COMPLETION_DECODER,
        request=completion_request,
        call=service.complete,
        form=CompletionForm,
    )
    return (
        Route(
            method="POST",
            path="/v1/completions",
            endpoint=generating(kind, service),
            scope="inference",
            name="createCompletion",
            summary="Continue texts, with no chat template.",
            body=CompletionBody,
            answers={
                200: (
                    Answer("The continuations.", body=Completion),
                    Answer("With `stream`: their pieces as they come.", "text/event-stream", Completion),
                )
            },
            refusals=REFUSALS,
            rate_limited=True,
        ),
    )


class CompletionForm:
    """The continuations of one request (see generation.Form)."""

    def __init__(self, answer_id: str, body: CompletionBody, request: CompletionRequest) -> None:
        count = len(request.prompts) * request.n
        self.size = 0
        self._id = answer_id
        self._body = body
        self._texts: list[list[str]] = [[] for _ in range(count)]
        self._tokens: list[list[TokenLogprob]] = [[] for _ in range(count)]
        self._reasons: list[FinishReason] = ["stop"] * count

    def chunks(self, created: int) -> CompletionChunks:
        """The continuations as a stream."""
        return CompletionChunks(self._id, created, self._body.model, include_usage=self._body.include_usage)

    def take(self, event: Event) -> None:
        """Add an event to its choice."""
        if isinstance(event, TextDelta):
            tokens = event.logprobs or ()
            self._texts[event.choice].append(event.text)
            self._tokens[event.choice].extend(tokens)
            self.size += 1 + len(tokens) * (1 + (self._body.logprobs or 0))
        elif isinstance(event, ChoiceFinished):
            self._reasons[event.choice] = event.reason

    def encode(self, created: int, usage: Usage) -> bytes:
        """All choices, as JSON."""
        with_logprobs = self._body.logprobs is not None
        choices = [
            CompletionChoice(
                i,
                "".join(self._texts[i]),
                completion_logprobs(tuple(self._tokens[i]), 0) if with_logprobs else None,
                reason,
            )
            for i, reason in enumerate(self._reasons)
        ]
        answer = Completion(
            id=self._id, created=created, model=self._body.model, choices=choices, usage=usage_of(usage)
        )
        return msgspec.json.encode(answer)
