"""What a user sees of an error in a step: few lines, the own code, and what went wrong."""

from __future__ import annotations

import math
import os
import pathlib
import subprocess
import sys
import traceback

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax._src import core as jax_core

import replicax as rx
import replicax.context as context
from replicax.values.tracebacks import entry_point

MOST_LINES = 20 if sys.version_info < (3, 13) else 22  # which underlines what called, too
ROWS = np.ones((4, 2), np.float32)
PLACES = [str(pathlib.Path(module.__file__).parent) + os.sep for module in (rx, jax, keras)]


class Mistakes:
    """Steps with a mistake in one line each."""

    def __init__(self, strategy):
        with strategy.scope():
            self.model = keras.Sequential([keras.layers.Dense(3)])
            self.model.build((None, 2))
            self.total = rx.Variable(0.0, name="total")

    def wrong_shape(self, rows):
        return self.model(rows) @ jnp.ones((5, 5))  # here

    def wrong_input(self, rows):
        return self.model(rows[:, :1])  # here

    def python_error(self, rows):
        return {}["key"] + rows  # here

    def divergence(self, rows):
        self.total.assign(jnp.sum(rows))  # here
        return rows

    def traced_value(self, rows):
        return 1.0 if jnp.sum(rows) > 0 else 2.0  # here


MISTAKES = {
    "wrong_shape": (TypeError, "contracting dimensions"),
    "wrong_input": (ValueError, "expected axis -1"),
    "python_error": (KeyError, "key"),
    "divergence": (rx.ReplicaDivergenceError, "'total' is mirrored"),
    "traced_value": (rx.errors.TracedValueError, "jnp.where"),
}


def with_gradient(mistakes, step):
    return lambda rows: rx.value_and_grad(lambda: jnp.sum(step(rows)), mistakes.model.trainable_variables)()


CALLS = {
    "run": lambda mistakes, strategy, step: lambda rows: strategy.run(step, args=(rows,)),
    "function": lambda mistakes, strategy, step: rx.function(lambda rows: strategy.run(step, args=(rows,))),
    "nested functions": lambda mistakes, strategy, step: rx.function(
        lambda rows: rx.function(lambda rows: strategy.run(rx.function(step), args=(rows,)))(rows)
    ),
    "gradient": lambda mistakes, strategy, step: lambda rows: strategy.run(with_gradient(mistakes, step), args=(rows,)),
    "gradient alone": lambda mistakes, strategy, step: with_gradient(mistakes, step),
}


def printed(error):
    return "".join(traceback.format_exception(error))


@pytest.fixture
def two(mirrored):
    return mirrored(2)


def check(error, text):
    lines = printed(error).splitlines()
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert any(text in line for line in lines)
    assert any("# here" in line for line in lines)
    assert "REPLICAX_TRACEBACK=full" in lines[-1]
    assert not [line for line in lines if any(f'File "{place}' in line for place in PLACES)]


# Outside of a replica nothing differs, and outside of a program every number is known.
CASES = [
    (mistake, call)
    for mistake in MISTAKES
    for call in CALLS
    if call != "gradient alone" or mistake not in ("divergence", "traced_value")
]


@pytest.mark.parametrize(("mistake", "call"), CASES)
def test_a_mistake_in_a_step_is_shown_in_few_lines(two, mistake, call):
    mistakes = Mistakes(two)
    (rows,) = two.distribute_dataset([ROWS])
    kind, text = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        CALLS[call](mistakes, two, getattr(mistakes, mistake))(ROWS if call == "gradient alone" else rows)
    assert type(caught.value) is kind
    check(caught.value, text)


@pytest.mark.parametrize("loop", ["fit", "evaluate", "train_on_batch"])
def test_a_mistake_in_a_keras_step_is_shown_in_few_lines(two, loop):
    class Mistaken(keras.Sequential):
        def compute_loss(self, *args, **kwargs):
            return {}["key"]  # here

    with two.scope():
        model = Mistaken([keras.layers.Dense(1)])
        model.compile("adam", "mse")
    with pytest.raises(KeyError) as caught:
        getattr(model, loop)(ROWS, ROWS[:, :1])
    check(caught.value, "key")


