"""What is done about a card whose memory fills up: by level, by trend, and when it is over."""

from __future__ import annotations

from collections.abc import Iterable

from acu.hardware.watch import BLIND, CALM_READINGS, HOLD, HOLD_RESTART, WARM, CardMarks, CardWatch, Step, Trend

EVERY_S = 5.0
BASE, FULL = 18_000, 22_000  # MiB: a room of 4000


class Card:
    """A watch, and the clock of its readings."""

    def __init__(self, marks: CardMarks = CardMarks(), *, warm: bool = True) -> None:  # noqa: B008
        self.watch = CardWatch(FULL, marks)
        self.at_s = 0.0
        if warm:
            self.warm_up()

    def warm_up(self, used_mb: int = BASE) -> None:
        self.watch.warm_up()
        self.see([used_mb] * WARM)

    def see(self, used: Iterable[int]) -> list[Step]:
        """The step after each of these readings."""
        found = []
        for used_mb in used:
            self.at_s += EVERY_S
            found.append(self.watch.observe(used_mb, self.at_s))
        return found

    def last(self, share: float, readings: int) -> Step:
        """The step after so many readings of a share of the room."""
        return self.see([BASE + round(4000 * share)] * readings)[-1]

    def restarts(self, share: float, readings: int) -> int:
        return self.see([BASE + round(4000 * share)] * readings).count(Step.RESTART)


def test_before_the_engines_are_warm_nothing_counts() -> None:
    card = Card(warm=False)
    assert set(card.see([FULL] * 50)) == {Step.CALM}
    assert card.watch.baseline_mb is None
    assert card.watch.share(FULL) == 0.0


def test_the_baseline_is_what_is_used_after_warm_up_and_one_odd_reading_makes_none() -> None:
    card = Card(warm=False)
    card.watch.warm_up()
    assert not card.watch.warm
    card.see([BASE, 21_000, BASE + 2])
    assert card.watch.warm
    assert card.watch.baseline_mb == BASE + 2
    assert card.watch.share(BASE + 2 + 1999) == 0.5


def test_the_lowest_baseline_of_all_warm_ups_counts() -> None:
    card = Card()
    card.warm_up(BASE + 1000)
    assert card.watch.baseline_mb == BASE
    card.warm_up(BASE - 1000)
    assert card.watch.baseline_mb == BASE - 1000


def test_a_step_is_taken_when_its_mark_was_held_for_some_readings() -> None:
    card = Card()
    assert card.last(0.70, HOLD - 1) is Step.CALM
    assert card.last(0.69, 1) is Step.CALM
    assert card.last(0.70, HOLD - 1) is Step.CALM
    assert card.last(0.70, 1) is Step.LIMIT
    assert card.last(0.84, 100) is Step.LIMIT
    assert card.last(0.85, HOLD - 1) is Step.LIMIT
    assert card.last(0.85, 1) is Step.FREE


def test_a_card_that_is_full_at_once_goes_through_every_step_and_each_has_its_time_to_help() -> None:
    seen = Card().see([FULL] * (2 * HOLD + HOLD_RESTART))
    assert [seen.index(step) + 1 for step in Step if step] == [HOLD, 2 * HOLD, 2 * HOLD + HOLD_RESTART]


def test_a_step_is_left_below_its_mark_by_the_gap_and_not_for_one_reading() -> None:
    card = Card()
    assert card.last(0.86, 2 * HOLD) is Step.FREE
    assert card.last(0.81, 100) is Step.FREE
    assert card.last(0.79, CALM_READINGS - 1) is Step.FREE
    assert card.last(0.81, 1) is Step.FREE
    assert card.last(0.79, CALM_READINGS) is Step.LIMIT
    assert card.last(0.66, 100) is Step.LIMIT
    assert card.last(0.64, CALM_READINGS) is Step.CALM


def test_from_the_second_step_to_calm_it_is_one_step_after_the_other() -> None:
    card = Card()
    card.last(0.86, 2 * HOLD)
    assert card.last(0.0, CALM_READINGS) is Step.LIMIT
    assert card.last(0.0, CALM_READINGS) is Step.CALM
    assert card.last(-0.2, 100) is Step.CALM  # less than the baseline: somebody else went


