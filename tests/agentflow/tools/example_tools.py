"""Tools for the tests: what people write, and what goes wrong in it. Run in worker processes."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import enum
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from agentflow.tools.blob import Blob
from agentflow.tools.context import Context
from agentflow.tools.errors import ToolFailed
from agentflow.tools.function import tool


class Scale(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Place(msgspec.Struct):
    """Where."""

    latitude: float
    longitude: float


@dataclasses.dataclass
class Stay:
    place: Place
    nights: int = 1


class Options(TypedDict, total=False):
    verbose: bool


@tool(
    name="weather",
    idempotent=True,
    timeout_s=5,
    retries=2,
    concurrency=3,
    fresh_for_s=600,
    result_bytes=1000,
    examples=["Will it rain?"],
    aliases=("天气",),
)
def forecast(
    city: str,
    day: Literal["today", "tomorrow"] = "today",
    scale: Scale = Scale.CELSIUS,
    stay: Stay | None = None,
    options: Options | None = None,
) -> dict[str, Any]:
    """Tell the weather
    of a day.

    From a table.

    Args:
        city (str): Where, as people
            call it.
        day: When.

    Returns:
        scale: not a parameter here.
    """
    place = dataclasses.asdict(stay) if stay else None
    return {
        "city": city,
        "day": day,
        "scale": scale,
        "nights": stay and stay.nights,
        "place": bool(place),
        **(options or {}),
    }


@tool
async def add(a: int, b: Annotated[float, "What is added."] = 1) -> float:
    await asyncio.sleep(0)
    return a + b


@tool
def greet(whom: str) -> str:
    return f"Hello, {whom}."


@tool
def fail(how: str) -> str:
    if how == "politely":
        raise ToolFailed("There is no such day.", again=True)
    if how == "exit":
        sys.exit(3)
    if how == "memory":
        return "x" * (4 << 30)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "unspeakably":
        raise ValueError("boom \ud800")
    raise ValueError("no good")


@tool
def die(how: str) -> str:
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "close":
        os.close(int(sys.argv[1]))
        time.sleep(60)
    if how == "rubbish":
        os.write(int(sys.argv[1]), b"\xff\xff\xff\xff and more")
        time.sleep(60)
    ctypes.string_at(1)
    return "still here"


STRAY = "sleep 60 >/dev/null & echo $! $$; exec sleep 60 >/dev/null"


@tool
def hang(marker: str, child: bool = False) -> str:
    """Hang in a way that no signal handler and no exception ends; with children in this group, in others, and of nobody."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    pids = [os.getpid()]
    if child:
        pids.append(subprocess.Popen(["sleep", "60"]).pid)
        pids.append(subprocess.Popen(["sleep", "60"], start_new_session=True).pid)
        # A daemon as they were once made: its parent ends, and it has a session of its own.
        stray = subprocess.run(
            ["sh", "-c", f"setsid sh -c '{STRAY}' & exit"], stdout=subprocess.PIPE, timeout=10, check=True
        )
        pids.extend(map(int, stray.stdout.split()))
    Path(f"{marker}.part").write_text(" ".join(map(str, pids)))
    Path(f"{marker}.part").rename(marker)
    while True:
        time.sleep(60)


@tool
def fork(marker: str) -> str:
    """Die, and leave a child that holds all descriptors."""
    if not (pid := os.fork()):
        time.sleep(60)
        os._exit(0)
    Path(marker).write_text(str(pid))
    os._exit(0)


@tool
def shout(megabytes: int) -> str:
    for _ in range(megabytes // 2):
        os.write(1, b"a" * (1 << 20))
        print("b" * (1 << 20), file=sys.stderr)
    print("the end")
    return "said"


@tool
def give(what: str, size: int = 10, folder: str = "") -> Any:
    results: dict[str, Any] = {
        "text": "é" * size,
        "list": list(range(size)),
        "bytes": b"\x00\xff" * size,
        "nothing": None,
        "object": object,
        "surrogate": "\ud800",
    }
    if what == "blob":
        path = Path(folder, "made.csv")
        path.write_bytes(b"a,b\n" * size)
        return Blob(path)
    if what == "cycle":
        cycle: list[Any] = []
        cycle.append(cycle)
        return cycle
    return results[what]


@tool
def take(
    blob: Blob | None = None,
    text: str | None = None,
    data: bytes = b"",
    rows: list[int] | None = None,
    place: Place | None = None,
) -> list[Any]:
    about: list[Any] | None = None
    if blob:
        with blob.open() as file:
            about = [blob.size, blob.text(), blob.bytes().decode(), file.read().decode(), blob.media_type]
    return [about, text, data.decode(), rows, place]


@tool
def room(names: list[str]) -> dict[str, Any]:
    """Where it runs."""
    return {
        "environment": {name: os.environ.get(name) for name in names},
        "variables": len(os.environ),
        "pid": os.getpid(),
        "session": os.getsid(0) == os.getpid(),
        "thread": threading.current_thread().name,
        "folder": str(Path.cwd()),
        "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
        "limits": [
            resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
        ],
        "stdin": sys.stdin.read(),
        "inherited": os.get_inheritable(int(sys.argv[1])) if sys.argv[1:2] and sys.argv[1].isdigit() else None,
    }


@tool(idempotent=True, retries=2)
def once(kept: str, context: Context) -> str:
    """Do something once for each key; its process dies over the first try."""
    with Path(kept).open("a+") as file:
        file.seek(0)
        done = file.read().split()
        file.write(f"{context.key}\n")
    if not done:
        os._exit(1)
    return (
        f"{done == [context.key]} {context.tenant} {context.run_id} {context.call_id} {0 < context.seconds_left <= 30}"
    )


@tool
def clock() -> float:
    """When the first line of a function runs."""
    return time.monotonic()


@tool(trusted=True)
def here() -> str:
    return f"{os.getpid()} {threading.current_thread().name}"


@tool(trusted=True)
def here_for(context: Context) -> str:
    return context.key


@tool(trusted=True)
async def here_async_for(context: Context) -> str:
    return context.key


@tool(trusted=True)
async def here_async(text: str = "") -> str:
    await asyncio.sleep(0)
    return f"{os.getpid()} {threading.current_thread().name} {text}"


@tool(trusted=True)
def here_failing(how: str) -> str:
    if how == "stop":
        raise StopIteration
    if how == "exit":
        sys.exit(1)
    raise ToolFailed("No.", again=True)
