from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.collectives.automatic import GATHERED_BYTES, AutomaticAllReduce

LARGEST = GATHERED_BYTES // 4  # elements of float32 that all replicas together may have


@pytest.mark.parametrize(("elements", "gathered"), [(LARGEST // 2, 1), (LARGEST // 2 + 1, 0)])
def test_small_values_are_gathered(replicas, count_ops, elements, gathered):
    hlo = replicas(2).hlo(AutomaticAllReduce(gathers=True), [jnp.ones((2, elements))])
    assert (count_ops(hlo, "all-gather"), count_ops(hlo, "all-reduce")) == (gathered, 1 - gathered)


def test_more_replicas_gather_less_of_each(replicas, count_ops):
    hlo = replicas(8).hlo(AutomaticAllReduce(gathers=True), [jnp.ones((8, LARGEST // 2))])
    assert (count_ops(hlo, "all-gather"), count_ops(hlo, "all-reduce")) == (0, 1)


def test_large_and_small_values_keep_their_places(replicas, same_everywhere):
    rng = np.random.default_rng(0)
    stacked = [jnp.asarray(rng.normal(size=(3, size)), "float32") for size in (5, LARGEST, 7, 2 * LARGEST)]
    results = jax.jit(replicas(3).reducer(AutomaticAllReduce(num_packs=0, gathers=True)))(*stacked)
    for result, rows in zip(results, stacked, strict=True):
        np.testing.assert_allclose(same_everywhere(result), np.asarray(rows).sum(0), rtol=1e-5, atol=1e-5)


def test_replicas_are_added_up_in_their_order(replicas, same_everywhere):
    rows = np.asarray([[1.0], [2.0**-24], [2.0**-24]], np.float32)  # From the left both small ones are lost.
    [result] = jax.jit(replicas(3).reducer(AutomaticAllReduce(gathers=True)))(rows)
    assert same_everywhere(result) == (rows[0] + rows[1]) + rows[2] != rows[0] + (rows[1] + rows[2])


def test_on_the_devices_of_one_process_everything_is_the_all_reduce_of_xla(replicas, count_ops):
    ops = AutomaticAllReduce().for_devices(jax.devices()[:2])
    assert ops == AutomaticAllReduce()
    assert count_ops(replicas(2).hlo(ops, [jnp.ones((2, 3))]), "all-gather") == 0


@pytest.mark.parametrize(("platform", "gathers"), [("cpu", True), ("gpu", False)])
def test_gathers_between_processes_on_cpus_only(platform, gathers):
    devices = [types.SimpleNamespace(process_index=process, platform=platform) for process in range(2)]
    assert AutomaticAllReduce(num_packs=3).for_devices(devices) == AutomaticAllReduce(num_packs=3, gathers=gathers)