def test_what_comes_and_goes_is_no_step() -> None:
    card = Card()
    assert {step for _ in range(200) for step in card.see([BASE + 3900, BASE + 3900, BASE + 100])} == {Step.CALM}


def test_a_restart_is_told_once_and_what_is_read_meanwhile_does_not_count() -> None:
    card = Card()
    assert card.restarts(0.96, 1000) == 1
    assert not card.watch.warm
    assert card.watch.step is Step.FREE
    card.warm_up(BASE + 100)
    assert (card.watch.step, card.watch.futile, card.watch.baseline_mb) == (Step.CALM, False, BASE)


def test_restarts_have_their_time_between_them() -> None:
    card = Card(CardMarks(restart_every_s=3600))
    assert card.restarts(0.96, 2 * HOLD + HOLD_RESTART) == 1
    began = card.at_s
    card.warm_up()
    assert card.restarts(0.96, 600) == 0
    assert card.watch.step is Step.FREE
    assert card.restarts(0.96, 200) == 1
    card.warm_up()
    assert card.at_s - began > 3600


def test_a_restart_that_did_not_help_is_told_and_not_tried_again_until_the_use_was_below() -> None:
    card = Card(CardMarks(restart_every_s=60))
    assert card.restarts(0.96, 1000) == 1
    card.warm_up(BASE + 3700)
    assert (card.watch.futile, card.watch.step, card.watch.baseline_mb) == (True, Step.FREE, BASE)
    assert card.restarts(0.97, 1000) == 0
    card.warm_up(BASE + 3700)  # an engine died, and came back by itself: somebody else has the memory still
    assert (card.watch.futile, card.watch.step) == (True, Step.FREE)
    assert card.restarts(0.97, 1000) == 0
    assert card.last(0.91, 1) is Step.FREE
    assert card.watch.futile
    assert card.last(0.89, 1) is Step.FREE
    assert not card.watch.futile
    assert card.restarts(0.97, HOLD_RESTART) == 1


def test_engines_that_came_back_by_themselves_judge_no_restart() -> None:
    card = Card()
    card.warm_up(FULL)
    assert (card.watch.futile, card.watch.step) == (False, Step.CALM)
    assert card.restarts(1.0, 1000) == 1
    card.warm_up()
    card.warm_up(FULL)
    assert (card.watch.futile, card.watch.step) == (False, Step.CALM)


def test_engines_that_come_up_again_lift_no_step_unless_the_use_is_below_its_mark() -> None:
    for share, expected in (
        (0.86, Step.FREE),
        (0.81, Step.FREE),
        (0.79, Step.LIMIT),
        (0.66, Step.LIMIT),
        (0.64, Step.CALM),
    ):
        card = Card()
        assert card.last(0.86, 2 * HOLD) is Step.FREE
        card.watch.warm_up()
        card.see([FULL] * (WARM - 1))
        assert card.watch.step is Step.FREE  # while they warm up
        card.warm_up(BASE + round(4000 * share))
        assert card.watch.step is expected


def test_a_restart_that_helped_a_little_leaves_what_is_still_due_in_force() -> None:
    card = Card()
    assert card.restarts(0.96, 1000) == 1
    card.warm_up(BASE + 3520)
    assert (card.watch.step, card.watch.futile) == (Step.FREE, False)


def test_while_engines_start_a_step_can_end_and_none_begins() -> None:
    card = Card()
    assert {card.watch.starting(FULL) for _ in range(100)} == {Step.CALM}
    card.last(0.86, 2 * HOLD)
    high, low = BASE + 3400, BASE + 1000
    assert {card.watch.starting(high) for _ in range(100)} == {Step.FREE}
    assert [card.watch.starting(low) for _ in range(CALM_READINGS)][-2:] == [Step.FREE, Step.LIMIT]
    assert [card.watch.starting(low) for _ in range(CALM_READINGS)][-1] is Step.CALM


def test_a_step_outlives_readings_that_fail_and_is_given_up_when_there_were_too_many() -> None:
    card = Card()
    card.last(0.72, HOLD)
    assert {card.watch.miss() for _ in range(BLIND - 1)} == {Step.LIMIT}
    assert not card.watch.blind
    assert card.last(0.72, 1) is Step.LIMIT  # one that succeeds begins the count anew
    assert {card.watch.miss() for _ in range(BLIND - 1)} == {Step.LIMIT}
    assert (card.watch.miss(), card.watch.blind) == (Step.CALM, True)
    assert card.last(0.72, HOLD - 1) is Step.CALM
    assert (card.last(0.72, 1), card.watch.blind) == (Step.LIMIT, False)


