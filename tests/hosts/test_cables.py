"""Cables that are cut, mended, half broken or slow: what is lost is named in time, and what is slow is let be."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from replicax.errors import ExitCode
from tests.hosts.conftest import MakeLan
from tests.hosts.host import Host, Process
from tests.hosts.training import by_name, check_trained, start_workers

pytestmark = [pytest.mark.nightly, pytest.mark.multiprocess, pytest.mark.slow]
STALL_S = 4.0
SECONDS_TO_END = 20.0  # beyond that; most of it for a busy machine
FOREVER = 10_000

FAULTS: dict[str, Callable[[Host], None]] = {
    "cut": lambda host: host.cable.cut(),
    "silent": lambda host: host.cable.lose(),
    "nothing arrives": lambda host: host.cable.lose(from_host=False),
    "nothing leaves": lambda host: host.cable.lose(to_host=False),
    "off": lambda host: host.off(),
}


def check_noticed(worker: Process, since: float, *names: str) -> None:
    """A worker has ended in time, and its report blames those workers."""
    code = worker.wait(STALL_S + SECONDS_TO_END)
    took = time.monotonic() - since
    assert code in (ExitCode.STALLED, ExitCode.PEER_LOST), worker.log
    assert took >= STALL_S - 1.0 or code == ExitCode.PEER_LOST, worker.log
    for name in names:
        assert re.search(rf"{name} \([a-z]+:2222\).* (does not answer|is dead|has ended)", worker.log), worker.log


@pytest.mark.parametrize(
    "fault", ["cut", "nothing arrives", pytest.param("nothing leaves", marks=pytest.mark.nightly), "off"]
)
def test_a_host_that_is_lost_is_noticed_and_named(make_lan: MakeLan, fault: str):
    lan = make_lan("alpha", "beta")
    workers = start_workers(lan, by_name(lan), steps=FOREVER, pause=0.05, stall_timeout=STALL_S)
    workers[1].wait_for("step 5 ")
    since = time.monotonic()
    FAULTS[fault](lan.hosts[1])
    check_noticed(workers[0], since, "worker:1")
    if fault != "off":
        check_noticed(workers[1], since, "worker:0")


@pytest.mark.parametrize("lost", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_one_of_three(make_lan: MakeLan, lost: int):
    lan = make_lan("alpha", "beta", "gamma")
    workers = start_workers(lan, by_name(lan), steps=FOREVER, pause=0.05, stall_timeout=STALL_S)
    workers[1].wait_for("step 5 ")
    since = time.monotonic()
    lan.hosts[lost].cable.lose()
    for i in range(3):
        check_noticed(workers[i], since, *([f"worker:{lost}"] if i != lost else []))


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        ("cut", 3.0),
        pytest.param("nothing arrives", 3.0, marks=pytest.mark.nightly),
        pytest.param("silent", 24.0, id="gRPC gives up"),
    ],
)
def test_mended_in_time(make_lan: MakeLan, fault: str, seconds: float):
    lan = make_lan("alpha", "beta")
    workers = start_workers(lan, by_name(lan), steps=40, pause=0.05, stall_timeout=90)
    workers[1].wait_for("step 5 ")
    FAULTS[fault](lan.hosts[1])
    time.sleep(seconds)
    lan.hosts[1].cable.mend()
    check_trained(workers, 40)


def test_a_slow_link_is_no_fault(make_lan: MakeLan):
    lan = make_lan("alpha", "beta")
    for host in lan.hosts:
        host.cable.slow(delay_s=0.05, bytes_per_s=2e6)
    start = time.monotonic()
    workers = start_workers(lan, by_name(lan), steps=6, floats=1_000_000, stall_timeout=8)
    check_trained(workers, 6)
    assert time.monotonic() - start > 6 * 2  # 4 MB a step: 2 s and more
    for worker in workers:
        assert "replicax: the job" not in worker.log, worker.log


def test_answers_that_become_slow_are_no_silence(make_lan: MakeLan):
    lan = make_lan("alpha", "beta")
    workers = start_workers(lan, by_name(lan), steps=9, pause=0.5, stall_timeout=12)
    workers[1].wait_for("step 1 ")
    start = time.monotonic()
    for host in lan.hosts:
        host.cable.slow(delay_s=0.7, bytes_per_s=0.0)  # There and back: longer than a second.
    check_trained(workers, 9)
    assert time.monotonic() - start > 12, "It has not been slow for long enough."
    for worker in workers:
        assert "replicax: the job" not in worker.log, worker.log
