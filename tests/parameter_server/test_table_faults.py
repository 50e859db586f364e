"""Tables, and workers that are lost between their pull and the last answer to their push: nothing is applied twice."""

from __future__ import annotations

import numpy as np
import pytest

import replicax as rx
from replicax.parameter_server.actors.growing_rows import USES
from replicax.parameter_server.actors.server_handles import ServerHandles
from tests.parameter_server import fakes
from tests.parameter_server.compiling.test_marked_tables import OPTIMIZERS, ByHand
from tests.parameter_server.test_growing_tables import Growing, batch

STEPS = [batch([1, 2, 10, 50], 0), batch([1, 7, 9, 50], 1), batch([2, 7, 77, 78], 2)]


def trained(kind, fault=None, monkeypatch=None):
    """Returns the values after three steps, in the second of which the worker is lost."""
    with fakes.strategy_of(2, 2, max_staleness=0) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            tables = kind(OPTIMIZERS["adagrad"])
        coordinator.schedule(tables.step, args=STEPS[0]).fetch()
        lost = []
        if fault is not None:
            push = ServerHandles.push

            def pushed(self, pushes):
                if not lost:
                    lost.append(fakes._own.actor)
                    push(self, fault(dict(pushes)))
                    lost[0].kill()
                    raise RuntimeError("Nobody hears this: the worker is gone.")
                lost.append("another one")
                return push(self, pushes)

            monkeypatch.setattr(ServerHandles, "push", pushed)
        for step in STEPS[1:]:
            coordinator.schedule(tables.step, args=step).fetch()
        if fault is not None:
            assert len(lost) == 3  # The second step was made twice.
        index = np.asarray(tables.index) if hasattr(tables, "index") else np.zeros((1, 4))
        return [*tables.values(), np.asarray(tables.steps), index[:, USES]]


FAULTS = {
    "before it pushes": lambda pushes: {},
    "when one server has applied it": lambda pushes: dict([min(pushes.items())]),
    "when both have": lambda pushes: pushes,
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", [ByHand, Growing], ids=["fixed", "growing"])
def test_a_step_whose_worker_is_lost_is_applied_once(fake_ray, monkeypatch, kind):
    wanted = trained(kind)
    for name, fault in FAULTS.items():
        with monkeypatch.context() as patch:
            got = trained(kind, fault, patch)
        for mine, his in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine, his, err_msg=name)
