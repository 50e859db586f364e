"""The two compiled halves of a step, on devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from replicax.program.cut.two_devices import Halves, Places
from replicax.program.ir.jaxprs import marked_as_gradient
from replicax.runtime import REPLICA_AXIS, mirrored_sharding, replica_mesh, stacked_sharding

# Variables are read in the order `w, m, rate`; the step updates w and m.


def train_step(updated, others, donated, kept):
    w, m = updated
    (rate,) = others
    (x,) = kept
    loss, gradient = jax.value_and_grad(lambda w: jnp.sum((x * w) ** 2))(w)
    m = 0.9 * m + marked_as_gradient(gradient)
    return [w - rate * m, m], [loss, x + 1]


# Home among the compute devices, beside them, and the only one.
PLACES = {"among": (0, (0, 1, 2)), "last": (2, (0, 1, 2)), "beside": (5, (0, 1, 2)), "alone": (3, (3,))}


class Site:
    """A home and a mesh, and values for `train_step` there."""

    def __init__(self, home: int, compute: tuple[int, ...]):
        devices = jax.devices()
        self.home = SingleDeviceSharding(devices[home])
        self.mesh = replica_mesh([devices[i] for i in compute])
        self.compute = mirrored_sharding(self.mesh)

    def places(self, read=(None, None, None), written=(None, None)) -> Places:
        return Places(self.home, self.compute, read, written)

    def at_home(self, *values):
        return [jax.device_put(jnp.asarray(value, jnp.float32), self.home) for value in values]

    def at_work(self, value):
        return jax.device_put(jnp.asarray(value, jnp.float32), self.compute)

    def halves(self, step=train_step, assigned=(0, 1), in_place=True, **places) -> Halves:
        return Halves(step, assigned, self.places(**places), in_place)


@pytest.fixture(params=PLACES)
def site(request) -> Site:
    return Site(*PLACES[request.param])


W, M, X = np.arange(64.0), np.ones(64), np.full(64, 0.5)


def values_of(results):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


def test_the_halves_do_what_the_step_does(site):
    halves, x = site.halves(), site.at_work(X)
    w, m = site.at_home(W, M)
    (rate,) = site.at_home(0.1)
    expected = [jnp.asarray(W, jnp.float32), jnp.asarray(M, jnp.float32)]
    for _ in range(3):
        (w, m), results = halves([w, m], [rate], [], [x])
        expected, expected_results = train_step(expected, [jnp.float32(0.1)], [], [jnp.asarray(X, jnp.float32)])
        for ours, theirs in zip(values_of([w, m, results]), values_of([expected, expected_results]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_variables_and_numbers_are_at_home_and_arrays_where_they_are_computed(site):
    w, m, rate = site.at_home(W, M, 0.1)
    new_values, (loss, array) = site.halves()([w, m], [rate], [], [site.at_work(X)])
    for value in new_values:
        assert value.sharding == site.home
        assert value.committed
    assert loss.sharding.device_set == site.home.device_set
    assert array.sharding.device_set == site.compute.device_set


@pytest.mark.parametrize("in_place", [True, False])
def test_updated_variables_are_overwritten_if_they_may_be(site, in_place):
    w, m, rate = site.at_home(W, M, 0.1)
    x = site.at_work(X)
    site.halves(in_place=in_place)([w, m], [rate], [], [x])
    # The other devices read `w` where it is, so it is not overwritten; `m` never leaves home.
    reads_w = len(site.mesh.devices.flat) > 1
    assert [value.is_deleted() for value in (w, m, rate, x)] == [in_place and not reads_w, in_place, False, False]


def test_every_variable_gets_its_own_buffer_back(site):
    """Also where one of the same shape before it has none to give."""

    def step(updated, others, donated, kept):
        w, m = updated
        return [jnp.sin(kept[0]), m + 1, w + 1], []

    halves = site.halves(step, assigned=[None, 1, 0], read=(None, None), written=(None, None, None))
    w, m = site.at_home(W, M)
    pointers = w.unsafe_buffer_pointer(), m.unsafe_buffer_pointer()
    (_, m, w), _ = halves([w, m], [], [], [site.at_work(X)])
    assert (w.unsafe_buffer_pointer(), m.unsafe_buffer_pointer()) == pointers
    assert (float(w[1]), float(m[1])) == (2.0, 2.0)


def test_both_halves_are_compiled_once_and_named_after_the_step(site, compilations):
    halves, x = site.halves(), site.at_work(X)
    w, m, rate = site.at_home(W, M, 0.1)
    with compilations() as compiled:
        for _ in range(3):
            (w, m), _ = halves([w, m], [rate], [], [x])
    names = [message.split()[1] for message in compiled]
    assert names.count("jit(train_step)") == names.count("jit(train_step_update)") == 1


def test_the_program_to_look_at_is_the_workers(site):
    w, m, rate = site.at_home(W, M, 0.1)
    lowered = site.halves().lower([w, m], [rate], [], [site.at_work(X)])
    assert "jit_train_step" in lowered.as_text()
    assert "0.89999" not in lowered.as_text()  # the momentum is the server's
    assert not w.is_deleted()


def test_in_another_program_the_step_is_a_part_of_that(site):
    w, m, rate = site.at_home(W, M, 0.1)
    halves = site.halves()
    program = jax.make_jaxpr(lambda w: halves([w, m], [rate], [], [X]))(w)
    assert [aval.shape for aval in program.out_avals] == [(64,), (64,), (), (64,)]


# What stays on the compute devices.


def test_a_variable_of_its_own_place_stays_there_and_is_kept_until_the_second_half_is_done():
    site = Site(*PLACES["among"])
    stacked = stacked_sharding(site.mesh)

    def step(updated, others, donated, kept):
        total, count = updated
        return [total + kept[0], count + 1], []

    total = jax.device_put(jnp.zeros((3, 2)), stacked)
    (count,) = site.at_home(0)
    halves = site.halves(step, read=(stacked, None), written=(stacked, None))
    (new, count), _ = halves([total, count], [], [], [np.ones((3, 2), np.float32)])
    assert new.sharding == stacked
    assert count.sharding == site.home
    assert not total.is_deleted()
    assert (float(new[2, 1]), float(count)) == (1.0, 1.0)


def test_donated_arguments_are_used_up_and_others_are_not():
    site = Site(*PLACES["among"])

    def step(updated, others, donated, kept):
        return [], [donated[0] + kept[0]]

    for in_place in (True, False):
        given, kept = site.at_work(X), site.at_work(X)
        site.halves(step, [], in_place, read=(), written=())([], [], [given], [kept])
        assert (given.is_deleted(), kept.is_deleted()) == (in_place, False)


# Steps that leave something out.


def test_an_argument_that_lies_at_home_is_brought_to_work(site):
    (value,) = site.at_home(X)
    _, (doubled,) = site.halves(lambda u, o, d, kept: ([], [kept[0] * 2]), [], read=(), written=())([], [], [], [value])
    assert doubled.sharding.device_set == site.compute.device_set
    assert not value.is_deleted()


@pytest.mark.parametrize(
    ("new", "expected"),
    [(lambda old: 7.0, 7.0), (lambda old: old, 2.0), (lambda old: old + 1, 3.0), (lambda old: jnp.zeros(()), 0.0)],
    ids=["literal", "itself", "counter", "constant"],
)
def test_what_needs_no_worker_is_at_home_too(site, new, expected):
    halves = site.halves(lambda updated, o, d, k: ([new(updated[0])], []), [0], read=(None,), written=(None,))
    (old,) = site.at_home(2.0)
    (value,), _ = halves([old], [], [], [])
    assert value.sharding == site.home
    assert value.committed
    assert float(value) == expected


def test_an_old_value_that_is_returned_outlives_the_update(site):
    def step(updated, others, donated, kept):
        return [updated[0] + 1], [updated[0], kept[0]]

    halves, x = site.halves(step, [0], read=(None,), written=(None,)), site.at_work(X)
    (w,) = site.at_home(W)
    old = []
    for _ in range(3):
        (w,), (before, same) = halves([w], [], [], [x])
        old.append(before)
    assert [float(value[0]) for value in old] == [0.0, 1.0, 2.0]
    np.testing.assert_array_equal(same, X)


def test_an_argument_that_is_assigned_stays_the_callers(site):
    def assign(updated, others, donated, kept):
        return [kept[0]], []

    x = site.at_work(X)
    (w,) = site.at_home(W)
    (w,), _ = site.halves(assign, [0], read=(None,), written=(None,))([w], [], [], [x])
    increment = site.halves(lambda updated, o, d, k: ([updated[0] + 1], []), [0], read=(None,), written=(None,))
    (w,), _ = increment([w], [], [], [])
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(w, X + 1)


def test_random_keys_travel(site):
    def step(updated, others, donated, kept):
        new, mine = jax.random.split(updated[0])
        return [new], [jax.random.normal(mine, (2,))]

    halves = site.halves(step, [0], read=(None,), written=(None,))
    key, expected = jax.device_put(jax.random.key(3), site.home), jax.random.key(3)
    for _ in range(2):
        (key,), (noise,) = halves([key], [], [], [])
        expected, mine = jax.random.split(expected)
        np.testing.assert_array_equal(noise, jax.random.normal(mine, (2,)))
    assert key.sharding == site.home


def test_a_variable_that_is_read_elsewhere_takes_the_buffer_of_its_gradient():
    site = Site(*PLACES["among"])

    def step(updated, others, donated, kept):
        (w,), (x,) = updated, kept
        mapped = jax.shard_map(
            lambda w, x: jax.grad(lambda w: jnp.sum(w * x[0] ** 2))(w),
            mesh=site.mesh, in_specs=(PartitionSpec(), PartitionSpec(REPLICA_AXIS)), out_specs=PartitionSpec(),
        )  # fmt: skip
        return [w - marked_as_gradient(mapped(w, x))], []

    halves = site.halves(step, assigned=(0,), read=(None,), written=(None,))
    (w,) = site.at_home(np.zeros(64))
    x = jax.device_put(np.ones((3, 64), np.float32), NamedSharding(site.mesh, PartitionSpec(REPLICA_AXIS)))
    update, (donated, taken, _, _), results_of = halves.staged([w], [], [], [x])
    assert donated == []
    pointer = taken[0].unsafe_buffer_pointer()
    ((new,), _) = results_of(update(donated, taken, *halves.staged([w], [], [], [x])[1][2:]))
    assert new.unsafe_buffer_pointer() == pointer
    assert not w.is_deleted()
    np.testing.assert_array_equal(new, np.full(64, -3.0))
