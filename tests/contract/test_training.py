"""Training under every strategy equals training on one device."""

import functools

import pytest

import replicax as rx
from tests.contract.problems import EVEN, UNEVEN, assert_same, train_keras, train_optax
from tests.contract.strategies import ALL
from tests.matrices import matrix

TRAININGS = {"keras": train_keras, "optax": train_optax}
BATCHES = {"even": EVEN, "uneven": UNEVEN}


@functools.cache
def reference(training: str, sizes: tuple[int, ...]):
    return TRAININGS[training](rx.OneDeviceStrategy("cpu:0"), sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "training", "batches"), matrix(ALL, TRAININGS, BATCHES))
def test_twenty_adam_steps_equal_one_device(strategy, training, batches):
    sizes = BATCHES[batches]
    assert_same(TRAININGS[training](ALL[strategy](), sizes), reference(training, sizes))
