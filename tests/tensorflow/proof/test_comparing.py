import math

import numpy as np

from replicax.tensorflow.proof.comparing import first_difference, loss_differences
from replicax.tensorflow.proof.recording import Recording, Snapshot, Tensor

START = np.linspace(-1, 1, 64)
MOVE = np.cos(START)


def recording(losses=(2.0, 1.0), error=0.0, moved=0.01, names=("w",)):
    """A run of two steps that moves each variable; `error` is added in the direction of the move."""

    def tensors(step):
        return tuple(Tensor.of(name, START + step * (moved + error) * MOVE) for name in names)

    initial = tuple(Tensor.of(name, START) for name in names)
    return Recording(tuple(losses), initial, tuple(Snapshot(step, 0, tensors(step)) for step in (1, 2)))


def test_equal_runs_do_not_differ():
    assert first_difference(recording(), recording()) is None
    assert loss_differences(recording(), recording()) == [0.0, 0.0]


def test_the_first_number_is_found_and_named():
    wrong = first_difference(recording(), recording(losses=(2.0, 1.1)))
    assert (wrong.step, wrong.name) == (2, "the loss")
    assert wrong.relative == math.fabs(1.1 - 1.0)
    wrong = first_difference(recording(names=("w", "b")), recording(error=1e-4, names=("w", "b")))
    assert (wrong.step, wrong.name) == (1, "w")
    assert "after step 1" in wrong.detail
    # A loss comes before the variables of its step.
    assert first_difference(recording(), recording(losses=(2.1, 1.0), error=1e-4)).name == "the loss"


def test_a_small_change_of_a_small_update_is_found():
    """Weight decay that is missing changes a weight by less than a millionth."""
    assert first_difference(recording(moved=1e-3), recording(moved=1e-3, error=3e-6)) is not None
    assert first_difference(recording(moved=1e-3), recording(moved=1e-3, error=1e-7)) is None


def test_other_initial_values_other_variables_and_missing_steps_are_found():
    other = recording()._replace(initial=(Tensor.of("w", START + 1e-3),))
    assert first_difference(recording(), other).step == 0
    assert first_difference(recording(names=("w", "b")), recording()).name == "the variables"
    short = recording()._replace(objectives=(2.0,))
    assert first_difference(recording(), short).detail == "TensorFlow made 2 steps, replicax 1."


def test_a_loss_that_is_not_a_number_differs():
    assert first_difference(recording(), recording(losses=(2.0, math.nan))).step == 2
