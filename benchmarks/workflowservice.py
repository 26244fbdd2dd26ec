"""The external service of the headline's request, a process of its own: `python -m benchmarks.workflowservice --port N`.

GET /weather/{city} answers some 2 KB of JSON after DELAY_S. DOCUMENT is what it publishes. Both sides call it.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

import uvloop
from aiohttp import web

from benchmarks.workflowscript import EXTERNAL, weather

DELAY_S: Final = 0.25  # a service on the Internet
DESCRIPTION: Final = "The weather of a city, hour by hour."
DOCUMENT: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {"title": "Weather", "version": "1"},
    "paths": {
        "/weather/{city}": {
            "get": {
                "operationId": EXTERNAL,
                "summary": DESCRIPTION,
                "parameters": [{"name": "city", "in": "path", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": {"description": "The weather."}},
            }
        }
    },
}


async def answer(request: web.Request) -> web.Response:
    """The weather, after a while."""
    await asyncio.sleep(DELAY_S)
    return web.Response(body=weather(request.match_info["city"]), content_type="application/json")


async def ready(_: web.Request) -> web.Response:
    """That it answers."""
    return web.Response()


async def serve(port: int) -> None:
    """Until the process ends."""
    app = web.Application()
    app.add_routes([web.get("/weather/{city}", answer), web.get("/readyz", ready)])
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=3600.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
