"""This machine as an engine sees it."""

from __future__ import annotations

from pathlib import Path

import psutil

from agentflow.engine.vllm.facts import MachineFacts, read_machine


def this_machine() -> MachineFacts:
    """All of its memory, and the compiled code that the daemon keeps too."""
    return read_machine(psutil.virtual_memory().available, Path.home() / ".cache" / "acu" / "compiled")
