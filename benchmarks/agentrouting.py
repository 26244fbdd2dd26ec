"""The router's figures (routing.py), and the tokens that its routes spare the large model on the same 200 turns.

Without a router the large model reads, for each turn, a prompt with all eight tools. A turn that is routed to `answer` is read
without them, one that is routed to `extract` not at all in its first step: the small model reads a form. `large_tokens_saved` is
what of those prompts is spared, with SmolLM2's tokenizer and template; what later steps spare is not counted, nor what a wrong
route's second try costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentflow.messages import Message, Tool
from agentflow.prompt import ChatEncoder
from agentflow.router import Router
from agentflow.tokenizer import FileTokenizer
from benchmarks import routing
from benchmarks.agentbench import AgentBench
from benchmarks.report import percentile
from benchmarks.routing import Label, Labelled


def tokens_saved(encoder: ChatEncoder, turns: Sequence[Labelled], routes: dict[str, Label]) -> tuple[int, int]:
    """Tokens that the routes spare the large model, and those of all prompts with all tools."""
    tools = [Tool(card.name, card.description, card.parameters) for card in routing.read_cards()]
    saved = whole = 0
    for turn in turns:
        messages = [Message("user", turn.text)]
        with_tools = len(encoder.encode(messages, tools))
        route = routes[turn.text][0]
        whole += with_tools
        if route == "extract":
            saved += with_tools
        elif route == "answer":
            saved += with_tools - len(encoder.encode(messages))
    return saved, whole


async def routes_of(turns: Sequence[Labelled]) -> dict[str, Label]:
    """Where the router sends each turn, by its text."""
    encoding = routing.Encoding()
    await encoding.start()
    try:
        router = Router(routing.read_cards())
        router = router.with_vectors(await encoding.embed(router.texts()))
        return await routing.decide_all(router, encoding, turns, routing.Times())
    finally:
        await encoding.stop()


async def measure(bench: AgentBench) -> None:
    """The router's part of the table."""
    found, times = await routing.measure(bench.rounds)
    ours, _, keywords, majority, _ = found.values()
    turns = routing.read_turns("test")
    encoder = ChatEncoder(await asyncio.to_thread(FileTokenizer.load, bench.smollm2))
    saved, whole = tokens_saved(encoder, turns, await routes_of(turns))
    bench.add(
        router_p99_ms=percentile(times.whole, 0.99) * 1e3,
        router_accuracy=ours["all"],
        router_over_majority=ours["all"] - majority["all"],
        router_over_keywords=ours["all"] - keywords["all"],
        large_tokens_saved=saved,
        large_tokens_saved_share=saved / whole,
    )
    bench.notes["routing"] = f"{len(turns)} turns, {whole} tokens of prompts with all tools"
    bench.say("router: done")
