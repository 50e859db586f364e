"""Meetings of threads: one of them ends at each point of an exchange, and the others go on."""

import functools
import itertools
import threading
import time

import jax.numpy as jnp
import pytest

from replicax.contracts.group import Incarnation
from replicax.errors import BarrierTimeoutError, ClusterTimeoutError, MeetingError, WorkersDisagreeError
from replicax.group.membership.job_store import JobStore
from tests.group.membership.fakes import Islands

ROUNDS = 3


def operations_of_a_job():
    """Returns how many operations on the store an island makes that nobody disturbs."""
    islands = Islands()
    for index in range(2):
        islands.start(Incarnation(index, 0), ROUNDS)
    meeting = islands.meeting(Incarnation(2, 0))
    islands.train(meeting, ROUNDS)
    islands.join()
    return meeting._job_store.store._store.operations


def test_all_take_the_mean():
    islands = Islands()
    for index in range(3):
        islands.start(Incarnation(index, 0), ROUNDS)
    islands.join()
    assert not islands.errors
    assert list(islands.results.values()) == pytest.approx([ROUNDS * 2.0] * 3)


@pytest.mark.parametrize("after", [False, True])
def test_one_may_end_at_each_operation_and_come_again(after):
    # With a few operations more than an undisturbed island makes: nobody dies, or in the midst of leaving.
    for dies_at in range(1, operations_of_a_job() + 3, 1 + 2 * after):
        islands = Islands()
        islands.start(Incarnation(0, 0), ROUNDS, dies_at=dies_at, after=after)
        for index in (1, 2):
            islands.start(Incarnation(index, 0), ROUNDS)
        islands.threads[Incarnation(0, 0)].join(20)
        if Incarnation(0, 0) not in islands.results and not islands.results:
            islands.start(Incarnation(0, 1), ROUNDS)
        islands.join()
        check(islands, dies_at)


def check(islands, where, least=2):
    # A replacement may come when the others have left.
    errors = [error for error in islands.errors.values() if "have ended" not in str(error)]
    assert not errors, where
    assert len(islands.results) >= least, where
    assert {len(each) for each in islands.journal.values()} == {1}, (where, islands.journal)
    for value in islands.results.values():
        assert value == pytest.approx(islands.expected(), rel=1e-6), where


@pytest.mark.parametrize("dead", [(0,), (1,), (0, 2)])
@pytest.mark.parametrize("at", range(1, ROUNDS + 2))
def test_some_may_end_in_the_midst_of_a_sum(dead, at):
    islands = Islands()
    for index in range(3):
        incarnation = Incarnation(index, 0)
        if index in dead:
            die = functools.partial(end_at, at, itertools.count(1), islands, incarnation)
            islands.start(incarnation, ROUNDS, dies_in_sum=die)
            islands.start(Incarnation(index, 1), ROUNDS, waits_for=incarnation)
        else:
            islands.start(incarnation, ROUNDS)
    islands.join()
    check(islands, (dead, at), least=2 if at <= ROUNDS else 3 - len(dead))  # In the last sum replacements may be late.


def end_at(at, sums, islands, incarnation):
    """Ends an incarnation in one of its sums, as SIGKILL does: it can tell nobody any more."""
    if next(sums) == at:
        JobStore(islands.store).end(incarnation)
        islands.cliques.bury(incarnation)
        raise RuntimeError("killed")


@pytest.mark.parametrize("in_a_sum", [False, True])
def test_a_stopped_island_is_left_out_and_comes_back_with_the_values_of_the_others(in_a_sum):
    islands, sums = Islands(stall_s=1.0), itertools.count()

    def stop():
        if next(sums) == 2:
            islands.stopped.add(Incarnation(0, 0))
        while in_a_sum and Incarnation(0, 0) in islands.stopped:
            time.sleep(0.01)

    islands.start(Incarnation(0, 0), 10_000, dies_in_sum=stop)
    for index in (1, 2):
        islands.start(Incarnation(index, 0), 10_000, wait_s=0.01)
    islands.beat()
    until(lambda: {(1, 2)} in islands.journal.values())
    assert Incarnation(0, 0) in islands.stopped
    islands.stopped.clear()
    until(lambda: max(islands.journal) in islands.done_by(Incarnation(0, 0)))
    islands.last = max(islands.journal) + 5
    islands.join()
    check(islands, "stop")
    assert len(islands.results) == 3
    assert not islands.errors


