"""/acu/v1/runs: what agents do and did, and a hand on those that go on. For whoever may infer, of the own tenant."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from acu.http.errors import BadRequest
from acu.http.exchange import Exchange, encoded
from acu.http.paging import decode_query, ends, given
from acu.http.route import Answer, Endpoint, Route
from acu.http.runstream import stream_run
from acu.http.wire.decode import clean_text
from acu.http.wire.runs import (
    APPROVAL_DECODER,
    CHARS_A_VALUE,
    LAST_NUMBER,
    MESSAGE_DECODER,
    RunApprovalBody,
    RunDeleted,
    RunEventList,
    RunEventObject,
    RunEventsQuery,
    RunList,
    RunMessageBody,
    RunsQuery,
    event_list,
    event_size,
    message_content,
)
from agentflow.agents.account import RunAccount, RunSummary
from agentflow.agents.overview import Overview, Steer, Wanted
from agentflow.agents.record import ApprovalGiven
from agentflow.service import Service

RUNS: Final = "/acu/v1/runs"
RUN: Final = f"{RUNS}/{{run_id}}"
STEERS: Final[dict[Steer, str]] = {
    "cancel": "End a run that goes on. Returns once it has ended.",
    "pause": "Let a run's model say no more, and no step begin. Calls that are under way come to their end.",
    "resume": "Let a run that is paused go on.",
    "step": "Let a run go on for one step, or to the end of the one that it is in.",
}
_NUMBER = re.compile(r"[0-9]{1,19}")

Source = Callable[[], Overview]
"""Gives the overview, or raises UnknownModel where no agent is configured."""


async def listing(runs: Source, exchange: Exchange) -> web.StreamResponse:
    query = decode_query(exchange.request.query, RunsQuery)
    status = None if query.status is msgspec.UNSET else query.status
    wanted = Wanted(limit=query.limit, after=given(query.after), agent=given(query.agent), status=status)
    found, more = await runs().page(exchange.caller.tenant, wanted)
    first, last = ends(found)
    return exchange.json(msgspec.json.encode(RunList(data=found, first_id=first, last_id=last, has_more=more)))


async def retrieve(runs: Source, exchange: Exchange) -> web.StreamResponse:
    found = await runs().account(exchange.caller.tenant, run_id(exchange))
    return exchange.json(await encoded(lambda: msgspec.json.encode(found), account_size(found)))


async def events(runs: Source, exchange: Exchange) -> web.StreamResponse:
    query = decode_query(exchange.request.query, RunEventsQuery)
    overview, tenant, run = runs(), exchange.caller.tenant, run_id(exchange)
    if query.stream and exchange.request.method != "HEAD":  # which has no body, and would wait for its end
        return await stream_run(exchange, await overview.follow(tenant, run, last_seen(exchange, query.after)))
    found = await overview.events(tenant, run, query.after, query.limit)
    size = sum(event_size(event) for _, event in found)
    return exchange.json(await encoded(lambda: msgspec.json.encode(event_list(found, query.limit)), size))


async def steer(how: Steer, runs: Source, exchange: Exchange) -> web.StreamResponse:
    run = await runs().steer(exchange.caller.tenant, run_id(exchange), how)
    return exchange.json(msgspec.json.encode(run))


async def add_message(runs: Source, exchange: Exchange) -> web.StreamResponse:
    content = message_content(MESSAGE_DECODER.decode(exchange.take_body()))
    run = await runs().add(exchange.caller.tenant, run_id(exchange), content)
    return exchange.json(msgspec.json.encode(run))


async def approve(runs: Source, exchange: Exchange) -> web.StreamResponse:
    body = APPROVAL_DECODER.decode(exchange.take_body())
    given = ApprovalGiven(
        call_id=exchange.path_arguments["call_id"],
        allowed=body.allowed,
        why=clean_text(body.why, "why"),
        by=exchange.caller.name,
    )
    run = await runs().approve(exchange.caller.tenant, run_id(exchange), given)
    return exchange.json(msgspec.json.encode(run))


async def delete(runs: Source, exchange: Exchange) -> web.StreamResponse:
    await runs().delete(exchange.caller.tenant, run_id(exchange))
    return exchange.json(msgspec.json.encode(RunDeleted(id=run_id(exchange))))


def routes(service: Service) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""

    def source() -> Overview:
        return Overview(service.agents, service.responses.drop)

    def bound(endpoint: Callable[[Source, Exchange], Awaitable[web.StreamResponse]]) -> Endpoint:
        return partial(endpoint, source)

    return (
        _route(
            "GET",
            RUNS,
            bound(listing),
            ("listRuns", "The caller's runs, the newest first: those that are stored, and those that go on."),
            (Answer("A page of them.", body=RunList),),
            query=RunsQuery,
        ),
        _route(
            "GET",
            RUN,
            bound(retrieve),
            ("retrieveRun", "What happened in a run: steps, calls, times and figures. Of one in mid-flight: so far."),
            (Answer("The account.", body=RunAccount),),
        ),
        _route(
            "GET",
            f"{RUN}/events",
            bound(events),
            ("listRunEvents", "A run's log: a page of it, or all that was and comes, as a stream."),
            (
                Answer("A page of it.", body=RunEventList),
                Answer("With `stream`: what there is, and what comes.", "text/event-stream", RunEventObject),
            ),
            query=RunEventsQuery,
        ),
        *(
            _route(
                "POST",
                f"{RUN}/{how}",
                bound(partial(steer, how)),
                (f"{how}Run", summary),
                (Answer("The run as it is now.", body=RunSummary),),
                refusals=(404, 409, 507),
            )
            for how, summary in STEERS.items()
        ),
        _route(
            "POST",
            f"{RUN}/messages",
            bound(add_message),
            ("addRunMessage", "Give a run a message, which its model reads with the next step."),
            (Answer("The run as it is now.", body=RunSummary),),
            body=RunMessageBody,
            refusals=(404, 408, 409, 413, 415, 417, 507),
        ),
        _route(
            "POST",
            f"{RUN}/calls/{{call_id}}/approval",
            bound(approve),
            ("approveRunCall", "Allow a call that waits for a person, or do not. The first word counts."),
            (Answer("The run as it is now.", body=RunSummary),),
            body=RunApprovalBody,
            refusals=(400, 404, 408, 409, 413, 415, 417, 507),
        ),
        _route(
            "DELETE",
            RUN,
            bound(delete),
            ("deleteRun", "Remove a stored run that does not go on."),
            (Answer("It is gone.", body=RunDeleted),),
            refusals=(404, 409, 507),
        ),
    )


def _route(
    method: str, path: str, endpoint: Endpoint, told: tuple[str, str], answers: tuple[Answer, ...], **more: Any
) -> Route:
    """An entry; `told` are its name and summary."""
    return Route(
        method=method,
        path=path,
        endpoint=endpoint,
        scope="inference",
        name=told[0],
        summary=told[1],
        answers={200: answers},
        **{"refusals": (404,), **more},
    )


def run_id(exchange: Exchange) -> str:
    """The id of the run that the path names."""
    return exchange.path_arguments["run_id"]


def last_seen(exchange: Exchange, after: int) -> int:
    """After which event a stream begins: a client that comes back says so in a header of its own. Raises BadRequest."""
    header = exchange.request.headers.get("last-event-id")
    if header is None:
        return after
    if not _NUMBER.fullmatch(header) or int(header) > LAST_NUMBER:
        raise BadRequest("The header 'Last-Event-ID' must be the number of an event.", param="last-event-id")
    return int(header)


def account_size(account: RunAccount) -> int:
    """About how many values an account has."""
    texts = sum(len(step.text) for step in account.steps)
    calls = [call for step in account.steps for call in step.calls]
    texts += sum(len(call.arguments) + len(call.result or "") for call in calls)
    return 20 * len(account.steps) + 10 * len(calls) + 4 * len(account.messages) + texts // CHARS_A_VALUE
