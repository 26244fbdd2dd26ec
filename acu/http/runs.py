"""/acu/v1/runs: what agents do and did, and a hand on those that go on. For whoever may infer, of the own tenant."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from acu.http.entry import READ_REFUSALS, Entry, bound
from acu.http.errors import BadRequest
from acu.http.exchange import Exchange, encoded
from acu.http.paging import decode_query, ends, given
from acu.http.route import Answer, Route
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
    approval_word,
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
        allowed=approval_word(body),
        why=clean_text(body.why, "why"),
        by=exchange.caller.name,
    )
    run = await runs().approve(exchange.caller.tenant, run_id(exchange), given)
    return exchange.json(msgspec.json.encode(run))


async def delete(runs: Source, exchange: Exchange) -> web.StreamResponse:
    await runs().delete(exchange.caller.tenant, run_id(exchange))
    return exchange.json(msgspec.json.encode(RunDeleted(id=run_id(exchange))))


_NOW = (Answer("The run as it is now.", body=RunSummary),)
_BODY_REFUSALS = (404, 408, 409, 413, 415, 417, 507)
TABLE: tuple[Entry[Source], ...] = (
    Entry(
        method="GET",
        path=RUNS,
        endpoint=listing,
        name="listRuns",
        summary="The caller's runs, the newest first: those that are stored, and those that go on.",
        query=RunsQuery,
        answers=(Answer("A page of them.", body=RunList),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="GET",
        path=RUN,
        endpoint=retrieve,
        name="retrieveRun",
        summary="What happened in a run: steps, calls, times and figures. Of one in mid-flight: so far.",
        answers=(Answer("The account.", body=RunAccount),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="GET",
        path=f"{RUN}/events",
        endpoint=events,
        name="listRunEvents",
        summary="A run's log: a page of it, or all that was and comes, as a stream.",
        query=RunEventsQuery,
        answers=(
            Answer("A page of it.", body=RunEventList),
            Answer("With `stream`: what there is, and what comes.", "text/event-stream", RunEventObject),
        ),
        refusals=READ_REFUSALS,
    ),
    *(
        Entry(
            method="POST",
            path=f"{RUN}/{how}",
            endpoint=partial(steer, how),
            name=f"{how}Run",
            summary=summary,
            answers=_NOW,
            refusals=(404, 409, 507),
        )
        for how, summary in STEERS.items()
    ),
    Entry(
        method="POST",
        path=f"{RUN}/messages",
        endpoint=add_message,
        name="addRunMessage",
        summary="Give a run a message, which its model reads with the next step.",
        body=RunMessageBody,
        answers=_NOW,
        refusals=_BODY_REFUSALS,
    ),
    Entry(
        method="POST",
        path=f"{RUN}/calls/{{call_id}}/approval",
        endpoint=approve,
        name="approveRunCall",
        summary="Allow a call that waits for a person, or do not. The first word counts.",
        body=RunApprovalBody,
        answers=_NOW,
        refusals=(400, *_BODY_REFUSALS),
    ),
    Entry(
        method="DELETE",
        path=RUN,
        endpoint=delete,
        name="deleteRun",
        summary="Remove a stored run that does not go on.",
        answers=(Answer("It is gone.", body=RunDeleted),),
        refusals=(404, 409, 507),
    ),
)


def routes(service: Service) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""
    return bound(TABLE, lambda: Overview(service.agents, service.responses.drop))


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
