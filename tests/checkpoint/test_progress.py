"""The step of a training between its saves."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint.manager import Progress
from replicax.errors import ElasticError


def optimizer_after(updates: int) -> keras.optimizers.Optimizer:
    made = keras.optimizers.SGD()
    made.build([])
    made.iterations.assign(updates)
    return made


def test_a_step_counter_tells_the_step():
    counter = rx.Variable(5, name="counter")
    progress = Progress(rx.Checkpoint(optimizer=optimizer_after(3)), counter)
    counter.assign(9)
    assert progress.get_state() == {"step": 9}


def test_a_variable_called_step_does(tmp_path):
    step = rx.Variable(4, name="anything")
    progress = Progress(rx.Checkpoint(step=step), None)
    assert progress.get_state() == {"step": 4}


def test_updates_since_the_last_note_count():
    optimizer = optimizer_after(2)
    progress = Progress(rx.Checkpoint(optimizer=optimizer), None)
    progress.note(10)  # A training may count otherwise than its optimizer.
    optimizer.iterations.assign(5)
    assert progress.get_state() == {"step": 13}


def test_a_newcomer_goes_on_from_the_others_step():
    theirs, own = optimizer_after(6), optimizer_after(0)
    others = Progress(rx.Checkpoint(optimizer=theirs), None)
    others.note(100)
    theirs.iterations.assign(8)
    newcomer = Progress(rx.Checkpoint(optimizer=own), None)
    own.iterations.assign(8)  # It gets the variables before.
    newcomer.set_state(others.get_state())
    assert newcomer.step_of_others(Path("x")) == 102
    own.iterations.assign(9)
    assert newcomer.get_state() == {"step": 103}


def test_where_nothing_counts_the_error_says_what_to_add():
    others = Progress(rx.Checkpoint(w=np.zeros(2)), None)
    newcomer = Progress(rx.Checkpoint(w=np.zeros(2)), None)
    newcomer.set_state(others.get_state())
    with pytest.raises(ElasticError, match="step_counter"):
        newcomer.step_of_others(Path("folder"))
