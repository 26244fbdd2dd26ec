"""The tools of the headline's request that ACU runs in its worker processes. `WORKFLOW_TABLE` names the table's file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agentflow.tools.function import tool
from benchmarks import workflowtables
from benchmarks.workflowscript import HEAD

PLACE: Final = "WORKFLOW_TABLE"
"""The environment variable."""


@tool(idempotent=True, result_bytes=HEAD)
def collect() -> bytes:
    """Fetch the table of all orders."""
    return workflowtables.collect(Path(os.environ[PLACE]))


@tool(idempotent=True, result_bytes=HEAD)
def refine(table: bytes) -> bytes:
    """Take the orders that are not of the coast from a table of orders."""
    return workflowtables.refine(table)


@tool(idempotent=True, result_bytes=HEAD)
def summarise(table: bytes) -> bytes:
    """Make a list of the numbers and amounts from a table of orders."""
    return workflowtables.summarise(table)
