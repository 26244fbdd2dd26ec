"""One answer with three calls and a closing sentence: ACU's agent, two loops over its direct path, and two frameworks.

`overlap_efficiency` is the ideal of the same run (agentscript.py) over what the client saw of it: streamed over HTTP, stored,
tools in worker processes. `vs_X` is the time of way X over ACU's, `ideal_vs_X` over the ideal's, in the same round, and
`vs_of_ideal` the one over the other, which is the same for every X. They are of tools that take 3, 1 and 0.3 s; keys that end
in `:1` are of three tools of 1 s.

LangGraph and the Agents SDK speak to vLLM's own server with the same model, template and arguments. Whoever is not asked is
stopped (SIGSTOP), and the order turns every round.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from openai import AsyncOpenAI

from benchmarks import serving
from benchmarks.agentbench import AgentBench, AgentHost
from benchmarks.agentloops import QUESTION, ask_agent, ask_loop, client
from benchmarks.agentscript import CLOSING, answer, ideal_s
from benchmarks.report import NotMeasured, Ratio, spread, table
from benchmarks.vectorpeers import Peer, started

LOOPS = ("sequential", "parallel")
FRAMEWORKS = ("langgraph", "agents_sdk")
ASK_TIMEOUT_S = 300.0


def missing(python: Path) -> str | None:
    """Why the frameworks cannot be asked, if they cannot."""
    if not python.is_file():
        return f"no {python}: run scripts/setup --bench first"
    found = subprocess.run(
        [str(python), "-c", "import langgraph.prebuilt, langchain_openai, agents"], capture_output=True, check=False
    )
    return None if found.returncode == 0 else f"{python} has not all of them: run scripts/setup --bench first"


def frameworks(bench: AgentBench, model: Path) -> Peer:
    """Both frameworks, not yet started, over a vLLM server of their own."""
    folder = bench.folder / "frameworks"
    folder.mkdir()
    server = next(each for each in serving.servers(folder, model) if each.name == "vllm")
    server.command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    server.command += ["--structured-outputs-config", '{"backend": "guidance", "disable_any_whitespace": true}']
    server.env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "3600"  # a client comes back after the others' turns
    command = [
        *(str(bench.peers_python.absolute()), "-m", "benchmarks.agentpeers", "--model", serving.MODEL),
        *("--base-url", f"http://127.0.0.1:{server.port}/v1"),
    ]
    return Peer("the frameworks", folder, command, server)


class Speed:
    """The rounds. `peer` None: the frameworks are left out."""

    def __init__(self, bench: AgentBench, host: AgentHost, peer: Peer | None) -> None:
        self._bench = bench
        self._host = host
        self._peer = peer

    async def measure(self) -> None:
        """All rounds of all cases, after one that does not count."""
        bench = self._bench
        cases = {"mixed": bench.mixed} | {f"{each:g}": (each,) * 3 for each in bench.durations}
        async with client(self._host.port) as openai:
            for way in ("acu", *bench.ways):
                await self._ask(openai, way, (0.05,) * 3)
            for number in range(bench.rounds):
                for case, durations in cases.items():
                    await self._round(openai, number, case, durations)
                bench.say(f"speed: round {number + 1}/{bench.rounds}")

    async def _round(self, openai: AsyncOpenAI, number: int, case: str, durations: Sequence[float]) -> None:
        ways = ("acu", *self._bench.ways)
        shift = number % len(ways)
        for way in (*ways[shift:], *ways[:shift]):
            for name, seconds in (await self._ask(openai, way, durations)).items():
                self._bench.figures[f"{name}_s:{case}"].append(seconds)

    async def _ask(self, openai: AsyncOpenAI, way: str, durations: Sequence[float]) -> dict[str, float]:
        """Seconds of one answer; of ACU's also the ideal's, and of the model's part of it. Raises NotMeasured."""
        text = answer(durations)
        if way in FRAMEWORKS:
            return {way: self._ask_framework(way, text, len(durations))}
        self._host.force(text, CLOSING)
        found = await (ask_agent(openai, "wait") if way == "acu" else ask_loop(openai, at_once=way == "parallel"))
        if not found.text.endswith(CLOSING):
            raise NotMeasured(f"{way} ended with {found.text[-200:]!r}")
        taps = self._host.taps(2)
        if way != "acu":
            return {way: found.seconds}
        if len(found.results) != len(durations):
            raise NotMeasured(f"ACU's agent made {len(found.results)} calls of {len(durations)}")
        ideal = ideal_s(found.started, taps, text, durations)
        return {"acu": found.seconds, "ideal": ideal, "speaking": taps[0].ended - taps[0].called}

    def _ask_framework(self, way: str, text: str, calls: int) -> float:
        assert self._peer is not None
        self._host.server.pause()
        try:
            found = self._peer.ask(ASK_TIMEOUT_S, do="answer", way=way, question=QUESTION, texts=[text, CLOSING])
        finally:
            self._host.server.resume()
        if found["text"] != CLOSING or found["calls"] != calls:
            raise NotMeasured(f"{way} made {found['calls']} calls of {calls} and ended with {found['text'][-200:]!r}")
        return float(found["seconds"])


async def measure(bench: AgentBench, host: AgentHost, model: Path) -> None:
    """Everything of this part. Raises NotMeasured."""
    with _frameworks(bench, host, model) as peer:
        await Speed(bench, host, peer).measure()
    figures = bench.figures
    for case in ("mixed", *(f"{each:g}" for each in bench.durations)):
        ours, ideal = figures[f"acu_s:{case}"], figures[f"ideal_s:{case}"]
        tail = "" if case == "mixed" else f":{case}"
        figures[f"vs_of_ideal{tail}"] = [best / took for best, took in zip(ideal, ours, strict=True)]
        for way in bench.ways:
            theirs = figures[f"{way}_s:{case}"]
            figures[f"vs_{way}{tail}"] = [b / a for a, b in zip(ours, theirs, strict=True)]
            figures[f"ideal_vs_{way}{tail}"] = [b / a for a, b in zip(ideal, theirs, strict=True)]
    figures["overlap_efficiency"] = figures["vs_of_ideal"]
    bench.tables.append(_table(bench))


@contextlib.contextmanager
def _frameworks(bench: AgentBench, host: AgentHost, model: Path) -> Iterator[Peer | None]:
    if not set(bench.ways) & set(FRAMEWORKS):
        yield None
        return
    peer = frameworks(bench, model)
    host.server.pause()
    try:
        with started([peer]):
            host.server.resume()
            bench.say("vLLM's server and the frameworks are ready")
            yield peer
    finally:
        host.server.resume()


def _table(bench: AgentBench) -> str:
    """Seconds and ratios by the tools' durations."""
    figures, rows = bench.figures, []
    for case in ("mixed", *(f"{each:g}" for each in bench.durations)):
        ours, ideal = figures[f"acu_s:{case}"], figures[f"ideal_s:{case}"]
        told = ", ".join(f"{each:g}" for each in bench.mixed) if case == "mixed" else f"3 x {case}"
        rows.append([told, "ACU", spread(ours), "", "", str(Ratio.of(ideal, ours))])
        for way in bench.ways:
            theirs = figures[f"{way}_s:{case}"]
            rows.append([told, way, spread(theirs), str(Ratio.of(theirs, ours)), str(Ratio.of(theirs, ideal)), ""])
    header = ["tools (s)", "way", "seconds", "over ACU's", "over the ideal's", "of the ideal (0.95)"]
    return table("One answer with three calls: median (lowest to highest round)", header, rows)
