"""The usual split's application: LangGraph over vLLM's server, Redis and Chroma.

`.venv-bench/bin/python -m benchmarks.workflowsplit`, a process of its own, which answers commands (commands.py):

    {"do": "fill", "file": F}                                       -> {"passages": N}
    {"do": "play", "way": W, "first": F, "count": N, "at_once": C}  -> {"requests": [{"whole": [..], "models": .., "tools": ..}],
                                                                        "meters": {...}}
    {"do": "forget", "way": W, "first": F, "count": N}              -> {"threads": N}

It is put together as the documentation of its parts teaches: a StateGraph of a model and a ToolNode, which runs the calls of an
answer at once; all tools async, connections pooled and kept, uvloop, hiredis; the embedder of the queries (the same
all-MiniLM-L6-v2, by the same code as ACU's) in this process, warm. The application is one process, and one loop. There is no web
framework in front of it and no user's client behind one: a request is timed where the application gets it.

The ways differ in where tables go, and in what a checkpoint therefore holds:

    usual   a tool's large result is its ToolMessage's `artifact`, which the next tool finds in the graph's state
    tuned   raw bytes in Redis by a key; nothing large is in the state
    exit    as tuned, and checkpoints are written at the end of a request only

Choices about checkpoints, which a team on one machine has to make:

- Taken: AsyncSqliteSaver, on the disk as ACU's runs are, with no server to be asked; WAL mode, its default; `synchronous=NORMAL`
  set on its connection, as SQLite's documentation advises with WAL: a commit waits for no disk, and after a power cut the last
  of them may be missing (its default is FULL, and ACU does wait for the disk). Durability "async", LangGraph's default: a step
  does not wait for the checkpoint of the one before.
- Not taken but in `exit`: durability "exit", which LangGraph's documentation says "provides the best performance for long-running
  graphs". A request that is cut off is lost then, and what its tools did is not known; ACU's goes on.
- Not taken: PostgreSQL. The saver's docstring says that it "is not recommended for production workloads due to limitations in
  SQLite's write performance. For production use, consider a more robust database like PostgreSQL." That is one more server, to
  which every checkpoint goes over a socket, and is not measured. Nor is Redis's own saver, which needs modules that a plain
  server has not; nor DeltaChannel, which makes the state anew of the writes between checkpoints: it is in beta.

Redis keeps nothing on the disk here, which ACU does. `forget` deletes the threads and tables of a `play`, so that neither its
time nor what it writes is counted.

A generation is timed around the model's client: with LangChain's work, HTTP, JSON and the server's front. A meter is a sum over
all requests of a command: seconds and bytes of what the checkpoints' serialiser made, seconds in which the saver and the clients
of Redis and Chroma were waited for (they overlap), seconds of embedding, and the prompts' tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from benchmarks import workflowtables
from benchmarks.agentpeers import QUIET, forced
from benchmarks.commands import answer_commands
from benchmarks.workflowscript import CALLS, CLOSING, FOUND, HEAD, TEXTS, question, said
from benchmarks.workflowstores import Meters, Stores

Way = Literal["usual", "tuned", "exit"]


class Watch:
    """When one request's generations and calls began and ended."""

    def __init__(self) -> None:
        self.models: list[tuple[float, float]] = []
        self.tools: list[tuple[float, float]] = []


class Tables:
    """Where the tables of one way are kept: `keep` gives the key that the model reads, and the artifact."""

    def __init__(self, way: Way, stores: Stores, meters: Meters) -> None:
        self._way = way
        self._stores = stores
        self._meters = meters
        self.keys: list[str] = []

    async def keep(self, data: bytes) -> tuple[str, dict[str, Any] | None]:
        key = f"h_{secrets.token_hex(6)}"
        head = data[:HEAD].decode()
        usable = f'Its handle is "{key}": any tool takes that as an argument.'
        text = f"{head}\n[cut here: the whole has {len(data):,} bytes. {usable}]"
        if self._way == "usual":
            return text, {"key": key, "data": data}
        self.keys.append(key)
        with self._meters.timed("storage_s"):
            await self._stores.redis.set(key, data, ex=3600)
        return text, None

    async def find(self, key: str, state: dict[str, Any]) -> bytes:
        if self._way == "usual":
            kept = [message.artifact for message in state["messages"] if getattr(message, "artifact", None)]
            return next(bytes(each["data"]) for each in kept if each["key"] == key)
        with self._meters.timed("storage_s"):
            return bytes(await self._stores.redis.get(key))


