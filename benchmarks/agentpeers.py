"""LangGraph and the OpenAI Agents SDK with a model behind an OpenAI endpoint: `.venv-bench/bin/python -m benchmarks.agentpeers`.

A process of its own, which answers commands (commands.py):

    {"do": "answer", "way": "langgraph", "question": ..., "texts": [...]}   -> {"seconds": ..., "text": ..., "calls": N}

`texts` is what the model is to say at each step: the server is asked for it with `structured_outputs`. Each is put together as
its documentation shows a loop of a model and tools, with async tools; both run the calls of one answer at the same time.
Tracing and telemetry are off.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from typing import Any, Protocol

from benchmarks.commands import answer_commands

QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}


class Way(Protocol):
    """A way to one answer with calls."""

    async def answer(self, question: str, texts: list[str]) -> tuple[str, int]:
        """The last text, and how many calls were made."""


def forced(text: str) -> dict[str, Any]:
    """What makes vLLM's server say `text`."""
    return {"structured_outputs": {"choice": [text]}}


async def wait_for(seconds: float) -> str:
    """What the tools do."""
    await asyncio.sleep(seconds)
    return f"answered after {seconds:g} s"


class LangGraph:
    """A graph of a model and a ToolNode."""

    def __init__(self, base_url: str, model: str) -> None:
        from langchain_core.tools import tool  # type: ignore[import-not-found, unused-ignore]  # in .venv-bench only
        from langchain_openai import ChatOpenAI  # type: ignore[import-not-found, unused-ignore]
        from langgraph.graph import START, MessagesState, StateGraph  # type: ignore[import-not-found, unused-ignore]
        from langgraph.prebuilt import ToolNode, tools_condition  # type: ignore[import-not-found, unused-ignore]

        async def wait(seconds: float) -> str:
            """Ask a service that takes a while."""
            return await wait_for(seconds)

        tools = [tool(wait)]
        chat = ChatOpenAI(model=model, base_url=base_url, api_key="none", max_retries=0).bind_tools(tools)
        self._texts: list[str] = []

        async def speak(state: dict[str, Any]) -> dict[str, Any]:
            step = sum(message.type == "ai" for message in state["messages"])
            return {"messages": [await chat.ainvoke(state["messages"], extra_body=forced(self._texts[step]))]}

        speak.__annotations__["state"] = MessagesState  # which LangGraph reads
        graph = StateGraph(MessagesState)
        graph.add_node("model", speak)
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        self._graph = graph.compile()

    async def answer(self, question: str, texts: list[str]) -> tuple[str, int]:
        """See Way."""
        self._texts = texts
        state = await self._graph.ainvoke({"messages": [("user", question)]})
        messages = state["messages"]
        return str(messages[-1].content), sum(message.type == "tool" for message in messages)


class AgentsSdk:
    """OpenAI's Runner with an agent over chat completions."""

    def __init__(self, base_url: str, model: str) -> None:
        import agents  # type: ignore[import-not-found, unused-ignore]  # in .venv-bench only
        from openai import AsyncOpenAI

        way = self
        self._texts: list[str] = []

        class Model(agents.OpenAIChatCompletionsModel):  # type: ignore[misc, unused-ignore]
            """Which asks for the text of its step."""

            async def get_response(self, **asked: Any) -> Any:  # the Runner names all that it gives
                given = asked["input"]
                step = 0 if isinstance(given, str) else any(_is_result(item) for item in given)
                wanted = agents.ModelSettings(extra_body=forced(way._texts[step]))
                return await super().get_response(**asked | {"model_settings": asked["model_settings"].resolve(wanted)})

        async def wait(seconds: float) -> str:
            """Ask a service that takes a while."""
            return await wait_for(seconds)

        agents.set_tracing_disabled(True)
        client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        self._run = agents.Runner.run
        self._agent = agents.Agent(
            name="bench",
            # A strict tool is a grammar of its own to vLLM, which does not go with a forced text.
            tools=[agents.function_tool(wait, strict_mode=False)],
            model=Model(model=model, openai_client=client),
        )

    async def answer(self, question: str, texts: list[str]) -> tuple[str, int]:
        """See Way."""
        self._texts = texts
        result = await self._run(self._agent, question)
        return str(result.final_output), sum(item.type == "tool_call_output_item" for item in result.new_items)


def _is_result(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "function_call_output"


class Peers:
    """Both ways, and the loop on which they run, command by command."""

    def __init__(self, base_url: str, model: str) -> None:
        self._runner = asyncio.Runner()
        self._ways: dict[str, Way] = {
            "langgraph": LangGraph(base_url, model),
            "agents_sdk": AgentsSdk(base_url, model),
        }

    def answer(self, way: str, question: str, texts: list[str]) -> dict[str, Any]:
        """One answer, timed."""
        started = time.monotonic()
        text, calls = self._runner.run(self._ways[way].answer(question, texts))
        return {"seconds": time.monotonic() - started, "text": text, "calls": calls}


def main() -> None:
    """Answer commands until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    os.environ.update(QUIET)
    answer_commands(Peers(args.base_url, args.model))


if __name__ == "__main__":
    main()
