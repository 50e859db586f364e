"""Where JAX begins to compute gradients. What follows from it: `tests/program/test_mapped_axes.py`."""

from __future__ import annotations

from jax._src import api

from tests.compat.guards import needs


def test_jax_still_has_the_name():
    needs("jax", "_src.api.vjp", lambda: api.vjp)
