from __future__ import annotations

import functools

import pytest

import replicax as rx
from replicax.errors import ArgumentError
from replicax.program.call_checks import checked_call


async def awaited(x):
    return x


def generated(x):
    yield x


async def both(x):
    yield x


class Awaited:
    async def __call__(self, x):
        return x

    def generated(self, x):
        yield x


LATER = [awaited, generated, both, functools.partial(awaited), Awaited(), Awaited().generated]


@pytest.mark.parametrize("fn", LATER, ids=["async", "generator", "both", "partial", "object", "method"])
def test_a_function_that_does_not_run_when_called_is_refused(two, fn):
    w = rx.Variable(1.0)
    for call in (
        lambda: two.run(fn, args=(1.0,)),
        lambda: rx.get_strategy().run(fn, args=(1.0,)),
        lambda: rx.function(fn),
        lambda: rx.value_and_grad(fn, [w]),
    ):
        with pytest.raises(ArgumentError, match="ordinary function"):
            call()


@pytest.mark.parametrize("fn", [awaited, generated, both])
def test_so_is_what_such_a_function_has_returned(two, fn):
    w = rx.Variable(1.0)
    for call in (
        lambda: two.run(lambda x: fn(x), args=(1.0,)),
        lambda: rx.function(lambda: fn(1.0))(),
        lambda: rx.grad(lambda: fn(1.0), [w])(),
    ):
        with pytest.raises(ArgumentError, match="nothing has run"):
            call()


def test_ordinary_functions_of_all_kinds_pass():
    class Step:
        def __call__(self, x):
            return x

    for fn in (lambda x: x, abs, Step(), Step, functools.partial(pow, 2), rx.function(lambda x: x)):
        assert checked_call("fn", fn, [1], None) == ((1,), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [((), [1], "`kwargs`"), ((), {1: 2}, "`kwargs`"), (3, None, "`args`"), ("ab", {}, "`args`")],
)
def test_arguments_are_a_list_and_a_dict(two, args, kwargs, said):
    calls = [
        lambda: two.run(lambda *args: 1, args, kwargs),
        lambda: two.update(1, lambda *args: 1, args, kwargs),
        lambda: two.run(lambda: rx.get_replica_context().merge_call(lambda *args: 1, args, kwargs)),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=said):
            call()


def test_arguments_that_a_function_does_not_take_are_an_error_that_shows_how_to_pass_a_tuple(two):
    batch = (1.0, 2.0)
    w = rx.Variable(1.0)
    for call in (
        lambda: two.run(lambda batch: batch, batch),
        lambda: two.run(rx.function(lambda batch: batch), batch),
        lambda: two.run(lambda batch: batch, (), {"labels": 1.0}),
        lambda: two.run(lambda batch: batch),
        lambda: rx.get_strategy().run(lambda batch: batch, batch),
        lambda: two.update(w, lambda v: v, batch),
        lambda: two.run(lambda: rx.get_replica_context().merge_call(lambda strategy: None, batch)),
        lambda: rx.get_strategy().update(w, lambda v: v, batch),
        lambda: rx.notebook.launch(lambda batch: batch, batch),
    ):
        with pytest.raises(ArgumentError, match=r"takes \(.*\), and was called with \(.*args=\(batch,\)"):
            call()


def test_an_error_of_the_function_itself_stays(two):
    with pytest.raises(TypeError, match="takes 1 positional") as caught:
        two.run(lambda x: (lambda y: y)(x, x), args=(1.0,))
    assert not isinstance(caught.value, ArgumentError)
