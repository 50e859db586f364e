"""The places in JAX at which random numbers are drawn."""

from __future__ import annotations

import inspect

import jax
import pytest

import replicax.compat.jax_draws as jax_draws
from tests.compat.guards import needs


@pytest.mark.parametrize("name", ["random_bits", "random_split", "random_unwrap"])
def test_jax_still_draws_there(name):
    assert name in inspect.getsource(jax_draws.sampler_module()), "the samplers call it by another name"
    needs("jax", name, lambda: getattr(jax_draws._prng(), name))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_beta", ["key", "a", "b", "shape", "dtype"]),
        ("_gamma", ["key", "a", "shape", "dtype", "log_space"]),
        ("_poisson", ["key", "lam", "shape", "dtype"]),
        ("_binomial", ["key", "count", "prob", "shape", "dtype"]),
        ("_permutation", ["key", "x", "axis", "independent"]),
        ("_shuffle", ["key", "x", "axis"]),
    ],
)
def test_jax_still_has_the_samplers(name, arguments):
    sampler = needs("jax", name, lambda: getattr(jax_draws.sampler_module(), name))
    found = list(inspect.signature(sampler).parameters)
    assert [each for each in found if each != "method"] == arguments  # JAX 0.12 has it for `_beta`.


def test_choice_still_has_its_arguments():
    assert {"key", "shape", "replace"} <= set(inspect.signature(jax.random.choice).parameters)
