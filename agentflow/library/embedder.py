"""The embedding model that the library's vectors come from, behind the service: every call passes the scheduler."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from agentflow.errors import EngineUnavailable
from agentflow.library.chunking import Spans
from agentflow.library.embedderid import EmbedderId
from agentflow.library.prompts import Prompts
from agentflow.messages import Caller, EmbeddingRequest
from agentflow.service import Service

BACKGROUND = 10
"""The priority of texts that nobody waits for; a request has 0, and lower numbers go first."""

_LOADING_RETRY_S = 0.5


class Embedder:
    """A served embedding model.

    `model` is its first name, and a part of its `id`, which vector stores and memories remember; `spans` tells its tokens (see
    chunking.Spans);
    `special_tokens` is how many it adds to each text; `prompts` what it wants before queries and before chunks of files.
    """

    def __init__(
        self,
        service: Service,
        id_: EmbedderId,
        spans: Spans,
        special_tokens: int = 2,
        prompts: Prompts | None = None,
    ) -> None:
        self.id = id_
        self.model = id_.model
        self.spans = spans
        self._service = service
        self._prompts = prompts or Prompts()
        self._added_tokens = special_tokens + len(spans(self._prompts.passage))

    def max_tokens(self) -> int:
        """How many tokens of a chunk it takes at once. Raises EngineUnavailable while that is not known yet."""
        for model in self._service.status().models:
            if model.name == self.model and model.max_model_len is not None:
                return max(1, model.max_model_len - self._added_tokens)
        raise EngineUnavailable(f"The model {self.model} is still loading.", retry_after_s=_LOADING_RETRY_S)

    async def embed(
        self, tenant: str, texts: Sequence[str], *, background: bool, deadline_s: float | None = None
    ) -> Any:
        """The vectors of `texts`: float32, shape [len(texts), dimensions].

        `background`: they are chunks of files, that nobody waits for; else queries. `deadline_s`: as EmbeddingRequest's.
        Raises InvalidRequest, Refused, EngineFailure.
        """
        prompt = self._prompts.passage if background else self._prompts.query
        request = EmbeddingRequest(
            id=f"embd-{secrets.token_hex(12)}",
            model=self.model,
            inputs=tuple(prompt + text for text in texts),
            priority=BACKGROUND if background else 0,
            deadline_s=deadline_s,
            caller=Caller(tenant=tenant, name="library"),
        )
        return (await self._service.embed(request)).vectors
