"""What the daemon's process looks like to the children that vLLM spawns, for as long as it spawns them.

vLLM spawns with `multiprocessing`, which hands a child the parent's environment and the name of its main module. Both are
of the process as a whole, so only one engine at a time may be spawning: `spawning` holds a lock that is as global as they are.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping

from agentflow.engine.vllm import child
from agentflow.errors import EngineStartFailed

THREADS = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's environment variable that says on which CPUs the threads of a CPU engine run."""
MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""The most that MPS lets a process take of a card, such as `0=15188M`; never more than MPS's own limit for its clients."""
GIVING_WAY = (THREADS, MPS_LIMIT)  # where the operator has set them
_CPUS = re.compile(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*", re.ASCII)
_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def spawning(environment: Mapping[str, str], output_fd: int, semaphores: str) -> Iterator[None]:
    """Within, children get `environment`, write into the pipe `output_fd` of this process, and run child.py first.

    The names of their semaphores, and of their children's, begin with `semaphores`. Raises EngineStartFailed where the operator's
    variables are none that vLLM could use.
    """
    bound = os.environ.get(THREADS)  # noqa: TID251 - as below
    if bound is not None and child.NICE in environment and not binds(bound):  # a GPU engine does not read it
        raise EngineStartFailed(
            f"the variable {THREADS} is {bound!r}: set it to `auto`, to `nobind` or to CPUs such as `0-3` or `0,2` "
            "(`|` between those of several workers), or do not set it"
        )
    ours = {
        **environment,
        child.DAEMON_PID: str(os.getpid()),
        child.OUTPUT: f"/proc/{os.getpid()}/fd/{output_fd}",
    }
    main = sys.modules["__main__"]
    with _ONE_AT_A_TIME:
        before = dict(os.environ)  # noqa: TID251 - the children's environment, not our configuration
        spec = main.__spec__
        inherited = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        prefix = inherited["semprefix"]
        inherited["semprefix"] = f"/{semaphores}"
        os.environ.update({name: value for name, value in ours.items() if name not in GIVING_WAY or name not in before})  # noqa: TID251
        main.__spec__ = importlib.util.find_spec(child.__name__)
        try:
            yield
        finally:
            main.__spec__ = spec
            inherited["semprefix"] = prefix
            for name in os.environ.keys() - before.keys():  # noqa: TID251 - ours, and those that vLLM set
                del os.environ[name]  # noqa: TID251
            os.environ.update(before)  # noqa: TID251


def binds(text: str) -> bool:
    """Whether vLLM would find CPUs, or one of its two words, in a value of THREADS. Pure."""
    if text in ("auto", "nobind"):
        return True
    found = [_CPUS.fullmatch(part) for each in text.split("|") for part in each.split(",")]
    return all(part is not None and int(part[1]) <= int(part[2] or part[1]) for part in found)