def until(is_so):
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_different_arrays_are_refused_on_all():
    islands = Islands(2)

    def run(index, shape):
        meeting = islands.meeting(Incarnation(index, 0))
        try:
            meeting.total(meeting.gather("a sum", b""), [jnp.zeros(shape)])
        except BaseException as error:
            islands.errors[Incarnation(index, 0)] = error

    threads = [threading.Thread(target=run, args=(i, shape), daemon=True) for i, shape in enumerate([(2,), (3,)])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in islands.errors.values()] == [WorkersDisagreeError] * 2
    assert "float32[3]" in str(islands.errors[Incarnation(0, 0)])


def test_a_missing_island_is_named():
    islands = Islands(3)
    meeting = islands.meeting(Incarnation(1, 0))
    meeting.patience = meeting.patience._replace(start=0.05, silence=1.0, stall=1.0)
    with pytest.raises(ClusterTimeoutError, match=r"worker:1 waited 0.05 s .* for worker:0, worker:2"):
        meeting.gather("the start", b"")


def first_roll(islands, incarnations):
    meetings = [islands.meeting(incarnation) for incarnation in incarnations]
    threads = [threading.Thread(target=each.gather, args=("the start", b""), daemon=True) for each in meetings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return meetings


def test_a_newcomer_learns_that_nobody_has_the_state():
    islands = Islands(2)
    first_roll(islands, [Incarnation(0, 0), Incarnation(1, 0)])
    for index in range(2):
        JobStore(islands.store).end(Incarnation(index, 0))
    with pytest.raises(MeetingError, match=r"worker:1 came for a round, but all who held the state .* have ended"):
        islands.meeting(Incarnation(1, 1)).gather("a round", b"")


def test_nobody_waits_for_ever_for_those_who_are_silent():
    islands = Islands(2, stall_s=0.1)
    first_roll(islands, [Incarnation(0, 0), Incarnation(1, 0)])
    meeting = islands.meeting(Incarnation(1, 1))
    JobStore(islands.store).end(Incarnation(1, 0))
    with pytest.raises(BarrierTimeoutError, match="a round"):
        meeting.gather("a round", b"")


def test_a_roll_is_used_only_while_it_is_the_last():
    islands = Islands(1)
    meeting = islands.meeting(Incarnation(0, 0))
    first = meeting.gather("a round", b"")
    assert meeting.gather("a round", b"").number == first.number + 1
    with pytest.raises(MeetingError, match="Roll 1 is not the last one"):
        meeting.total(first, [jnp.zeros(2)])


def test_sums_that_always_fail_end_the_job():
    islands = Islands(2)

    def fails():
        raise RuntimeError("no route to host")

    for index in range(2):
        islands.start(Incarnation(index, 0), ROUNDS, dies_in_sum=fails)
    islands.join()
    assert {type(error) for error in islands.errors.values()} == {MeetingError}
    assert "5 sums in a row have failed" in str(islands.errors[Incarnation(0, 0)])


def test_an_error_that_is_none_of_the_network_is_raised_as_it_is():
    islands = Islands(2)

    def fails():
        raise KeyError("mistake")

    islands.start(Incarnation(0, 0), ROUNDS, dies_in_sum=fails)
    islands.start(Incarnation(1, 0), 0)
    islands.threads[Incarnation(0, 0)].join(20)
    assert isinstance(islands.errors[Incarnation(0, 0)], KeyError)
    JobStore(islands.store).end(Incarnation(0, 0))
    islands.join()
