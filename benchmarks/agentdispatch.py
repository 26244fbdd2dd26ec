"""From a call's closing brace in the stream to its tool's first line, in a worker process that waits for it.

The brace's moment is that at which its token left the engine (tapped.py), the tool says its own on the same clock. In between:
the log of what was said and the parser, the arguments' check, the checkpoint that says that the call begins, the way to the
worker. Both the log and the checkpoint are durable before anything goes on.
"""

from __future__ import annotations

from benchmarks.agentbench import AgentBench, AgentHost
from benchmarks.agentloops import ask_agent, client
from benchmarks.agentscript import CLOSING, braces, call
from benchmarks.report import NotMeasured, percentile

CALLS = 4  # an answer, with words between them that take longer than a call
_WORDS = "And now I should like to know what time it is, once more, so that we can compare it with the last one."


async def measure(bench: AgentBench, host: AgentHost, answers: int) -> None:
    """So many answers. Raises NotMeasured."""
    text = "\n".join(f"{_WORDS}\n{call('stamp', number=number)}" for number in range(CALLS))
    host.force(text, CLOSING)
    ms: list[float] = []
    async with client(host.port) as openai:
        await ask_agent(openai, "stamp")
        host.taps(2)
        for _ in range(answers):
            found = await ask_agent(openai, "stamp")
            first = host.taps(2)[0]
            stamps = sorted(map(float, found.results))  # calls start in the order of their braces
            if len(stamps) != CALLS:
                raise NotMeasured(f"ACU's agent made {len(stamps)} calls of {CALLS}")
            ms += [1e3 * (at - first.reached(end)) for at, end in zip(stamps, braces(text), strict=True)]
    bench.add(dispatch_p50_ms=percentile(ms, 0.5), dispatch_p99_ms=percentile(ms, 0.99))
    bench.notes["dispatch"] = f"{len(ms)} calls, the slowest after {max(ms):.1f} ms"
    bench.say("dispatch: done")
