"""`rx.testing`: functions in real processes, what a failure shows, and what is left behind: nothing."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

import replicax as rx
from replicax.errors import ArgumentError, DeviceError, WorkersFailedError
from replicax.testing import distributed, run_workers, simulated_devices
from tests.testing import bodies

pytestmark = pytest.mark.multiprocess


def test_each_worker_has_its_place_devices_and_arguments(tmp_path: Path):
    results = run_workers(bodies.who_am_i, 2, 3, factor=10, path=tmp_path, pair=(1, 2))
    assert results == [{"index": index, "devices": 3, "pair": "tuple"} for index in (0, 10)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.txt", "1.txt"]


def test_a_failure_ends_all_and_shows_what_each_printed(tmp_path: Path):
    started = time.monotonic()
    with pytest.raises(WorkersFailedError, match=r"^fail_in_worker failed first in worker 1: exit code 1") as caught:
        run_workers(bodies.fail_in_worker, 2, timeout=100, worker=1, folder=tmp_path)
    assert time.monotonic() - started < 60
    assert isinstance(caught.value, AssertionError)
    assert "this is worker 0" in caught.value.logs["worker 0"]
    assert "ValueError: on purpose" in caught.value.logs["worker 1"]
    assert not caught.value.timed_out


def test_a_proxy_does_not_stand_between_workers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert run_workers(bodies.workers_of_a_strategy, 2, timeout=100) == [2, 2]


def test_exit_codes_count_and_silence_is_told():
    with pytest.raises(WorkersFailedError, match=r"exit code 3\.[^!]*it printed nothing"):
        run_workers(bodies.exit_silently, 1)


def test_when_the_time_is_up_it_shows_all_stacks_and_leaves_nothing():
    with pytest.raises(WorkersFailedError, match=r"was not done after 12 s") as caught:
        run_workers(bodies.sleep_for_ever, 2, timeout=12)
    assert caught.value.timed_out
    for log in caught.value.logs.values():
        assert "in where_it_sleeps" in log
        pid = re.search(r"pid (\d+)", log)[1]
        assert not Path("/proc", pid).exists()


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (lambda: None, {}, "write it with `def`"),
        (bodies.coroutine, {}, "write it with `def`"),
        (bodies.who_am_i, {"factor": object()}, "`factor` is a object"),
        (bodies.who_am_i, {"pair": [{"x": {1}}]}, "is a set"),
        (bodies.sleep_for_ever, {"timeout": 0}, "`timeout` must be a positive number of seconds"),
    ],
)
def test_what_cannot_go_to_other_processes(function, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        run_workers(function, **arguments)


def test_the_decorator_needs_its_brackets():
    with pytest.raises(ArgumentError, match="with its brackets"):
        distributed(test_the_decorator_needs_its_brackets)


def test_simulated_devices():
    assert len(simulated_devices(8)) == 8
    with pytest.raises(DeviceError) as caught:
        simulated_devices(3)
    assert "distributed(workers=1, devices=n)" in caught.value.__notes__[0]


@pytest.mark.parametrize("factor", [2])
@distributed(workers=2, devices=2, timeout=100)
def test_a_decorated_test_is_a_cluster(factor: int, tmp_path: Path):
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    assert strategy.num_replicas_in_sync == 2 * factor
    values = strategy.distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
    assert int(strategy.reduce("sum", values, axis=None)) == 0 + 1 + 2 + 3
    tmp_path.joinpath(str(strategy.worker_index)).touch()


class TestInClass:
    @distributed(workers=1)
    def test_a_method_can_be_decorated(self):
        assert "TF_CONFIG" in os.environ


@distributed(workers=1)
def fails() -> None:
    assert 1 + 1 == 3, "no"


def test_a_decorated_test_fails_as_its_body_does():
    with pytest.raises(AssertionError, match="AssertionError: no"):
        fails()
