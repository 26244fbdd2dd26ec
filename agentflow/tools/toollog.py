"""What the log has of a Python function's call: one entry where it failed or printed, whose parts are bounded.

Where the function raised, the entry has the traceback; what is told to the model and to the client is the error's text alone.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from agentflow.tools.context import Context
from agentflow.tools.printed import Taken
from agentflow.tools.result import TRACE_MAX
from agentflow.tools.secrets import Secrets

TRACE_SHOWN: Final = 8000  # characters
_NOTHING: Final = Taken("", 0)
_NO_SECRETS: Final = Secrets({}, ())
_log = logging.getLogger(__name__)


def log_failure(
    name: str,
    call: Context,
    why: str,
    *,
    trace: str = "",
    printed: Taken = _NOTHING,
    secrets: Secrets = _NO_SECRETS,
) -> None:
    """A call of the tool `name` failed, or was ended. With a `trace` it is the function's author who should look."""
    fields = _fields(name, call) | {"why": secrets.hide(why)}
    if trace:
        # A secret that the cut goes through is left out with what is behind it.
        hidden = secrets.hide_first(trace.encode(), is_last=len(trace) < TRACE_MAX)[0].decode("utf-8", "ignore")
        more = len(hidden) - TRACE_SHOWN
        fields["exception"] = hidden if more <= 0 else f"{hidden[:TRACE_SHOWN]}\n[cut here: {more:,} characters more]"
    _log.log(logging.WARNING if trace else logging.INFO, "a call of a tool failed", extra=fields | _output(printed))


def log_printed(name: str, call: Context | None, printed: Taken) -> None:
    """What the tool `name` printed, or what its module did when it was imported (`call` is None)."""
    if output := _output(printed):
        _log.info("a tool printed", extra=_fields(name, call) | output)


def _fields(name: str, call: Context | None) -> dict[str, Any]:
    return {"tool": name} | ({} if call is None else {"run": call.run_id, "call": call.call_id})


def _output(printed: Taken) -> dict[str, Any]:
    if printed.left_out:
        return {"output": printed.text, "output_left_out_bytes": printed.left_out}
    return {"output": printed.text} if printed.text else {}
