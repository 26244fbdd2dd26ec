"""Context: what a Python function may know of the call that it answers.

    @tool(idempotent=True)
    def pay(amount: float, context: Context) -> str:
        \"\"\"Pay an amount.\"\"\"
        return bank.pay(amount, idempotency_key=context.key)

A parameter that is annotated with it gets it, whatever its name. The model neither sees nor gives it.
"""

from __future__ import annotations

import time

from msgspec import Struct


class Context(Struct, frozen=True, kw_only=True):
    """Who calls, and for what.

    `key` is the same whenever this very call is tried again, after a failure and after a crash of the daemon, and no other
    call has it: what was done under a key need not be done twice. `deadline_at`: `time.monotonic()` seconds, which all
    processes of this machine count alike; the function is ended then.
    """

    tenant: str
    run_id: str
    call_id: str
    key: str
    deadline_at: float

    @property
    def seconds_left(self) -> float:
        """Until the function is ended."""
        return self.deadline_at - time.monotonic()
