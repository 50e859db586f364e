"""Reading variables in parts, as far as one process shows it. (tests/multiprocess has the rest.)"""

import numpy as np
import pytest

import replicax as rx
from replicax.contracts.group import current_group
from replicax.errors import WorkersDisagreeError
from replicax.variables import whole_values
from replicax.variables.whole_values import as_numpy, lies_in_several_processes


@pytest.fixture
def sharded():
    """A variable of the shape (8, 3) whose rows lie on four devices of this process."""
    strategy = rx.FullyShardedStrategy(4, min_size=1)
    with strategy.scope():
        variable = rx.Variable(np.arange(24, dtype=np.float32).reshape(8, 3), name="w")
    assert not variable.value.is_fully_replicated
    return variable


def exchange_by(monkeypatch, exchanged):
    """Lets the processes exchange their messages by a function."""
    monkeypatch.setattr(current_group(), "messages", exchanged)


def test_what_this_process_has_is_in_one_piece(sharded):
    assert not lies_in_several_processes(sharded.value)
    assert not lies_in_several_processes(None)
    for found in (as_numpy(sharded, sharded.value), sharded.numpy(), np.asarray(sharded), np.array(sharded)):
        np.testing.assert_array_equal(found, np.arange(24).reshape(8, 3))
    assert np.asarray(sharded, dtype=np.float16).dtype == np.float16


@pytest.mark.parametrize("other", ["value of 'b' float32[8,3]", "value of 'w' float32[8, 4]", '{"what": "a loop"}'])
def test_workers_that_read_different_variables_are_told(sharded, monkeypatch, other):
    exchange_by(monkeypatch, lambda message: [message, other.encode()])
    with pytest.raises(WorkersDisagreeError, match="reads of sharded variables"):
        whole_values.whole(sharded, sharded.value)


@pytest.mark.parametrize(("before", "after"), [(b"\n0 steps", b"\n2 steps"), (b"\n0", b"\n7")])
def test_workers_that_read_after_other_steps_are_told(sharded, monkeypatch, before, after):
    monkeypatch.setattr(whole_values, "place_in_program", lambda: (0, 0))
    exchange_by(monkeypatch, lambda message: [message, after.join(message.rsplit(before, 1))])
    with pytest.raises(WorkersDisagreeError, match="after the same steps"):
        whole_values.whole(sharded, sharded.value)


def test_numbers_that_keras_gives_may_differ(sharded, monkeypatch):
    sharded.name = "dense_1/kernel"
    exchange_by(monkeypatch, lambda message: [message, message.replace(b"dense_1/kernel", b"dense_7/kernel")])
    np.testing.assert_array_equal(whole_values.whole(sharded, sharded.value), np.arange(24).reshape(8, 3))
