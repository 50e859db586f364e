from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from replicax import errors
from replicax.errors import ReplicaDivergenceError, ReplicaxError
from tests.each import each

EVERY_ERROR = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, ReplicaxError)]


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_every_error_survives_the_way_to_another_process(again):
    def check(error_class):
        error = error_class("dense/kernel")
        copied = again(error)
        assert type(copied) is error_class
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)

    each(EVERY_ERROR, check)


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("DeviceError", ValueError),
        ("ContextError", RuntimeError),
        ("StrategyMismatchError", RuntimeError),
        ("StrategyMismatchError", errors.ContextError),
        ("ArgumentError", TypeError),
        ("ArgumentError", ValueError),
        ("ReduceError", ValueError),
        ("ReplicaShapeError", ValueError),
        ("BatchError", ValueError),
        ("VariableError", ValueError),
        ("ProgramError", RuntimeError),
        ("ReplicaDivergenceError", ValueError),
    ],
)
def test_handlers_of_built_in_exceptions_catch_ours(name, builtin):
    assert issubclass(getattr(errors, name), builtin)


def test_every_error_says_what_it_is_about():
    assert [error for error in EVERY_ERROR if not inspect.getdoc(error)] == []


def test_divergence_names_the_variable_and_the_ways_out():
    error = ReplicaDivergenceError("dense/kernel")
    assert error.variable == "dense/kernel"
    for hint in ("'dense/kernel'", "value_and_grad", "all_reduce", "aggregation"):
        assert hint in str(error)


def test_a_traced_value_is_a_program_error():
    assert issubclass(errors.TracedValueError, errors.ProgramError)