def test_readings_that_fail_now_and_then_keep_no_step_from_coming_or_going() -> None:
    card = Card()
    steps = []
    for share in (0.72,) * HOLD + (0.0,) * CALM_READINGS:
        card.watch.miss()
        steps.append(card.last(share, 1))
    assert (steps[HOLD - 1], steps[-1]) == (Step.LIMIT, Step.CALM)


def creep(mb_per_hour: float, hours: float, start: float = BASE) -> list[int]:
    """Readings that rise; every seventh is of a long prompt that came and went."""
    count = round(hours * 3600 / EVERY_S)
    rise = mb_per_hour * EVERY_S / 3600
    return [round(start + rise * number) + (1500 if number % 7 == 0 else 0) for number in range(count)]


def test_a_creep_is_seen_long_before_its_level_and_raises_the_first_step_alone() -> None:
    card = Card()
    assert set(card.see(creep(900, 2.3))) == {Step.CALM}
    assert abs(card.watch.trend.mb_per_hour - 900) < 20
    seen = card.see(creep(900, 0.4, start=BASE + 2070))
    assert seen[-1] is Step.LIMIT
    assert card.watch.share(BASE + 2430) < 0.65  # by level it would come at 0.70
    full_in_s = card.watch.trend.full_in_s
    assert full_in_s is not None
    assert 6000 < full_in_s < 7200


def test_a_trend_that_ends_ends_the_step_that_it_raised() -> None:
    card = Card()
    card.see(creep(900, 2.7))
    assert card.watch.step is Step.LIMIT
    card.see([BASE + 2430] * 2880)
    assert card.watch.step is Step.CALM
    assert card.watch.trend.full_in_s is None


def test_the_step_that_a_trend_raised_is_kept_until_it_says_twice_as_long() -> None:
    card = Card()
    card.see(creep(900, 2.7))
    steps = []
    for _ in range(2880):
        (step,) = card.see([BASE + 2430])
        full_in_s = card.watch.trend.full_in_s
        if full_in_s is not None and 7200 <= full_in_s < 14_400:
            steps.append(step)
    assert len(steps) > 2 * CALM_READINGS
    assert set(steps) == {Step.LIMIT}


def test_a_trend_begins_anew_with_fresh_engines() -> None:
    card = Card()
    card.see(creep(900, 2.7))
    assert card.watch.trend.full_in_s is not None
    card.warm_up()
    assert card.watch.trend == Trend()
    assert set(card.see([BASE] * 100)) == {Step.CALM}
    assert card.watch.trend == Trend()


def test_what_was_read_before_the_window_says_nothing() -> None:
    card = Card()
    card.see(creep(900, 2))
    card.at_s += 5 * 3600  # the card could not be read
    card.see([BASE + 1800] * 100)
    assert card.watch.trend == Trend()


def test_a_slow_creep_says_when_the_card_is_full() -> None:
    card = Card()
    card.see(creep(100, 4))
    full_in_s = card.watch.trend.full_in_s
    assert full_in_s is not None
    assert abs(full_in_s / 3600 - 36) < 1
    assert card.watch.step is Step.CALM


def test_too_little_was_seen_or_grows_for_a_trend() -> None:
    card = Card()
    card.see(creep(2000, 0.9))
    assert card.watch.trend.full_in_s is None
    card = Card()
    card.see(creep(10, 6))
    assert card.watch.trend.full_in_s is None
    assert 8 < card.watch.trend.mb_per_hour < 12


def test_a_jump_is_no_creep_and_readings_that_lack_do_no_harm() -> None:
    card = Card()
    card.see([BASE] * 1440)
    card.at_s += 7200
    card.see([BASE + 1000] * 240)
    assert card.watch.trend.full_in_s is None
    assert card.watch.step is Step.CALM


def test_where_there_is_hardly_room_what_comes_and_goes_is_no_step() -> None:
    watch = CardWatch(BASE + 100)
    watch.warm_up()
    assert {watch.observe(BASE + (100 if number > WARM else 0), EVERY_S * number) for number in range(100)} == {
        Step.CALM
    }
