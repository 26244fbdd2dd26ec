"""`python mcp_plain.py NOTES [rubbish | silent | stubborn]`: an MCP server by hand, that misbehaves as it is told.

It speaks the older protocol, and lists its tools in pages. In the file NOTES it notes its pid, and the methods of the
notifications that it gets.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

NOTES = Path(sys.argv[1])
MODES = sys.argv[2:]
NAMES = ["answer", "hang", "flood", "lines", "blanks", "grow", "deaf", "quit", "nonsense", "broken"]


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{text}\n")


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def listed(cursor: str | None) -> dict[str, Any]:
    """Four tools a page."""
    start = int(cursor or 0)
    tools: list[dict[str, Any]] = [
        {"name": name, "inputSchema": {"type": "object"}} for name in NAMES[start : start + 4]
    ]
    for tool in tools:
        if tool["name"] == "broken":  # it cannot be offered
            tool["inputSchema"] = {"type": "object", "properties": {"a": {"$ref": "http://elsewhere/schema"}}}
        if tool["name"] == "answer":
            tool["annotations"] = {"idempotentHint": True}
    more = {"nextCursor": str(start + 4)} if start + 4 < len(NAMES) else {}
    return {"tools": tools} | more


def text(content: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}]}


def called(name: str) -> dict[str, Any] | None:
    note(f"call {name}")
    if name in ("hang", "deaf"):
        if name == "deaf":
            time.sleep(600)
        return None
    if name == "flood":  # 100 MB without a line's end
        for _ in range(1600):
            sys.stdout.write("x" * 65536)
    if name == "lines":
        for _ in range(1600):
            sys.stdout.write(("x" * 1023 + "\n") * 64)
    if name == "blanks":
        for _ in range(1600):
            sys.stdout.write("\n" * 65536)
    if name == "grow":
        NAMES.insert(0, "grown")
        say({"method": "notifications/tools/list_changed"})
    if name == "quit":
        sys.exit(0)
    if name == "nonsense":
        return {"content": "this is no list"}
    return text(f"{name} done")


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        tools = {"tools": {"listChanged": True}}
        about = {"name": "plain", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": tools, "serverInfo": about}
    if method == "tools/list":
        return listed(params.get("cursor"))
    return called(params["name"])


def main() -> None:
    if "stubborn" in MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if (child := os.fork()) == 0:  # it has one that is as stubborn
            time.sleep(600)
        note(f"child {child}")
    note(f"pid {os.getpid()}")
    if "rubbish" in MODES:
        print("Welcome!\n\n{not json\n\x00\x01[1,2]\n" + "[" * 5000, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "silent" in MODES:
            continue
        if "id" not in message:
            note(message["method"])
        elif message["method"] == "server/discover":
            say({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
        elif (result := answer(message)) is not None:
            say({"id": message["id"], "result": result})
    while "stubborn" in MODES:
        time.sleep(1)


if __name__ == "__main__":
    main()
