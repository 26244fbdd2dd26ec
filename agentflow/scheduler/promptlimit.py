"""PromptLimit: while device memory runs short, which prompts are taken. Pure.

Memory that a step needs beside weights and KV pool grows with the tokens in it, so long prompts wait outside until there is room
again, and short ones pass. A run that was begun goes on: its later steps are not refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from agentflow.errors import LongPromptRefused
from agentflow.run import Run


class PromptLimit(Struct, frozen=True):
    """At most `tokens` a prompt. `why` is a sentence for callers; `retry_after_s`: when to ask again, in seconds."""

    tokens: int
    why: str
    retry_after_s: float

    def refusal(self, runs: Sequence[Run]) -> LongPromptRefused | None:
        """Why these are not taken; None if they are. Texts to embed are cut into small batches, and pass."""
        longest = max((len(run.prompt_token_ids) for run in runs if run.kind == "generate"), default=0)
        if longest <= self.tokens:
            return None
        return LongPromptRefused(
            f"{self.why} Until it has room again, prompts of more than {self.tokens} tokens are not taken, and this one has "
            f"{longest}. Send a shorter one, or try again in {self.retry_after_s:.0f} s.",
            retry_after_s=self.retry_after_s,
        )
