"""Errors of users' functions on workers arrive as what they were."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import ray.cloudpickle

import replicax as rx
from replicax.errors import ArgumentError, EndOfDataError, RemoteError
from replicax.parameter_server.actors.actor_errors import own_error, raised
from tests.parameter_server.fakes import strategy_of

pytestmark = pytest.mark.usefixtures("fake_ray")


class NeedsTwo(Exception):
    """An error that `pickle` cannot make again: it calls the class with one argument."""

    def __init__(self, what: str, where: str):
        super().__init__(f"{what} at {where}")


class Elsewhere:
    """What can be pickled here, and not unpickled there."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("a_module_that_is_not_there",)

    def __call__(self) -> Any:
        raise AssertionError


def failing(error: BaseException) -> Any:
    def batches() -> Any:
        yield np.float32(1)
        raise error

    return batches


def error_of(dataset_fn: Any) -> tuple[BaseException, BaseException]:
    """Returns what `join` raises, and what `fetch` does."""
    with strategy_of(workers=1) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
        results: list[Any] = []

        def train() -> None:
            for _ in range(3):
                results.append(coordinator.schedule(lambda it: next(it), args=(iterator,)))
            coordinator.join(60)

        with pytest.raises(Exception) as joined:  # noqa: PT011 - the caller looks at it
            train()
        with pytest.raises(Exception) as fetched:  # noqa: PT011 - the caller looks at it
            results[1].fetch(60)
    return joined.value, fetched.value


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", [ValueError, KeyError, FloatingPointError, EndOfDataError])
def test_an_error_keeps_its_type_and_shows_where_it_was_raised(kind):
    for error in error_of(failing(kind("mine"))):
        assert type(error) is kind
        assert isinstance(error.__cause__, RemoteError)
        assert "in batches" in str(error.__cause__)


def test_an_error_of_a_class_of_the_script_keeps_its_type():
    class Mine(Exception):
        pass

    for error in error_of(failing(Mine("my own", 3))):
        assert type(error) is Mine
        assert error.args == ("my own", 3)


def test_an_error_that_cannot_be_sent_is_told_in_words():
    def batches():
        yield np.float32(1)
        raise NeedsTwo("smoke", "the kitchen")

    for error in error_of(batches):
        assert type(error) is RemoteError
        assert error.name == "NeedsTwo"
        assert "smoke at the kitchen" in str(error)
        assert "in batches" in str(error)


def test_a_dataset_function_that_cannot_be_unpickled_is_an_error_of_ours_with_its_cause():
    with strategy_of(workers=1) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(Elsewhere()))
        with pytest.raises(ArgumentError, match="`dataset_fn` cannot be unpickled on worker 0") as caught:
            coordinator.schedule(lambda it: next(it), args=(iterator,)).fetch(60)
    assert type(caught.value) is ArgumentError
    assert type(caught.value.__cause__) is ModuleNotFoundError
    assert "a_module_that_is_not_there" in str(caught.value)


def test_a_cause_travels_with_its_error():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as outer:
        error = ray.cloudpickle.loads(ray.cloudpickle.dumps(raised(outer))).error()
    assert (type(error), type(error.__cause__)) == (ValueError, KeyError)
    assert isinstance(error.__cause__.__cause__, RemoteError)


def test_what_ray_makes_of_an_error_is_undone():
    error = ray.exceptions.RayTaskError("run", "at line 3", KeyError("mine")).as_instanceof_cause()
    found = own_error(error)
    assert type(found) is KeyError
    assert "at line 3" in str(found.__cause__)
    lost = ray.exceptions.ActorDiedError()
    assert own_error(lost) is lost
