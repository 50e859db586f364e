from __future__ import annotations

import pytest

import replicax as rx
from replicax.errors import ArgumentError

HARMLESS = {
    "jit_compile": [None, True],
    "experimental_compile": [None, True],
    "reduce_retracing": [None, False],
    "experimental_relax_shapes": [None, False],
    "autograph": [None, False],
    "experimental_autograph_options": [None],
    "experimental_implements": [None],
    "experimental_attributes": [None],
    "experimental_follow_type_hints": [None, False],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in HARMLESS.items() for value in values])
def test_keywords_that_mean_what_happens_anyway_are_accepted(name, value):
    assert float(rx.function(lambda x: x + 1, **{name: value})(1.0)) == 2.0

    @rx.function(**{name: value})
    def f(x):
        return x + 1

    assert float(f(1.0)) == 2.0


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("jit_compile", False, "run_eagerly"),
        ("jit_compile", 1, "run_eagerly"),
        ("experimental_compile", False, "run_eagerly"),
        ("reduce_retracing", True, "remainder='drop'"),
        ("experimental_relax_shapes", True, "remainder='drop'"),
        ("autograph", True, r"jax\.lax\.cond"),
        ("experimental_autograph_options", object(), r"jax\.lax\.cond"),
        ("experimental_implements", "name", "no TensorFlow graph"),
        ("experimental_attributes", {}, "no TensorFlow graph"),
        ("experimental_follow_type_hints", True, "annotations"),
        ("jitted", True, "neither has tf.function"),
    ],
)
def test_others_are_refused_with_the_reason(name, value, way_out):
    with pytest.raises(ArgumentError, match=f"{name}.*{way_out}"):
        rx.function(**{name: value})
