"""Looking after many peers: the ones that are asked in a look, and the ones that programs are compared with."""

from __future__ import annotations

import time

import pytest

from replicax.group.health.client import in_parallel
from replicax.group.health.diagnosis import Limits
from replicax.group.health.observer import Observer
from replicax.group.health.peers import History, Peer
from replicax.group.health.programs import neighbours
from replicax.group.health.status import Status
from replicax.group.health.traffic import Traffic


class Fake:
    """A client that notes who is asked; those in `dead` refuse."""

    def __init__(self, index: int, asked: list[int], dead: set[int]):
        self.index, self.asked, self.dead, self.closed = index, asked, dead, 0

    def status(self, timeout: float) -> dict[str, object]:
        self.asked.append(self.index)
        if self.index in self.dead:
            raise ConnectionRefusedError
        return vars(Status("idle", quiet=0.0))

    def close(self) -> None:
        self.closed += 1


class Job:
    def __init__(self, count: int, me: int, stall: float = 300.0):
        self.asked: list[int] = []
        self.dead: set[int] = set()
        now = time.monotonic()
        self.peers = [
            Peer(i, Fake(i, self.asked, self.dead), History(f"worker:{i}", "", now)) for i in range(count) if i != me
        ]
        self.observer = Observer(me, "me", "", self.peers, Limits(stall), Traffic(()), time.monotonic)

    def look(self, everybody: bool = False) -> list[int]:
        self.asked.clear()
        self.observer.look(everybody)
        return sorted(self.asked)


@pytest.fixture
def job():
    made = []

    def make(count: int, me: int, stall: float = 300.0) -> Job:
        made.append(Job(count, me, stall))
        return made[-1]

    yield make
    for each in made:
        each.observer.close()


def test_few_peers_are_all_asked_in_each_look(job):
    few = job(40, 3)
    everybody = [i for i in range(40) if i != 3]
    assert few.look() == few.look() == everybody
    assert not few.observer.is_sparse


def test_many_peers_are_asked_in_turns_and_each_worker_begins_with_another(job):
    many = job(200, 100)
    looks = [many.look() for _ in range(4)]
    assert looks[0] == [*range(101, 165)]
    assert {i for look in looks for i in look} == {i for i in range(200) if i != 100}
    assert all(len(look) == 64 for look in looks)
    assert many.look(everybody=True) == [i for i in range(200) if i != 100]
    assert all(peer.client.closed for peer in many.peers)


def test_a_peer_that_does_not_answer_is_asked_in_each_look_until_it_does(job):
    many = job(200, 0)
    many.dead.add(60)
    assert 60 in many.look()
    assert 60 in many.look()
    assert many.observer.workers(Status("idle"))[60].refusals == 2
    many.dead.clear()
    assert 60 in many.look()
    assert 60 not in many.look()


def test_all_are_asked_after_an_error_of_this_worker(job):
    many = job(200, 0)
    many.observer.asks_all = True
    assert len(many.look()) == 199


def test_a_short_limit_asks_more_peers_in_a_look(job):
    assert len(job(200, 0, stall=10.0).look()) == 80


@pytest.mark.parametrize("count", [2, 33, 34, 100, 1000])
def test_neighbours_connect_all_workers(count: int):
    peers = [Peer(i, None, History(str(i), "", 0.0)) for i in range(count)]
    edges = {i: {p.index for p in neighbours(i, [p for p in peers if p.index != i])} for i in range(count)}
    assert all(i in edges[other] for i in edges for other in edges[i])
    reached, front = {0}, {0}
    while front:
        front = set().union(*(edges[i] for i in front)) - reached
        reached |= front
    assert len(reached) == count
    assert max(map(len, edges.values())) <= max(32, 2 * count.bit_length())


def test_many_calls_share_the_threads_and_their_results_keep_their_order():
    assert in_parallel([lambda i=i: i for i in range(1000)], 5.0) == [*range(1000)]


def test_calls_that_fail_or_take_too_long_have_no_result():
    def fails() -> int:
        raise OSError

    assert in_parallel([fails, lambda: time.sleep(5.0), lambda: 3], 0.3) == [None, None, 3]