_watch: contextvars.ContextVar[Watch] = contextvars.ContextVar("watch")


def tools_of(stores: Stores, tables: Tables, table: Path) -> list[Any]:
    """The tools, with the names, words and arguments that ACU's have."""
    from langchain_core.tools import tool  # type: ignore[import-not-found, unused-ignore]  # in .venv-bench only
    from langgraph.prebuilt import InjectedState  # type: ignore[import-not-found, unused-ignore]

    given = Annotated[dict, InjectedState]

    @contextmanager
    def watched() -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            _watch.get().tools.append((began, time.monotonic()))

    async def memory_read(name: str) -> str:
        """Reads what was noted under a name."""
        with watched():
            return await stores.value(name)

    async def file_search(query: str, max_results: int = FOUND) -> str:
        """Searches the user's files in vector stores, and gives the passages that fit best."""
        with watched():
            return await stores.nearest(query, max_results)

    async def get_weather(city: str) -> str:
        """The weather of a city, hour by hour."""
        with watched():
            return await stores.weather(city)

    async def collect() -> tuple[str, Any]:
        """Fetch the table of all orders."""
        with watched():
            return await tables.keep(await asyncio.to_thread(workflowtables.collect, table))

    async def refine(table: str, state: Any) -> tuple[str, Any]:
        """Take the orders that are not of the coast from a table of orders."""
        with watched():
            return await tables.keep(await asyncio.to_thread(workflowtables.refine, await tables.find(table, state)))

    async def summarise(table: str, state: Any) -> tuple[str, Any]:
        """Make a list of the numbers and amounts from a table of orders."""
        with watched():
            return await tables.keep(await asyncio.to_thread(workflowtables.summarise, await tables.find(table, state)))

    for function in (refine, summarise):
        function.__annotations__["state"] = given  # which LangGraph reads
    plain = [tool(each) for each in (memory_read, file_search, get_weather)]
    return [*plain, *(tool(response_format="content_and_artifact")(each) for each in (collect, refine, summarise))]


