"""What a job of many processes costs: counted at n and 2n processes, and never more than twice as much at 2n."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from replicax.cluster import reachability
from replicax.cluster.rendezvous import meet
from replicax.data import InputWorkers
from replicax.data.row_exchange import RowAssignment
from replicax.data.worker_channel import PassNumbers, WorkerChannel
from replicax.group.health.client import Client
from replicax.group.health.diagnosis import Limits, ProblemKind, WorkerObservation, diagnose
from replicax.group.health.monitor import Monitor
from replicax.group.health.peers import History, Peer
from replicax.group.health.status import Status
from tests.cluster.fake_store import FakeStore


class CountingStore(FakeStore):
    """Counts messages and bytes between the processes and the store."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = self.bytes = 0

    def _count(self, value: bytes | None) -> None:
        with self.changed:
            self.messages, self.bytes = self.messages + 1, self.bytes + len(value or b"")

    def put(self, key: str, value: bytes) -> None:
        self._count(value)
        super().put(key, value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        value = super().get(key, timeout_s)
        self._count(value)
        return value

    def delete(self, key: str) -> None:
        self._count(None)
        super().delete(key)


def lines_of(function: Callable[[], object]) -> int:
    """Returns how many lines of Python, and turns of loops in comprehensions, a call takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def together(count: int, run: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_messages_of_a_round_of_the_workers_data():
    def counted(count: int) -> tuple[int, int]:
        store, names = CountingStore(), tuple(f"worker:{i}" for i in range(count))

        def worker(index: int) -> list[list[bytes]]:
            workers = InputWorkers(index, names, (1,) * count, store)
            channel = WorkerChannel(workers, 60.0, PassNumbers())
            rounds = [channel.exchange(b'{"notes":[[32,"0f"]],"end":false}') for _ in range(5)]
            channel.close()
            return rounds

        assert together(count, worker) == [[[b'{"notes":[[32,"0f"]],"end":false}'] * count] * 5] * count
        assert len(store.values) <= 2 * count  # What all have read is deleted.
        return store.messages, store.bytes

    (messages, bytes_), (twice_messages, twice_bytes) = counted(20), counted(40)
    assert twice_messages <= 2.05 * messages
    assert twice_bytes <= 2.2 * bytes_


def test_connections_that_are_tried_before_a_job_begins(monkeypatch: pytest.MonkeyPatch):
    tried: list[int] = []

    class Connected:
        def close(self) -> None: ...

    def connect(address: tuple[str, int], timeout: float) -> Connected:
        tried.append(address[1])
        return Connected()

    monkeypatch.setattr(reachability.socket, "create_connection", connect)

    def counted(count: int) -> int:
        store, names = FakeStore(), [f"worker:{i}" for i in range(count)]
        tried.clear()
        together(count, lambda i: reachability.agree_on_addresses(i, names, "localhost:1", "127.0.0.1", 60.0, store, 0))
        each = [tried.count(port) for port in set(tried)]
        assert (len(each), min(each)) == (count, max(each))  # Each is tried by as many others.
        return len(tried)

    assert counted(5) == 20  # all
    assert counted(100) <= 2.0 * counted(70)


def test_what_the_rendezvous_tells_each_process_of_another():
    sent = {"health address": ["10.0.0.1", 45678], "same version of JAX": "0.10.2", "same stall_timeout": 300.0}
    with reachability.socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    own = {"health address": ["10.0.0.1", 45678]}
    assert together(3, lambda i: meet(address, i, ["a", "b", "c"], sent, 60.0)) == [[own] * 3] * 3


class CountedStatus(Status):
    """Counts how often it is looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        CountedStatus.looks += 1
        return super().__getattribute__(name)


def test_looks_at_the_others_for_a_diagnosis():
    def counted(count: int) -> int:
        waits = CountedStatus("step", 60.0, 7, 6, 60.0, "step", "f", quiet=60.0)
        is_late = CountedStatus("callback", 60.0, 6, 6)
        workers = [WorkerObservation(f"worker:{i}", "", is_late if i % 2 else waits) for i in range(count)]
        CountedStatus.looks = 0
        found = diagnose(workers, Limits(10.0))
        assert found is not None
        assert (found.kind, len(found.culprits)) == (ProblemKind.ABSENT, count // 2)
        return CountedStatus.looks

    assert counted(400) <= 2.05 * counted(200)


def test_looks_at_the_others_at_the_end_of_a_script(monkeypatch: pytest.MonkeyPatch):
    looks = 0
    seen = History.seen

    def count_and_see(self: History, time: float) -> WorkerObservation:
        nonlocal looks
        looks += 1
        return seen(self, time)

    monkeypatch.setattr(History, "seen", count_and_see)

    def counted(count: int) -> int:
        nonlocal looks
        peers = [Peer(i, Client("127.0.0.1", 9, "t"), History(f"worker:{i}", "", 0.0)) for i in range(1, count)]
        for peer in peers:
            peer.history.answered(Status("step"), time.monotonic())
        monitor, looks = Monitor(0, "worker:0", "", peers, Limits(5.0)), 0
        waiting = threading.Thread(target=monitor._wait_for_ends)
        waiting.start()
        for peer in peers:
            monitor.on_goodbye({"index": peer.index, "ended": "done", "order": [0, 0]})
            time.sleep(0.0005)  # The thread that waits looks again.
        waiting.join(20)
        assert not waiting.is_alive()
        return looks

    assert counted(200) <= 6 * 200


def test_work_for_the_rows_that_workers_send_each_other():
    def counted(count: int) -> int:
        workers = InputWorkers(0, tuple(f"worker:{i}" for i in range(count)), (1,) * count)
        assignment = RowAssignment(workers, (3,) * count, 3 * count)

        def all_pairs() -> None:
            for worker in range(count):
                assignment.common(0, worker)
                assignment.common(worker, 0)

        return lines_of(all_pairs)

    assert counted(200) <= 2.1 * counted(100)
