"""How the workers of a job agree where to stop, each played by a thread with a store that they share."""

import functools
import threading
import time
import types

import pytest

from replicax.cluster.patience import Patience
from replicax.contracts.group import Incarnation
from replicax.errors import CheckpointError
from replicax.group import fixed_group
from replicax.group.fixed_group import ServiceBallot
from replicax.group.membership.job_store import JobStore
from replicax.group.membership.preemption import JobBallot, Preemption
from replicax.group.stop_vote import StopVote
from tests.cluster.fake_store import FakeStore
from tests.group.membership.fakes import MemoryStore

LIMIT_S = 20.0
BRIEF = Patience(start=0.1, silence=2.0, end=0.0, again=0.01)


# A fixed job: round by round.


@pytest.fixture
def votes(monkeypatch: pytest.MonkeyPatch):
    store = FakeStore()
    made = []

    def make(silence: float = 10.0, processes: int = 3) -> list[StopVote]:
        for process in range(processes):
            monkeypatch.setattr(fixed_group, "_numbers", iter([7]))
            ballot = functools.partial(ServiceBallot, process, 3, store=store)
            made.append(StopVote(ballot=ballot, patience=BRIEF._replace(silence=silence)))
        return made

    yield make
    for each in made:
        each.close()


def test_workers_agree_on_one_check(votes):
    """Each runs at its own pace, up to a few steps ahead of the others; none may pass the agreed check."""
    workers = votes()
    stopped, last = [0] * 3, [0] * 3

    def work(worker: int) -> None:
        while not workers[worker].check():
            last[worker] += 1
            while last[worker] > min(last) + 5:
                time.sleep(0.001)
            time.sleep(0.001 * (worker + 1))
            if worker == 2 and last[2] == 20:
                workers[2].preempt()
        stopped[worker] = last[worker]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(stopped)) == 1
    assert stopped[0] >= 20
    assert not workers[0].is_final
    for worker in workers:
        worker.renew()
    assert not any(worker.check() for worker in workers)


def test_a_worker_that_does_not_answer_is_named(votes):
    first, _ = votes(silence=0.5, processes=2)
    first.preempt()
    while not first._halted:
        time.sleep(0.01)
    with pytest.raises(CheckpointError, match="nothing was heard of process 2"):
        first.check()


# An elastic job: one leaves, or all stop at once.


class Job:
    """Some workers in threads of this process."""

    def __init__(self, count):
        self.job_store = JobStore(MemoryStore())
        self.incarnations = tuple(Incarnation(index, 0) for index in range(count))
        self.members, self.preemptions, self.stops, self.left = [], [], [], []
        for incarnation in self.incarnations:
            member = types.SimpleNamespace(
                incarnations=self.incarnations,
                incarnation=incarnation,
                calls=0,
                may_leave=True,
                leave_soon=self.left.append,
            )
            self.members.append(member)
            preemption = Preemption(self.job_store, member, BRIEF._replace(silence=0.1))
            self.preemptions.append(preemption)
            self.stops.append(StopVote(ballot=functools.partial(JobBallot, preemption, member), patience=BRIEF))

    def step(self, index):
        """Lets a worker make a call, and check; returns whether it stops."""
        self.members[index].calls += 1
        return self.stops[index].check()

    def close(self):
        for stop, preemption in zip(self.stops, self.preemptions, strict=True):
            stop.close()
            preemption.stop()


@pytest.fixture
def job():
    made = []

    def make(count):
        made.append(Job(count))
        return made[0]

    yield make
    for each in made:
        each.close()


def wait_until(condition):
    event, deadline = threading.Event(), LIMIT_S
    while not condition():
        event.wait(0.01)
        deadline -= 0.01
        assert deadline > 0, "waited in vain"


def test_nothing_stops_while_nobody_ends_the_job(job):
    found = job(2)
    assert not any(found.step(index) for _ in range(5) for index in (0, 1))


def test_one_that_is_preempted_leaves_alone(job):
    found = job(2)
    found.stops[0].preempt()
    wait_until(lambda: found.left)
    assert found.left == ["preempted"]
    assert not found.step(0)
    assert not found.step(1)


def test_all_stop_after_the_same_call_when_the_launcher_ends_them(job):
    found = job(3)
    for index, steps in enumerate((4, 3, 4)):  # Worker 1 has not passed its fourth check yet.
        for _ in range(steps):
            assert not found.step(index)
    found.job_store.tell_ending()
    wait_until(lambda: len(found.job_store.passed()) == 3)
    assert not found.step(1)
    assert [found.step(index) for index in range(3)] == [True] * 3
    assert {member.calls for member in found.members} == {5}


def test_who_is_lost_meanwhile_does_not_count(job):
    found = job(1)
    found.members[0].incarnations = (*found.incarnations, Incarnation(1, 0))
    found.job_store.end(Incarnation(1, 0))
    found.job_store.tell_ending()
    wait_until(lambda: found.stops[0]._agreed.is_set())
    assert found.step(0)


def test_who_says_nothing_is_named(job):
    found = job(1)
    found.members[0].incarnations = (*found.incarnations, Incarnation(1, 0))
    found.job_store.tell_ending()
    wait_until(lambda: found.stops[0]._agreed.is_set())
    with pytest.raises(CheckpointError, match="nothing was heard of worker 1"):
        found.step(0)


def test_a_function_may_tell_of_the_preemption(job):
    found = job(1)
    member = found.members[0]
    ballot = functools.partial(JobBallot, found.preemptions[0], member)
    stop = StopVote(is_preempted=lambda: True, ballot=ballot, patience=BRIEF)
    try:
        wait_until(lambda: found.left)
    finally:
        stop.close()


def test_a_function_that_hangs_holds_nothing_up(job):
    found, over = job(1), threading.Event()
    ballot = functools.partial(JobBallot, found.preemptions[0], found.members[0])
    stop = StopVote(is_preempted=lambda: over.wait(LIMIT_S), ballot=ballot, patience=BRIEF)
    try:
        stop.preempt()
        wait_until(lambda: found.left)
    finally:
        over.set()
        stop.close()


def test_a_function_is_asked_until_it_says_so():
    told, asked = threading.Event(), []

    def is_preempted() -> bool:
        asked.append(told.is_set())
        return told.is_set()

    stop = StopVote(is_preempted, ballot=lambda *_: None, patience=BRIEF._replace(start=0.01))
    try:
        wait_until(lambda: asked)
        told.set()
        wait_until(stop.check)
        stop.renew()  # All have saved, and train on for the grace period.
        time.sleep(0.1)
        assert not stop.check()
        assert asked.count(True) == 1
    finally:
        stop.close()


def test_a_vote_without_an_end_is_an_error():
    class Silent:
        is_final = False

        def position(self, checks):
            return checks

        def call(self, round_):
            pass

        def is_called(self, round_):
            return True

        def cast(self, round_, passed):
            pass

        def result(self, round_):
            over.wait(LIMIT_S)
            return 0

    over = threading.Event()
    stop = StopVote(ballot=lambda *_: Silent(), patience=BRIEF._replace(silence=0.1))
    try:
        wait_until(lambda: stop._halted)
        with pytest.raises(CheckpointError, match=r"could not agree where to stop within 0\.3 s\."):
            stop.check()
    finally:
        over.set()
        stop.close()
