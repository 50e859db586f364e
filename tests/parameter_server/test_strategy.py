"""A parameter server strategy after its end."""

from __future__ import annotations

import numpy as np
import pytest
import ray

import replicax as rx
from tests.parameter_server import fakes
from tests.parameter_server.fakes import strategy_of


def test_after_close_every_call_is_an_error_and_none_reaches_ray(fake_ray, monkeypatch):
    with strategy_of(1, 1) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            count, other = rx.Variable(0.0), rx.Variable(0.0)
        dataset = coordinator.create_per_worker_dataset(lambda: iter([np.ones(1)]))
        iterator = iter(dataset)
        resource = coordinator.create_per_worker_resource(lambda: np.ones(1))
        result = coordinator.schedule(lambda: count.assign_add(1.0))
        coordinator.join(60)
        assert float(count) == 1.0

    def reached(*args, **kwargs):
        pytest.fail(f"Ray was called: {args} {kwargs}")

    for name in ("remote", "get", "put", "wait", "kill"):
        monkeypatch.setattr(ray, name, reached)
    monkeypatch.setattr(fakes._Actor, "call", reached)

    def make_variable():
        with strategy.scope():
            rx.Variable(0.0)

    calls = {
        "schedule": lambda: coordinator.schedule(lambda: count.assign_add(1.0)),
        "join": lambda: coordinator.join(5),
        "done": coordinator.done,
        "dataset": lambda: coordinator.create_per_worker_dataset(lambda: iter([np.ones(1)])),
        "iterator": lambda: iter(dataset),
        "resource": lambda: coordinator.create_per_worker_resource(lambda: 1.0),
        "resources": lambda: resource.fetch(),
        "spec": lambda: iterator.element_spec,
        "read": lambda: float(count),
        "read what no server had": lambda: float(other),
        "assign": lambda: count.assign(5.0),
        "new variable": make_variable,
    }
    for name, call in calls.items():
        with pytest.raises(rx.errors.ContextError, match="This ParameterServerStrategy is closed"):
            pytest.fail(f"{name} returned {call()!r}")
    assert float(result.fetch(1)) == 1.0
    strategy.close()
    coordinator.close()


def test_a_closed_strategy_gets_no_coordinator(fake_ray):
    with strategy_of(1, 1) as strategy:
        pass
    with pytest.raises(rx.errors.ContextError, match="This ParameterServerStrategy is closed"):
        rx.coordinator.ClusterCoordinator(strategy)
    assert strategy.coordinator is None
