"""`rx.PreemptionCheckpointHandler` in one process; with workers see tests/multiprocess/test_checkpoints.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import replicax as rx
from replicax.errors import ArgumentError, ClusterError


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def run_for_20_s(handler: rx.PreemptionCheckpointHandler, step: Any) -> None:
    begin = time.monotonic()
    while time.monotonic() < begin + 20:
        handler.run(step)


def train(directory: Path, total: int, terminate_in: int | None = None, **config: Any) -> float:
    """Returns the sum of the steps' numbers, after `total` steps."""
    value = rx.Variable(0.0)
    checkpoint = rx.Checkpoint(value=value)
    with rx.PreemptionCheckpointHandler(None, checkpoint, directory, rx.TerminationConfig(**config)) as handler:
        while handler.total_run_calls < total:
            number = handler.total_run_calls + 1

            def step(number: int = number) -> None:
                if number == terminate_in:
                    terminate()
                value.assign_add(number)

            handler.run(step)
    return float(value.numpy())


def test_sigterm_saves_after_the_step_and_exits_with_resume(tmp_path: Path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as exit_:
        train(tmp_path, 10, terminate_in=4)
    assert exit_.value.code == 75
    assert signal.getsignal(signal.SIGTERM) is before
    assert rx.CheckpointManager(tmp_path, objects={"value": rx.Variable(0.0)}).all_steps() == [4]
    assert train(tmp_path, 10) == sum(range(11))
    assert signal.getsignal(signal.SIGTERM) is before


def test_calls_are_counted_across_restarts(tmp_path: Path):
    for stop in (3, 5):
        with pytest.raises(SystemExit):
            train(tmp_path, 8, terminate_in=stop)
    assert train(tmp_path, 8) == sum(range(9))


def test_a_watcher_function_notices_too(tmp_path: Path):
    told = threading.Event()
    threading.Timer(0.3, told.set).start()
    value = rx.Variable(0)
    config = rx.TerminationConfig(termination_watcher_fn=told.is_set)
    with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(value=value), tmp_path, config) as handler:
        begin = time.monotonic()
        with pytest.raises(SystemExit):
            run_for_20_s(handler, lambda: time.sleep(0.01))
    assert time.monotonic() < begin + 10


def test_a_watcher_function_that_raises_is_asked_again_and_sigterm_still_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def watcher() -> bool:
        raise OSError("no metadata server")

    config = rx.TerminationConfig(termination_watcher_fn=watcher)
    checkpoint = rx.Checkpoint(value=rx.Variable(0))
    with rx.PreemptionCheckpointHandler(None, checkpoint, tmp_path, config) as handler:
        time.sleep(1.5)
        terminate()
        with pytest.raises(SystemExit):
            run_for_20_s(handler, lambda: time.sleep(0.01))
    assert caplog.text.count("no metadata server; it is asked again") == 1


def test_exit_and_save_functions(tmp_path: Path):
    calls: list[Any] = []
    config = rx.TerminationConfig(exit_fn=lambda: calls.append("exit"), save_fn=lambda *a, **k: calls.append((a, k)))
    with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(v=rx.Variable(0)), tmp_path, config) as handler:
        handler.save_checkpoint_if_preempted("x", n=1)
        assert calls == []
        terminate()
        handler.save_checkpoint_if_preempted("x", n=2)
        handler.save_checkpoint_if_preempted("x", n=3)
        assert handler.total_run_calls == 3
    assert calls == [(("x",), {"n": 2}), "exit"]
    assert not list(tmp_path.iterdir())


def test_a_grace_period_is_used_for_training(tmp_path: Path):
    value = rx.Variable(0)
    config = rx.TerminationConfig(grace_period=3.0)
    manager = rx.CheckpointManager(tmp_path, max_to_keep=None, objects={"value": value})

    def step() -> None:
        value.assign_add(1)
        time.sleep(0.02)

    with rx.PreemptionCheckpointHandler(None, manager, termination_config=config) as handler:
        terminate()
        with pytest.raises(SystemExit):
            run_for_20_s(handler, step)
    first, last = manager.all_steps()
    assert first == 0
    assert last > 1
    assert int(value.numpy()) == last


def test_the_steps_of_a_manager_may_be_the_programs_own(tmp_path: Path):
    value = rx.Variable(0)
    manager = rx.CheckpointManager(tmp_path, objects={"value": value})
    with rx.PreemptionCheckpointHandler(None, manager) as handler:
        for step in (100, 200):
            with handler.watch_preemption_scope():
                value.assign(step)
            manager.save(step)
        terminate()
        with pytest.raises(SystemExit):
            handler.save_checkpoint_if_preempted(300)
    manager = rx.CheckpointManager(tmp_path, objects={"value": value})
    with rx.PreemptionCheckpointHandler(None, manager) as handler:
        assert (manager.latest_step(), handler.total_run_calls) == (300, 3)


def test_a_check_costs_next_to_nothing(tmp_path: Path):
    with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(v=rx.Variable(0)), tmp_path) as handler:
        begin = time.perf_counter()
        for _ in range(10_000):
            handler.run(int)
        assert (time.perf_counter() - begin) / 10_000 < 100e-6


def test_bad_arguments(tmp_path: Path):
    checkpoint = rx.Checkpoint(v=rx.Variable(0))
    manager = rx.CheckpointManager(tmp_path, checkpoint=checkpoint)
    with pytest.raises(ArgumentError, match="checkpoint_dir"):
        rx.PreemptionCheckpointHandler(None, checkpoint)
    with pytest.raises(ArgumentError, match="leave `checkpoint_dir` out"):
        rx.PreemptionCheckpointHandler(None, manager, tmp_path)
    with pytest.raises(ArgumentError, match="got 3"):
        rx.PreemptionCheckpointHandler(None, 3, tmp_path)
    with pytest.raises(ArgumentError, match="grace_period"):
        rx.TerminationConfig(grace_period=-1)
    with pytest.raises(ArgumentError, match="exit_fn"):
        rx.TerminationConfig(exit_fn=3)


def test_parameter_servers_are_refused(tmp_path: Path):
    class Resolver:
        def cluster_spec(self) -> Any:
            return rx_spec({"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]})

    from replicax.cluster import ClusterSpec as rx_spec

    with pytest.raises(ClusterError, match="parameter servers"):
        rx.PreemptionCheckpointHandler(Resolver(), rx.Checkpoint(v=rx.Variable(0)), tmp_path)