class Graph:
    """One way's graph with its checkpoints."""

    def __init__(self, args: argparse.Namespace, stores: Stores, meters: Meters, way: Way) -> None:
        self._args = args
        self._meters = meters
        self._way = way
        self.tables = Tables(way, stores, meters)
        self._tools = tools_of(stores, self.tables, args.table)
        self._graph: Any = None
        self.saver: Any = None

    async def open(self, stack: AsyncExitStack) -> None:
        """Put it together."""
        from langchain_openai import ChatOpenAI  # type: ignore[import-not-found, unused-ignore]
        from langgraph.graph import START, MessagesState, StateGraph  # type: ignore[import-not-found, unused-ignore]
        from langgraph.prebuilt import ToolNode, tools_condition  # type: ignore[import-not-found, unused-ignore]

        chat = ChatOpenAI(
            model=self._args.model,
            base_url=self._args.base_url,
            api_key="none",
            max_retries=0,
            temperature=0,
            streaming=True,
            stream_usage=True,
        ).bind_tools(self._tools)

        async def speak(state: dict[str, Any]) -> dict[str, Any]:
            messages = state["messages"]
            step = sum(message.type == "ai" for message in messages)
            text = said(TEXTS[step], "\n".join(str(message.content) for message in messages if message.type == "tool"))
            began = time.monotonic()
            answer = await chat.ainvoke(messages, extra_body=forced(text))
            _watch.get().models.append((began, time.monotonic()))
            self._meters.sums["prompt_tokens"] += answer.usage_metadata["input_tokens"]
            return {"messages": [answer]}

        speak.__annotations__["state"] = MessagesState  # which LangGraph reads
        self.saver = await stack.enter_async_context(_saver(self._args.dir / f"{self._way}.sqlite", self._meters))
        graph = StateGraph(MessagesState)
        graph.add_node("model", speak)
        graph.add_node("tools", ToolNode(self._tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        self._graph = graph.compile(checkpointer=self.saver)

    async def answer(self, thread: str, text: str) -> dict[str, Any]:
        """One request, streamed to its end. Raises RuntimeError if it was not whole."""
        watch = Watch()
        _watch.set(watch)
        config = {"configurable": {"thread_id": thread}}
        asked = {"messages": [("user", text)]}
        durability = "exit" if self._way == "exit" else "async"
        began = time.monotonic()
        heard: list[str] = []
        async for chunk, _ in self._graph.astream(asked, config, stream_mode="messages", durability=durability):
            if chunk.type == "AIMessageChunk" and isinstance(chunk.content, str):
                heard.append(chunk.content)
        ended = time.monotonic()
        if not "".join(heard).endswith(CLOSING) or len(watch.tools) != CALLS or len(watch.models) != len(TEXTS):
            raise RuntimeError(f"{len(watch.tools)} calls of {CALLS}, and then {''.join(heard)[-300:]!r}")
        return {"whole": (began, ended), "models": watch.models, "tools": watch.tools}


def _saver(path: Path, meters: Meters) -> Any:
    """AsyncSqliteSaver whose work is metered, as a context; see the module for `synchronous`."""
    from contextlib import asynccontextmanager

    import aiosqlite  # type: ignore[import-not-found, unused-ignore]  # in .venv-bench only
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # type: ignore[import-not-found, unused-ignore]
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # type: ignore[import-not-found, unused-ignore]

    class Serialiser(JsonPlusSerializer):  # type: ignore[misc, unused-ignore]
        """The default one."""

        def dumps_typed(self, value: Any) -> tuple[str, bytes]:
            with meters.timed("serialise_s"):
                made: tuple[str, bytes] = super().dumps_typed(value)
            meters.sums["serialised"] += len(made[1])
            return made

    class Saver(AsyncSqliteSaver):  # type: ignore[misc, unused-ignore]
        """The same."""

        async def aput(self, *given: Any) -> Any:
            with meters.timed("saver_s"):
                return await super().aput(*given)

        async def aput_writes(self, *given: Any, **named: Any) -> Any:
            with meters.timed("saver_s"):
                return await super().aput_writes(*given, **named)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        async with aiosqlite.connect(str(path)) as connection:
            saver = Saver(connection, serde=Serialiser())
            await saver.setup()
            await connection.execute("PRAGMA synchronous=NORMAL")
            yield saver

    return opened()


class Split:
    """Both ways, and the loop on which they run, command by command."""

    def __init__(self, args: argparse.Namespace) -> None:
        import uvloop

        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._stack = AsyncExitStack()
        self._meters = Meters()
        self._runner.run(self._open(args))

    async def _open(self, args: argparse.Namespace) -> None:
        self._stores = Stores(args, self._meters)
        await self._stores.open()
        ways: tuple[Way, ...] = ("usual", "tuned", "exit")
        self._graphs = {way: Graph(args, self._stores, self._meters, way) for way in ways}
        for graph in self._graphs.values():
            await graph.open(self._stack)

    def fill(self, file: str) -> dict[str, Any]:
        """See the module. The file is a JSON list of passages."""
        return {"passages": self._runner.run(self._stores.fill(json.loads(Path(file).read_text())))}

    def play(self, way: Way, first: int, count: int, at_once: int) -> dict[str, Any]:
        """See the module."""
        self._meters.sums.clear()
        requests = self._runner.run(self._play(self._graphs[way], first, count, at_once))
        return {"requests": requests, "meters": dict(self._meters.sums)}

    def forget(self, way: Way, first: int, count: int) -> dict[str, Any]:
        """See the module."""
        self._runner.run(self._forget(self._graphs[way], first, count))
        return {"threads": count}

    async def _play(self, graph: Graph, first: int, count: int, at_once: int) -> list[dict[str, Any]]:
        numbers = iter(range(first, first + count))
        answers: list[dict[str, Any]] = []

        async def user() -> None:
            # Each in a task of its own, as a web framework does it.
            answers.extend(
                [await asyncio.create_task(graph.answer(f"case-{number}", question(number))) for number in numbers]
            )

        async with asyncio.TaskGroup() as users:
            for _ in range(at_once):
                users.create_task(user())
        return answers

    async def _forget(self, graph: Graph, first: int, count: int) -> None:
        for number in range(first, first + count):
            await graph.saver.adelete_thread(f"case-{number}")
        keys, graph.tables.keys = graph.tables.keys, []
        if keys:
            await self._stores.redis.delete(*keys)


def main() -> None:
    """Answer commands until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("redis", "chroma", "service"):
        parser.add_argument(f"--{name}", type=int, required=True, help="its port")
    for name in ("base-url", "model"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("dir", "table", "embedder", "packages"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    os.environ.update(QUIET)
    answer_commands(Split(args))


if __name__ == "__main__":
    main()