def test_a_layer_that_fails_in_fit_names_what_it_was_given_and_shows_no_wrapper(two):
    with two.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    with pytest.raises(ValueError, match="expected axis -1") as caught:
        model.fit(ROWS, ROWS[:, :1])  # here
    check(caught.value, "inputs=jnp.ndarray(shape=(4, 2), dtype=float32)")
    assert "mask=" not in printed(caught.value)


SAVES = {
    "save": lambda manager: manager.save("soon"),
    "no folder": lambda manager: manager.save(1),
    "in the background": lambda manager: (manager.save(2), manager.wait_until_finished()),
    "restore": lambda manager: manager.restore(),
    "write": lambda manager: manager.checkpoint.write(manager.directory / "one"),
    "checkpoint.save": lambda manager: manager.checkpoint.save(str(manager.directory / "one")),
    "read": lambda manager: manager.checkpoint.read(manager.directory / "one"),
}


@pytest.mark.parametrize("call", SAVES)
def test_a_checkpoint_that_fails_is_shown_in_few_lines(tmp_path, call):
    manager = rx.CheckpointManager(tmp_path / "file", objects={"w": rx.Variable(0.0)}, async_="background" in call)
    (tmp_path / "file").touch()  # What should be its folder.

    def fails():
        SAVES[call](manager)  # here

    with pytest.raises((rx.errors.ArgumentError, rx.errors.CheckpointError)) as caught:
        fails()
    lines = printed(caught.value).splitlines()
    assert not [line for line in lines if f'File "{PLACES[0]}' in line], "\n".join(lines)
    assert "REPLICAX_TRACEBACK=full" in lines[-1]


def test_the_cause_of_an_error_stays_and_is_shown_in_few_lines(two):
    def step():
        try:
            {}["cause"]
        except KeyError as error:
            raise ValueError("effect") from error  # here

    with pytest.raises(ValueError, match="effect") as caught:
        two.run(step)
    assert isinstance(caught.value.__cause__, KeyError)
    check(caught.value, "KeyError: 'cause'")


def test_where_replicax_itself_fails_its_own_line_is_shown(two):
    with pytest.raises(TypeError, match="real number") as caught:
        two.run(math.sin, args=(object(),))  # It has no frame of its own.
    assert "/replicax/program/" in printed(caught.value)
    assert len(printed(caught.value).splitlines()) <= MOST_LINES


def test_an_error_that_follows_from_itself_ends():
    @entry_point
    def failing():
        first, second = ValueError("first"), ValueError("second")
        first.__context__, second.__context__ = second, first
        raise first

    with pytest.raises(ValueError, match="first"):
        failing()


def test_an_interrupt_between_a_context_and_its_end_leaves_nothing_behind(two):
    @entry_point
    def interrupted():
        context.replace(context.Context(strategy=two))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not rx.has_strategy()


SCRIPT = """
import jax, keras, replicax as rx

def step():
    keras.layers.Dense(1)(undefined)

rx.OneDeviceStrategy("cpu:0").run(step)
"""


def test_all_frames_are_shown_if_one_asks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    lines = {}
    for asked in ("", "full"):
        environment = {**os.environ, "REPLICAX_TRACEBACK": asked}
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        lines[asked] = done.stderr.splitlines()
        assert "NameError: name 'undefined' is not defined" in done.stderr
    assert len(lines[""]) <= MOST_LINES
    for place in ("replicax/program/replicas/replica.py", "jax/_src"):
        assert any(place in line for line in lines["full"])
        assert not any(place in line for line in lines[""])


def test_an_interrupt_in_an_operation_leaves_jax_its_trace():
    @entry_point
    def interrupted():
        jax_core.trace_ctx.set_trace(None)  # as JAX 0.12 does around each operation
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert jnp.ones(2).sum() == 2
