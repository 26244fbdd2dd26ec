"""CardWatch: what is to be done about a card whose memory fills up slowly. Pure: readings in, the step in force out.

A card holds weights and KV pool from the start; what the engines use beside them should come and go. What stays is a creep, and
at its end stands "out of memory". So the use after warm-up is the baseline (the median of WARM readings, the lowest of all
warm-ups), and a reading counts as a share of the room above it: 0.0 at the baseline, 1.0 when the card is full.

    CALM     nothing is done
    LIMIT    no long prompts: what a step needs beside the pool grows with the tokens in it
    FREE     and what is cached is dropped, and with it what the engines' allocators keep aside
    RESTART  the engines are to be had afresh, now: told once, and FREE is in force meanwhile

**Up** by one step at a time, after HOLD readings in a row at or above the next one's mark (HOLD_RESTART for a restart, so that
the step before it can help). **Down** by one, after CALM_READINGS in a row below the mark of the step in force by GAP.

**Trend.** Over `window_s`, a ring of POINTS medians; the median of the slopes between all pairs of them (Theil and Sen) is not
moved by a prompt that came and went. When it says that the card will be full within `lead_s`, LIMIT comes before its mark; it
is left when the trend says twice as long, or nothing. It says nothing before a quarter of the window was seen, nor of a slope
that would need more than a window for MIN_GROWTH_MB.

**A restart** comes at most every `restart_every_s`. After it the engines warm up again: `warm_up` is told when they have, and
until then no reading counts. Where the use is then still at the mark that asked for it, the restart did not help: somebody else
holds the memory, and no further one is told until the use has been below.

**Engines that come up again**, for whatever reason, begin a new trend; a step in force stays unless what is read then is below
its mark. While they start (`starting`), a reading can end a step as ever, and raises none: loading comes and goes.

**Readings that fail** (`miss`) count for nothing while there are few: the step stays. After BLIND in a row it is given up, for
nobody could say when it is over, and the engines that work are the better witness. The next step comes by readings, as ever.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

WARM: Final = 3  # readings
HOLD: Final = 3
HOLD_RESTART: Final = 12
CALM_READINGS: Final = 12
BLIND: Final = 120  # failed readings: ten minutes, every 5 s
GAP: Final = 0.05  # of the room
MIN_ROOM_MB: Final = 256  # less is no room to tell a creep from what comes and goes
POINTS: Final = 96
MIN_GROWTH_MB: Final = 64


class Step(enum.IntEnum):
    """What is in force; each has what is before it, too."""

    CALM = 0
    LIMIT = 1
    FREE = 2
    RESTART = 3


class CardMarks(Struct, frozen=True):
    """Shares of the room at which each step begins, ascending, and times in seconds."""

    limit_at: float = 0.70
    free_at: float = 0.85
    restart_at: float = 0.95
    restart_every_s: float = 21_600.0
    window_s: float = 14_400.0
    lead_s: float = 7_200.0

    def of(self, step: Step) -> float:
        """Where `step` begins."""
        return (0.0, self.limit_at, self.free_at, self.restart_at)[step]


class Trend(Struct, frozen=True):
    """MiB an hour, and seconds until the card would be full; None: not in sight."""

    mb_per_hour: float = 0.0
    full_in_s: float | None = None


class CardWatch:
    """Of one card of `capacity_mb`. Give it readings in order of time; `at_s` are seconds of any clock that does not go back."""

    def __init__(self, capacity_mb: int, marks: CardMarks = CardMarks()) -> None:  # noqa: B008 - frozen
        self.capacity_mb = capacity_mb
        self.marks = marks
        self.baseline_mb: int | None = None
        self.step = Step.CALM
        self.trend = Trend()
        self.futile = False  # the last restart did not help
        self._warming: list[int] | None = None
        self._ring = Ring(marks.window_s)
        self._above = self._below = self._missed = 0  # readings in a row
        self._restarted_at: float | None = None
        self._restarting = False
        self._judging = False  # the next baseline tells whether a restart helped

    @property
    def blind(self) -> bool:
        """Whether so many readings failed that a step is given up."""
        return self._missed >= BLIND

    @property
    def warm(self) -> bool:
        """Whether readings count: a baseline is known, and no engine starts."""
        return self.baseline_mb is not None and self._warming is None and not self._restarting

    def warm_up(self) -> None:
        """The engines have come up: the next readings are what they use when they do nothing."""
        self._warming = []
        self._restarting = False

    def share(self, used_mb: int) -> float:
        """Of the room above the baseline; 0.0 while there is none."""
        if self.baseline_mb is None:
            return 0.0
        return (used_mb - self.baseline_mb) / max(self.capacity_mb - self.baseline_mb, MIN_ROOM_MB)

    def observe(self, used_mb: int, at_s: float) -> Step:
        """The step in force after this reading. RESTART is told once: do it, and call `warm_up` when it is done."""
        self._missed = 0
        if self._restarting:
            return self.step
        if self._warming is not None:
            self._warming.append(used_mb)
            if len(self._warming) == WARM:
                self._take_baseline(int(median(self._warming)))
            return self.step
        if self.baseline_mb is None:
            return self.step
        if self._ring.add(used_mb, at_s):
            self.trend = self._ring.trend(self.capacity_mb)
        share = self.share(used_mb)
        if share < self.marks.restart_at - GAP:
            self.futile = False
        self._count(share)
        if self._above >= (HOLD_RESTART if self.step is Step.FREE else HOLD):
            return self._up(at_s)
        return self._down()

    def starting(self, used_mb: int) -> Step:
        """The step in force after a reading while engines start, or have failed to."""
        self._missed = self._above = 0
        if self.baseline_mb is not None:
            below = self.step > Step.CALM and self.share(used_mb) < self.marks.of(self.step) - GAP
            self._below = self._below + 1 if below else 0
        return self._down()

    def miss(self) -> Step:
        """The step in force after a reading that failed."""
        self._missed += 1
        if self.blind:
            self.step = Step.CALM
            self._above = self._below = 0
        return self.step

    def _down(self) -> Step:
        if self._below >= CALM_READINGS:
            self.step = Step(self.step - 1)
            self._above = self._below = 0
        return self.step

    def _count(self, share: float) -> None:
        """Readings in a row that ask for the next step, and that no more ask for the one in force."""
        following = Step(min(self.step + 1, Step.RESTART))
        asks = share >= self.marks.of(following) or (following is Step.LIMIT and self._soon_full(self.marks.lead_s))
        kept = share >= self.marks.of(self.step) - GAP
        kept = kept or (self.step is Step.LIMIT and self._soon_full(2 * self.marks.lead_s))
        self._above = self._above + 1 if asks else 0
        self._below = 0 if kept or self.step is Step.CALM else self._below + 1

    def _soon_full(self, within_s: float) -> bool:
        return self.trend.full_in_s is not None and self.trend.full_in_s < within_s

    def _up(self, at_s: float) -> Step:
        if self.step < Step.FREE:
            self.step = Step(self.step + 1)
            self._above = self._below = 0
            return self.step
        if self.futile or (self._restarted_at is not None and at_s - self._restarted_at < self.marks.restart_every_s):
            return self.step
        self._restarted_at = at_s
        self._restarting = self._judging = True
        self._above = self._below = 0
        return Step.RESTART

    def _take_baseline(self, used_mb: int) -> None:
        self._warming = None
        self.baseline_mb = used_mb if self.baseline_mb is None else min(self.baseline_mb, used_mb)
        share = self.share(used_mb)
        self.futile = (self._judging or self.futile) and share >= self.marks.restart_at - GAP
        while self.step and share < self.marks.of(self.step) - GAP:
            self.step = Step(self.step - 1)
        self._judging = False
        self._ring = Ring(self.marks.window_s)
        self.trend = Trend()
        self._above = self._below = 0


class Ring:
    """The last `window_s` seconds of readings, as at most POINTS medians of equal times."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS)
        self._since: float | None = None
        self._readings: list[int] = []

    def add(self, used_mb: int, at_s: float) -> bool:
        """Take a reading; whether a point was made of those before it."""
        if self._since is None:
            self._since = at_s
        made = at_s - self._since >= self._window_s / POINTS and bool(self._readings)
        if made:
            self._points.append(((self._since + at_s) / 2, median(self._readings)))
            self._since, self._readings = at_s, []
        self._readings.append(used_mb)
        return made

    def trend(self, capacity_mb: int) -> Trend:
        """The median slope, and when the card is full if it goes on so from the last point. Takes a few milliseconds at most."""
        points = list(self._points)
        while points and points[-1][0] - points[0][0] > self._window_s:
            points.pop(0)
        if len(points) < POINTS // 4:
            return Trend()
        slope = median(
            (later - earlier) / (at - before)
            for index, (before, earlier) in enumerate(points)
            for at, later in points[index + 1 :]
        )
        if slope * self._window_s < MIN_GROWTH_MB:
            return Trend(3600 * slope)
        return Trend(3600 * slope, max(0.0, (capacity_mb - points[-1][1]) / slope))


def median(values: Iterable[float]) -> float:
    """The one in the middle, of at least one. Here, because the module statistics brings much along that a start does without."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
