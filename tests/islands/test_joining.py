"""Islands that are lost, and those that join: the others go on, and all are equal after an exchange."""

import threading

import numpy as np
import pytest

import replicax as rx
from tests.islands.members import Members
from tests.islands.test_strategy import BATCHES, Training, diloco

EVERY = 3


class Job:
    """Threads, one for each life of an island."""

    def __init__(self, members, make=rx.DiLoCoStrategy, **arguments):
        self.members, self._make, self._arguments = members, make, arguments
        self.threads, self._errors, self.found = [], [], {}

    def start(self, index, body, name=None):
        def run():
            try:
                meeting = self.members.join(index)
                strategy = self._make(EVERY, devices=[f"cpu:{index}"], meeting=meeting, **self._arguments)
                self.found[name or index] = body(strategy)
            except BaseException as error:
                self._errors.append(error)
            finally:
                self.members.leave(index)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def end(self):
        for thread in self.threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return self.found


def steps(training, first, last, own=None):
    strategy = training.strategy
    own = BATCHES[strategy.island_index :: strategy.num_islands] if own is None else own
    for batch in own[first:last]:
        training.train(batch)


def state_of(training):
    sync = training.strategy._sync
    outer = [np.asarray(leaf) for leaf in sync.common.outer_states.get(0, [])]
    return [*training.values(), *outer], training.strategy.steps


def test_a_sum_that_fails_is_made_again_and_changes_nothing():
    members = Members(2, {0, 1})
    members.lose = lambda sums: sums in (1, 3, 4, 7)
    job = Job(members)
    for index in range(2):
        job.start(index, lambda strategy: Training(strategy).fit(BATCHES[:18]).values())
    for values in job.end().values():
        for value, expected in zip(values, diloco(2, EVERY, batches=BATCHES[:18]), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    assert members.sums > 7


@pytest.mark.parametrize("fragments", [1, 2])
def test_an_island_is_lost_and_its_successor_joins(fragments):
    """Island 1 makes a step of its second round and is lost. A new one comes when the other has gone on alone."""
    members = Members(2, {0, 1})
    job = Job(members, fragments=fragments)
    is_lost, joins = threading.Event(), threading.Event()

    def survivor(strategy):
        training = Training(strategy)
        steps(training, 0, 3)
        assert is_lost.wait(60)
        steps(training, 3, 6)
        joins.set()
        while len(members.up) < 2:  # The successor comes before the third round's exchanges.
            threading.Event().wait(0.01)
        steps(training, 6, 12)
        strategy.synchronize()
        return state_of(training)

    def lost(strategy):
        training = Training(strategy)
        steps(training, 0, 4)

    def successor(strategy):
        assert strategy.steps == 0
        training = Training(strategy)
        steps(training, 0, 1)  # It joins before this step, and goes on from where the other is.
        joined = strategy.steps - 1
        steps(training, joined + 1, 12)
        strategy.synchronize()
        return *state_of(training), joined

    job.start(0, survivor)
    job.start(1, lost)
    while job.threads[1].is_alive():
        job.threads[1].join(0.05)
    is_lost.set()
    assert joins.wait(60)
    job.start(1, successor, "successor")
    found = job.end()
    values, made, joined = found["successor"]
    assert 6 <= joined <= 9
    assert made == found[0][1] == 12
    for value, other in zip(values, found[0][0], strict=True):
        np.testing.assert_array_equal(value, other)


def test_islands_that_begin_with_other_variables_are_all_refused():
    members = Members(2, {0, 1})
    job = Job(members)

    def other(strategy):
        with strategy.scope():
            more = rx.Variable(1.0, name="more")
        with pytest.raises(rx.errors.ValuesMismatchError, match="island 0 has 3 variables"):
            Training(strategy).fit(BATCHES[:2])
        assert more.name == "more"

    def first(strategy):
        with pytest.raises(rx.errors.ValuesMismatchError, match="island 1 has 4 variables"):
            steps(Training(strategy), 0, 3)
        return strategy.steps

    job.start(1, other)
    job.start(0, first)
    assert job.end()[0] == 0


def test_a_synchronization_without_the_others_warns_and_names_them():
    job = Job(Members(3, {0}))

    def alone(strategy):
        training = Training(strategy)
        steps(training, 0, 3)
        with pytest.warns(RuntimeWarning, match=r"without island 1, island 2: they have ended before, or were lost"):
            strategy.synchronize()
        return strategy.steps

    job.start(0, alone)
    assert job.end()[0] == 3
