"""Printing once a job."""

import io

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.errors import ContextError
from replicax.tools.reporting import printing


def test_it_prints_as_python_does(capsys):
    rx.print("a", 1, jnp.float32(0.5), sep="-", end="!")
    assert capsys.readouterr().out == "a-1-0.5!"
    out = io.StringIO()
    rx.print("to a file", file=out)
    assert out.getvalue() == "to a file\n"


def test_others_than_the_chief_print_nothing(capsys, monkeypatch):
    monkeypatch.setattr(printing, "is_chief", lambda: False)
    rx.print("a")
    assert capsys.readouterr().out == ""


def test_a_traced_value_is_refused_with_the_way_out():
    strategy = rx.MirroredStrategy()

    def step(x):
        rx.print("loss", {"x": x})
        return x

    with pytest.raises(ContextError, match=r"Return it from the step.*jax\.debug\.print"):
        strategy.run(step, args=(jnp.ones(3),))
    with pytest.raises(ContextError):
        jax.jit(step)(1.0)
