"""What must be stored after a process was killed, worked out from what it said that it did. Pure.

A cell is anything that is stored and compared: a row, a record, a log's last number, a collection; its value is JSON, None: it
is not there. A call changes cells, all or none. Each lane makes its calls in order and has cells that no other touches. What
a lane's process said leaves one or more *worlds*: what its cells may be. A call that was acknowledged is in all of them, and
so is every call of the lane before it. When the process dies, each call that was begun since may have happened or not, but
none without those before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

Changes = dict[str, Any]
SLACK_MS = 1500  # between a call's begin and its own reading of the clock, and for clocks of files


class Lane:
    """The cells of one lane."""

    def __init__(self) -> None:
        self.sure: Changes = {}
        self._worlds: list[Changes] = [{}]  # beyond what is sure
        self._begun: list[tuple[int, Changes]] = []

    def begin(self, call: int, changes: Changes) -> None:
        """A call begins."""
        self._begun.append((call, changes))

    def done(self, call: int) -> None:
        """It was acknowledged, and with it all before it."""
        while self._begun and self._begun[0][0] <= call:
            changes = self._begun.pop(0)[1]
            self._worlds = [{**world, **changes} for world in self._worlds]
        if len(self._worlds) == 1:
            self.sure.update(self._worlds[0])
            self._worlds = [{}]

    def died(self) -> None:
        """The process is gone: so many worlds as there are beginnings of what was begun."""
        worlds = list(self._worlds)
        for at in range(1, len(self._begun) + 1):
            for world in self._worlds:
                later: Changes = {}
                for _, changes in self._begun[:at]:
                    later.update(changes)
                worlds.append({**world, **later})
        self._worlds, self._begun = worlds, []

    def settle(self, found: Callable[[str], Any], same: Callable[[Any, Any], bool]) -> list[str]:
        """What is wrong with what was `found`, if it is none of the worlds; from now on what was found is sure."""
        cells = sorted({*self.sure, *(cell for world in self._worlds for cell in world)})
        now = {cell: found(cell) for cell in cells}
        wrongs = []
        for world in self._worlds:
            expected = {**dict.fromkeys(cells), **self.sure, **world}
            wrong = [
                f"{cell} is {now[cell]}, not {expected[cell]}" for cell in cells if not same(expected[cell], now[cell])
            ]
            wrongs.append(wrong)
        self.sure = {cell: value for cell, value in now.items() if value is not None}
        worlds, self._worlds = len(self._worlds), [{}]
        best = min(wrongs, key=len)
        return [f"{what} (of {worlds} worlds the nearest)" for what in best]


class Model:
    """All lanes of one data plane, over the lives of its processes."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.acknowledged = 0

    def lane(self, name: str) -> Lane:
        """A lane, made when it is first named."""
        return self.lanes.setdefault(name, Lane())

    def hear(self, line: list[Any]) -> None:
        """Take up a line: ["begin", lane, call, changes] or ["done", lane, call]; others tell nothing of cells."""
        if line[0] == "begin":
            self.lane(line[1]).begin(line[2], line[3])
        elif line[0] == "done":
            self.lane(line[1]).done(line[2])
            self.acknowledged += 1

    def died(self) -> None:
        """The process that spoke is gone."""
        for lane in self.lanes.values():
            lane.died()

    def settle(self, found: Mapping[str, Any], read_ms: tuple[int, int] | None = None) -> list[str]:
        """What is wrong with the cells that were found, one sentence each. `found` is what the next process begins with.

        `read_ms`: when the first cell was read, and the last (milliseconds since 1970); None: now.
        """
        begun_ms, ended_ms = read_ms or (int(time.time() * 1000),) * 2
        wrong = [
            problem
            for lane in self.lanes.values()
            for problem in lane.settle(found.get, lambda expected, value: same(expected, value, begun_ms, ended_ms))
        ]
        known = {cell for lane in self.lanes.values() for cell in lane.sure}
        return wrong + [f"{cell} is {found[cell]}, and nobody made it" for cell in sorted(set(found) - known)]


def same(expected: Any, found: Any, begun_ms: int, ended_ms: int) -> bool:
    """Whether a cell is what it should be. A row's value is [version, when it expires or None]; others are compared whole."""
    if isinstance(expected, list) and expected[1] is not None:
        if begun_ms >= expected[1] + SLACK_MS:
            return found is None
        if ended_ms >= expected[1] - SLACK_MS and found is None:
            return True
    if isinstance(expected, list) and isinstance(found, list):
        return bool(expected[0] == found[0])
    return bool(expected == found)
