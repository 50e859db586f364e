"""Variables whose values live on servers: what is fetched, kept and sent."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import VariableError
from replicax.parameter_server.actors.messages import ShardId
from replicax.parameter_server.variables.remote import Home, home_of, move_to_servers, variable_bytes

ROWS = np.arange(10, dtype=np.float32)
LARGE = np.arange(2**19, dtype=np.float32)  # The coordinator keeps no copy of it.


class Store:
    """Servers, from the coordinator's point of view."""

    def __init__(self) -> None:
        self.age = 0
        self.held: dict[tuple[int, ShardId], np.ndarray] = {}
        self.fetched = 0

    def wait_until_restored(self):
        """Nothing is lost here."""

    check = wait_until_restored

    def fetch(self, wanted):
        self.fetched += 1
        return [self.held[each].copy() for each in wanted]

    def take(self, home: Home) -> None:
        """What sending the changes does."""
        parts = zip(home.shards, home.parts(), strict=True)
        servers = home.servers if not home.copies else home.servers[:1]
        for server, (shard, part) in zip(servers, parts, strict=True):
            self.held[server, shard] = part.copy()
        home.sent()

    def step(self, home: Home, change=1.0) -> None:
        """What a step does."""
        self.age += 1
        for (_, shard), value in self.held.items():
            if shard.variable == home.number:
                value += change


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def home(store):
    home = Home(3, store)
    home.write(jnp.asarray(ROWS))
    return home


def placed(home, store, *servers, parts=1, rows=10):
    home.shard(rows, parts)
    home.servers = servers
    store.take(home)
    return home


def test_before_it_is_placed_the_value_is_here(home, store):
    np.testing.assert_array_equal(home.read(), ROWS)
    assert home.changed
    assert store.fetched == 0


@pytest.mark.parametrize(("servers", "parts"), [((1,), 1), ((0, 1), 2), ((1, 0, 1), 3)])
def test_what_is_sent_comes_back(home, store, servers, parts):
    placed(home, store, *servers, parts=parts)
    assert not home.changed
    store.step(home)
    np.testing.assert_array_equal(home.read(), ROWS + 1)


def test_the_parts_are_tensorflows(home):
    home.shard(10, 3)
    assert home.bounds == ((0, 4), (4, 7), (7, 10))
    assert home.shards == (ShardId(3, 0), ShardId(3, 1), ShardId(3, 2))
    np.testing.assert_array_equal(home.parts()[1], ROWS[4:7])
    home.shard(10, 1)
    assert home.bounds == (None,)


def test_a_value_is_fetched_once_for_each_step(home, store):
    placed(home, store, 0)
    home.read()
    assert store.fetched == 0
    for steps in (1, 2):
        store.step(home)
        home.read()
        home.read()
        assert store.fetched == steps


def test_large_values_are_not_kept(home, store):
    home.write(jnp.asarray(LARGE))
    placed(home, store, 0, rows=len(LARGE))
    for fetched in (1, 2):
        np.testing.assert_array_equal(home.read(), LARGE)
        assert store.fetched == fetched


def test_a_copy_is_fetched_from_one_server(home, store):
    home.servers, home.copies = (0, 1), True
    store.take(home)
    store.held[1, ShardId(3, 0)] = np.zeros(0)  # never asked
    store.age += 1
    np.testing.assert_array_equal(home.read(), ROWS)


def test_an_assigned_value_hides_that_of_the_servers_until_it_is_sent(home, store):
    placed(home, store, 0)
    home.write(jnp.asarray(2 * ROWS))
    store.step(home)
    assert home.changed
    np.testing.assert_array_equal(home.read(), 2 * ROWS)
    store.take(home)
    assert not home.changed
    store.step(home)
    np.testing.assert_array_equal(home.read(), 2 * ROWS + 1)


def test_what_is_assigned_while_an_older_value_is_sent_is_sent_next(home, store):
    placed(home, store, 0)
    home.write(jnp.asarray(2 * ROWS))
    home.parts()
    home.write(jnp.asarray(3 * ROWS))
    home.sent()
    assert home.changed
    np.testing.assert_array_equal(home.read(), 3 * ROWS)
    store.take(home)
    assert not home.changed


def test_a_server_that_begins_anew_must_be_told(home, store):
    placed(home, store, 0, 1, parts=2)
    home.forget_servers([2])
    assert not home.changed
    home.forget_servers([1])
    assert home.changed
    assert not home.is_unknown
    home.write(jnp.asarray(LARGE))
    placed(home, store, 0, rows=len(LARGE))
    home.forget_servers([0])
    assert home.is_unknown
    home.write(jnp.asarray(LARGE))
    assert not home.is_unknown


def test_a_value_that_steps_have_changed_since_is_not_known_any_more(home, store):
    placed(home, store, 0)
    store.step(home)
    home.forget_servers([0])
    assert home.is_unknown


# Variables themselves.


@pytest.mark.parametrize("make", [rx.Variable, keras.Variable], ids=["ours", "keras"])
def test_a_large_variable_whose_server_was_lost_is_restored_from_a_checkpoint(make, store, tmp_path):
    variable = make(LARGE, name="v")
    home = Home(0, store)
    move_to_servers(variable, home)
    placed(home, store, 0, rows=len(LARGE))
    checkpoint = rx.Checkpoint(v=variable)
    path = checkpoint.save(tmp_path / "checkpoint")
    store.step(home)
    home.forget_servers([0])
    assert home.is_unknown
    assert not home.has_value
    checkpoint.restore(path)
    assert not home.is_unknown
    np.testing.assert_array_equal(home.parts()[0], LARGE)


@pytest.mark.parametrize("make", [rx.Variable, keras.Variable], ids=["ours", "keras"])
def test_a_variable_stays_what_it_is(make, store):
    variable = make(ROWS, name="v")
    own = type(variable)
    home = Home(0, store)
    move_to_servers(variable, home)
    assert isinstance(variable, own)
    assert type(variable).__name__ == own.__name__
    assert home_of(variable) is home
    placed(home, store, 0)
    store.step(home)
    np.testing.assert_array_equal(variable.numpy(), ROWS + 1)
    variable.assign(ROWS)
    assert home.changed
    np.testing.assert_array_equal(np.asarray(variable.value), ROWS)
    assert variable_bytes(variable) == 40
    other = make(ROWS, name="w")
    move_to_servers(other, Home(1, store))
    assert type(other) is type(variable)


def test_other_variables_have_no_home():
    with pytest.raises(VariableError, match=r"'mine' was not made in the scope.*with strategy\.scope\(\)"):
        home_of(rx.Variable(1.0, name="mine"))


def test_tracing_needs_no_numbers(store):
    variable = rx.Variable(ROWS, name="v")
    home = Home(0, store)
    move_to_servers(variable, home)
    placed(home, store, 0)
    store.step(home)
    fetched_while_tracing = []

    @rx.function
    def total():
        value = variable.value.sum()
        fetched_while_tracing.append(store.fetched)
        return value

    assert float(total()) == 55.0
    assert fetched_while_tracing[0] == 0
    assert store.fetched == 1


@pytest.mark.parametrize(("dtype", "nbytes"), [("bfloat16", 12), ("float32", 24), ("int8", 6), ("bool", 6)])
def test_bytes_of_a_variable(dtype, nbytes):
    assert variable_bytes(keras.Variable(np.zeros((2, 3)), dtype=dtype)) == nbytes
