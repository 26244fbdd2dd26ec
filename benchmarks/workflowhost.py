"""ACU's daemon as `acu serve` runs it, but that its chat model says what it is told: `python -m benchmarks.workflowhost DIR`.

`DIR/acu.yaml` is the daemon's configuration, `DIR/forced.json` (agentscript.Forced) what is said, and each generation's Tap is
a line of `DIR/taps.jsonl`. Everything else of the daemon is as it is. The one name of it that is replaced is what makes a
served model of its plan, so that a tapped engine stands in front of vLLM's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from acu import cli, daemon
from acu.served import Plan, build
from agentflow.engine.protocol import Engine, GenerateRequest
from agentflow.messages import Structured
from agentflow.service import ServedModel
from benchmarks.agentscript import Forced, Tap
from benchmarks.tapped import TappedEngine, step_of
from benchmarks.workflowscript import HANDLE, said

_LOOKED_AT = 16_384
"""Tokens at the prompt's end that are searched for a handle."""


class FollowingEngine(TappedEngine):
    """A tapped engine whose texts may name the conversation's last handle. `decode`: token ids to text."""

    def __init__(
        self,
        engine: Engine,
        forced: Callable[[], Forced],
        seen: Callable[[Tap], None],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        super().__init__(engine, forced, seen)
        self._decode = decode

    def _told(self, request: GenerateRequest) -> GenerateRequest:
        told, sampling = super()._told(request), request.sampling
        template = self._forced().text(step_of(request))
        if sampling.structured is not None or HANDLE not in template:
            return told
        text = said(template, self._decode(request.prompt_token_ids[-_LOOKED_AT:]))
        return replace(told, sampling=replace(sampling, structured=Structured("choice", [text])))


class Host:
    """What the folder says, and what is written down there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self, plan: Plan) -> ServedModel:
        """As acu.served.build, with tapped engines for the chat model."""
        served = build(plan)
        return served if plan.role != "chat" else self.tapped(served)

    def tapped(self, served: ServedModel) -> ServedModel:
        """A model whose engines say what the folder says."""

        tokenizer = functools.cache(served.tokenizer)

        def decode(ids: Sequence[int]) -> str:
            return tokenizer().decode(ids, skip_special_tokens=True)

        def behind(make: Callable[[], Engine]) -> Callable[[], Engine]:
            return lambda: FollowingEngine(make(), self._forced, self._seen, decode)

        chat = cast("tuple[Callable[[], Engine], ...]", served.engines)
        return replace(served, engines=tuple(map(behind, chat)))

    def _forced(self) -> Forced:
        return msgspec.json.decode((self._folder / "forced.json").read_bytes(), type=Forced)

    def _seen(self, tap: Tap) -> None:
        with (self._folder / "taps.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(tap) + b"\n")


def main() -> None:
    """Entry point; the guard below is what vLLM's spawned processes need."""
    folder = Path(sys.argv[1])
    daemon.build = Host(folder).build  # type: ignore[attr-defined]
    sys.exit(cli.main(["serve", "-c", str(folder / "acu.yaml")]))


if __name__ == "__main__":
    main()
