"""Print, for the record, what each hostile request gets: `python -m tests.acu.http.hostile_table`."""

from __future__ import annotations

import asyncio

import uvloop

from tests.acu.http.hostile import BODY_TIMEOUT_S, CASES, HEADER_TIMEOUT_S, chat, request
from tests.acu.http.raw import talk
from tests.acu.http.serving import limits, serving


async def print_table() -> None:
    """Send everything, one after the other."""
    settings = limits(header_timeout_s=HEADER_TIMEOUT_S, body_timeout_s=BODY_TIMEOUT_S)
    async with serving(settings) as served:
        print(f"| {'request':34} | status | code | param | message |\n|---|---|---|---|---|")
        for case in CASES:
            reply = await asyncio.wait_for(talk(served, iter(case.pieces), half_close=case.half_close), 10)
            error = reply.error
            message = (error.get("message") or "").replace("|", "\\|")
            mark = "" if (reply.status, error.get("code")) == (case.status, case.code or error.get("code")) else " (!)"
            param = (error.get("param") or "")[:48]
            print(f"| {case.name:34} | {reply.status}{mark} | {error.get('code')} | {param} | {message[:140]} |")
        good = await talk(served, iter([request(chat())]))
        print(f"\n{len(CASES)} hostile requests; a good one after them: {good.status}")


if __name__ == "__main__":
    uvloop.run(print_table())
