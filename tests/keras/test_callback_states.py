"""The states of callbacks as one worker tells them to another."""

from __future__ import annotations

import pickle

import keras
import pytest

from replicax.keras.loop_state import set_callback_states, states_of_callbacks


class Counts(keras.callbacks.Callback):
    """A callback of a user's that has a state."""

    def __init__(self, count: int = 0):
        super().__init__()
        self.count = count

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


class Patient(keras.callbacks.EarlyStopping):
    """A subclass of one that is known."""


def handed_over(given: list, own: list) -> None:
    set_callback_states(own, pickle.loads(pickle.dumps(states_of_callbacks(given))))


@pytest.mark.parametrize("kind", [keras.callbacks.EarlyStopping, Patient])
def test_early_stopping_goes_on_waiting(kind):
    given, own = kind("loss", patience=3), kind("loss", patience=3)
    given.best, given.best_epoch, given.wait, given.best_weights = 0.5, 4, 2, [[1.0]]
    handed_over([given], [own])
    assert (own.best, own.best_epoch, own.wait, own.best_weights) == (0.5, 4, 2, [[1.0]])


def test_a_learning_rate_that_is_reduced_on_a_plateau():
    given, own = keras.callbacks.ReduceLROnPlateau("loss"), keras.callbacks.ReduceLROnPlateau("loss")
    given.best, given.wait, given.cooldown_counter = 0.25, 5, 1
    handed_over([given], [own])
    assert (own.best, own.wait, own.cooldown_counter) == (0.25, 5, 1)


def test_a_callback_of_a_users_own_is_asked():
    own = Counts()
    handed_over([Counts(7)], [own])
    assert own.count == 7


def test_others_begin_anew_and_do_not_shift_the_rest():
    given = [keras.callbacks.LambdaCallback(), Counts(3)]
    own = [keras.callbacks.LambdaCallback(), Counts()]
    handed_over(given, own)
    assert list(states_of_callbacks(given)) == ["Counts 0"]
    assert own[1].count == 3
