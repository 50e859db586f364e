"""Following a training: the decisions one by one, and whole trainings on a clock that is set by hand."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from replicax.checkpoint.checkpoint_follower import End, Follower, Found, Outcome, Progress, Rules, Visit, Wait, decide


def found(step: int | None) -> Found:
    return Found(Path(f"/run/ckpt-{step}"), step)


FRESH = Progress(began=0.0, news=0.0)
ONCE = Progress(began=0.0, news=12.0, visits=1, visit_began=10.0, step=5)
IDLE = End("no new checkpoint has come for 5 s", idle=True)
LAST = End("the checkpoint of step 5 has been evaluated, and the training ends there")


@pytest.mark.parametrize(
    ("rules", "progress", "steps", "now", "expected"),
    [
        # Nothing there: it waits, in vain for so long and no longer.
        (Rules(), FRESH, [], 1e9, Wait(1.0)),
        (Rules(idle_timeout_s=5.0), FRESH, [], 4.9, Wait(1.0)),
        (Rules(idle_timeout_s=5.0), FRESH, [], 5.0, IDLE),
        (Rules(idle_timeout_s=5.0), ONCE, [], 16.9, Wait(1.0)),
        (Rules(idle_timeout_s=5.0), ONCE, [], 17.0, IDLE),
        # The delay at the start: it is no idling.
        (Rules(start_delay_s=30.0), FRESH, [1], 0.0, Wait(30.0)),
        (Rules(start_delay_s=30.0), FRESH, [1], 29.0, Wait(1.0)),
        (Rules(start_delay_s=30.0), FRESH, [1], 30.0, Visit(found(1))),
        (Rules(start_delay_s=30.0, idle_timeout_s=5.0), FRESH, [], 31.0, Wait(1.0)),
        (Rules(start_delay_s=30.0, idle_timeout_s=5.0), FRESH, [], 35.0, IDLE),
        # Without a throttle each, in order.
        (Rules(), FRESH, [1, 2, 3], 0.0, Visit(found(1))),
        (Rules(), ONCE, [6, 7], 12.0, Visit(found(6))),
        # With one the newest, and not too soon.
        (Rules(throttle_s=20.0), FRESH, [1, 2, 3], 0.0, Visit(found(3), (found(1), found(2)))),
        (Rules(throttle_s=20.0), ONCE, [6], 12.0, Wait(1.0)),
        (Rules(throttle_s=20.0), ONCE, [6], 29.5, Wait(0.5)),
        (Rules(throttle_s=20.0), ONCE, [6, 7], 30.0, Visit(found(7), (found(6),))),
        (Rules(throttle_s=20.0, idle_timeout_s=1.0), ONCE, [6], 29.0, Wait(1.0)),
        # The last step is not throttled, and then it ends.
        (Rules(throttle_s=20.0, last_step=7), ONCE, [6, 7], 12.0, Visit(found(7), (found(6),))),
        (Rules(throttle_s=20.0, last_step=8), ONCE, [6, 7], 12.0, Wait(1.0)),
        (Rules(last_step=5), ONCE, [6], 12.0, LAST),
        (Rules(last_step=6), ONCE, [6], 12.0, Visit(found(6))),
        (Rules(last_step=6), FRESH, [None], 12.0, Visit(found(None))),
        # Enough visits.
        (Rules(max_visits=1), ONCE, [6], 12.0, End("1 checkpoint(s) have been evaluated")),
        (Rules(max_visits=2), ONCE, [6], 12.0, Visit(found(6))),
    ],
)  # fmt: skip
def test_a_decision(rules, progress, steps, now, expected):
    assert decide(rules, progress, [found(step) for step in steps], now) == expected


class Simulated:
    """A training that saves checkpoints at given times, and a follower that needs some seconds for each visit."""

    def __init__(self, saves: dict[float, int], rules: Rules, cost: float = 2.0, kept: int = 99, **options: object):
        self.now, self.saves, self.cost, self.kept = 0.0, saves, cost, kept
        self.visited: list[tuple[float, int]] = []
        self.outcomes: Callable[[Found], Outcome] = lambda _: Outcome.DONE
        self.follower = Follower(
            self.look, self.visit, rules, "/run", clock=lambda: self.now, sleep=self.sleep, **options
        )

    def look(self) -> list[Found]:
        there = sorted(step for time, step in self.saves.items() if time <= self.now)
        return [found(step) for step in there[-self.kept :]]

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def visit(self, each: Found) -> Outcome:
        assert each in self.look()
        outcome = self.outcomes(each)
        if outcome is Outcome.DONE:
            self.visited.append((self.now, each.step))
            self.now += self.cost
        return outcome

    def run(self) -> End:
        return self.follower.run()

    @property
    def steps(self) -> list[int]:
        return [step for _, step in self.visited]


@pytest.mark.parametrize(
    ("every", "cost", "throttle", "delay"),
    [*itertools.product([1.0, 7.0, 30.0], [0.5, 10.0], [0.0, 5.0, 60.0], [0.0, 100.0])],
)
def test_any_training_is_followed_to_its_end(every, cost, throttle, delay):
    saves = {every * number: number for number in range(1, 21)}
    rules = Rules(start_delay_s=delay, throttle_s=throttle, last_step=20, idle_timeout_s=1000.0)
    simulated = Simulated(saves, rules, cost)
    end = simulated.run()
    assert not end.idle
    assert simulated.steps == sorted(set(simulated.steps))  # in order, none twice
    assert simulated.steps[-1] == 20  # the last is always among them
    assert simulated.visited[0][0] >= delay
    if throttle == 0:
        assert simulated.steps == [*range(1, 21)]
    begins = [time for time, step in simulated.visited if step < 20]
    assert all(later - earlier >= throttle for earlier, later in itertools.pairwise(begins))
    assert simulated.now <= max(saves) + delay + 20 * cost + 1.0  # no needless waiting at the end


def test_a_training_that_dies_is_not_waited_for_for_ever(caplog):
    simulated = Simulated({1.0: 1, 2.0: 2}, Rules(last_step=9, idle_timeout_s=2000.0))
    with caplog.at_level(logging.WARNING):
        end = simulated.run()
    assert end.idle
    assert simulated.steps == [1, 2]
    assert simulated.now == pytest.approx(2000 + simulated.follower.progress.news, abs=2)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert all("the last was of step 2, and the training ends with step 9" in each for each in said)


def test_checkpoints_that_vanish_or_are_half_written_are_left_or_tried_again():
    simulated = Simulated({1.0: 1, 2.0: 2, 3.0: 3}, Rules(last_step=3))
    answers = {1: iter([Outcome.LATER, Outcome.DONE]), 2: iter([Outcome.GONE]), 3: iter([Outcome.LATER, Outcome.DONE])}
    simulated.outcomes = lambda each: next(answers[each.step])
    simulated.run()
    assert simulated.steps == [1, 3]


def test_the_end_may_be_told_later_and_one_that_comes_back_visits_what_it_missed():
    told: list[int | None] = [None]
    simulated = Simulated({1.0: 1, 2.0: 2}, Rules(idle_timeout_s=50.0), last_step=lambda: told[0])
    simulated.outcomes = lambda each: told.__setitem__(0, 2) or Outcome.DONE
    assert not simulated.run().idle
    assert simulated.steps == [1, 2]
    saves = {1.0: 1, 2.0: 2, 3.0: 3}
    again = Simulated(saves, Rules(last_step=3), done=[found(1), found(2)])
    again.run()
    assert again.steps == [3]
    finished = Simulated(saves, Rules(last_step=3), done=[found(3)])
    finished.run()
    assert finished.steps == []
