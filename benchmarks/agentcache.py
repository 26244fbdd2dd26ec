"""A run of six steps on SmolLM2: how much of each prompt the KV cache holds, and what that does to the time to the first token.

The conversation begins with 2,000 tokens, each tool's result has 300. `kv_reuse_of_possible` is the cached tokens of steps 2
to 6 over what whole blocks of BLOCK tokens allow: the last step's prompt and output, rounded down to a block. `kv_reuse` is
the same over all their prompt tokens. `ttft_reuse_ratio` is the sum of their times to the first token over that of the same
run with the cache off: in the same engine, but each generation with a cache salt of its own, so that none finds a block. The
two alternate, and each round begins with other words.
"""

from __future__ import annotations

from benchmarks.agentbench import AgentBench, AgentHost
from benchmarks.agentloops import ask_agent, client
from benchmarks.agentscript import CLOSING, Tap, call
from benchmarks.agenttools import passage
from benchmarks.report import spread, table
from benchmarks.serving import ENGINE_ARGS

BLOCK = int(ENGINE_ARGS["block_size"])
STEPS = 6
START_TOKENS = 2000


def possible(steps: list[Tap]) -> list[int]:
    """The tokens that could be cached of each step but the first."""
    return [(last.prompt_tokens + last.output_tokens) // BLOCK * BLOCK for last in steps[:-1]]


async def measure(bench: AgentBench, host: AgentHost, start_tokens: int) -> None:
    """All rounds. Raises NotMeasured."""
    texts = [f"I shall read page {number} now.\n{call('page', number=number)}" for number in range(STEPS - 1)]
    found: dict[bool, list[list[Tap]]] = {False: [], True: []}
    async with client(host.port) as openai:
        for number in range(bench.rounds):
            for salted in (False, True) if number % 2 == 0 else (True, False):
                host.force(*texts, CLOSING, salted=salted)
                # About 100 tokens are the template's, and what it says of the tool.
                question = f"Book {number}: {passage(start_tokens - 150, number)}"
                await ask_agent(openai, "page", question)
                found[salted].append(host.taps(STEPS))
            bench.say(f"cache: round {number + 1}/{bench.rounds}")
    for steps, off in zip(found[False], found[True], strict=True):
        cached = sum(step.cached_tokens for step in steps[1:])
        bench.add(
            kv_reuse_of_possible=cached / sum(possible(steps)),
            kv_reuse=cached / sum(step.prompt_tokens for step in steps[1:]),
            ttft_reuse_ratio=sum(s.ttft_s for s in steps[1:]) / sum(s.ttft_s for s in off[1:]),
            cached_with_cache_off=sum(step.cached_tokens for step in off),
        )
    full = sum((last.prompt_tokens + last.output_tokens) % BLOCK == 0 for steps in found[False] for last in steps[:-1])
    bench.notes["cache"] = (
        f"blocks of {BLOCK} tokens; {full} steps ended with a block's last token, which nobody computes"
    )
    bench.tables.append(_table(found[False], found[True]))


def _table(on: list[list[Tap]], off: list[list[Tap]]) -> str:
    rows = []
    for at in range(STEPS):
        step = on[-1][at]
        rows.append(
            [at + 1, step.prompt_tokens, step.cached_tokens, possible(on[-1])[at - 1] if at else 0, step.output_tokens,
             spread([steps[at].ttft_s for steps in on]), spread([steps[at].ttft_s for steps in off])]
        )  # fmt: skip
    header = ["step", "prompt", "cached", "possible", "output", "TTFT (s)", "with the cache off (s)"]
    return table("Six steps on SmolLM2, tokens of the last round", header, rows)
