"""Members compare the batches that they give to the same call."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax.contracts.group as groups
from replicax.contracts.group import World
from replicax.errors import BatchError, ElasticError
from replicax.group import renewal
from replicax.group.renewal import Comparison, note_source, renewed
from replicax.runtime import replica_mesh, stacked_sharding
from replicax.values import PerReplica
from tests.cluster.fake_store import FakeStore


class Rows:
    def __init__(self, text: str):
        self.number, self._text = 1, text
        self.asked = 0

    def leaves(self):
        return [np.zeros(1)]

    def digest(self):
        self.asked += 1
        return self._text


def batch(text: str) -> list[Rows]:
    return [Rows(text)]


@pytest.fixture
def member(monkeypatch):
    """Takes the place of a member in its next call."""

    def become(index: int, calls: int, number: int = 1, count: int = 3):
        names = tuple(f"worker:{i}" for i in range(count))
        world = World(number, index, tuple(range(count)), names)
        monkeypatch.setattr(groups, "_present", SimpleNamespace(number=number, calls=calls, world=world))

    return become


def test_equal_batches_pass_and_others_are_named(member):
    store = FakeStore()
    comparisons = [Comparison(store) for _ in range(3)]
    for call in range(3):
        for index, comparison in enumerate(comparisons[:2]):
            member(index, call)
            comparison.make(batch(f"rows {call}"))
    member(2, 1)
    with pytest.raises(BatchError, match=r"call 1 gets .*rows 7 on worker:2 and rows 1 on worker:0"):
        comparisons[2].make(batch("rows 7"))


def test_the_same_call_in_a_later_world_is_another_one(member):
    comparison = Comparison(FakeStore())
    for number, text in ((1, "a"), (2, "b")):
        member(0, 5, number)
        comparison.make(batch(text))


def test_few_calls_are_compared(member):
    store = FakeStore()
    comparison = Comparison(store)
    for call in range(10, 200):
        member(0, call)
        comparison.make(batch("rows"))
    assert sorted(int(key.rpartition("/")[2]) for key in store.values) == [10, 11, 12, 64, 128, 192]


def test_nothing_is_compared_alone_or_without_batches(member, monkeypatch):
    store = FakeStore()
    member(0, 0, count=1)
    Comparison(store).make(batch("rows"))
    monkeypatch.setattr(renewal, "_comparison", Comparison(store))
    member(0, 0)
    renewed([jnp.ones(3), 4, np.ones(2)])
    assert store.values == {}
    value = PerReplica(jnp.ones((2, 3)))
    note_source([value, np.ones(3)], Rows("rows"))
    assert renewed({"x": [value]})["x"][0] is value
    assert [*store.values.values()] == [b"worker:0\nrows"]


def test_a_batch_of_an_earlier_world_is_made_anew_and_one_of_this_world_is_not(member):
    member(0, 0, number=2, count=1)
    arrays = [jnp.ones(1), jnp.ones(1)]
    early, present = Rows("early"), Rows("present")
    present.number = 2
    for array, rows in zip(arrays, (early, present), strict=True):
        note_source([array], rows)
    made, same = renewed(arrays)
    assert isinstance(made, np.ndarray)  # What `Rows` makes.
    assert same is arrays[1]


def test_a_store_that_is_gone_is_left_to_the_call(member):
    class Gone(FakeStore):
        def put_if_absent(self, key, value):
            raise renewal.jax.errors.JaxRuntimeError("UNAVAILABLE")

    member(0, 0)
    Comparison(Gone()).make(batch("rows"))


def test_a_torn_value_of_an_earlier_world_is_refused(member, monkeypatch):
    member(0, 0, count=1)
    monkeypatch.setattr(renewal, "_is_present", lambda array: False)
    sharding = stacked_sharding(replica_mesh(jax.devices()[:2]))
    value = PerReplica(jax.device_put(jnp.ones((2, 3)), sharding))
    assert renewed([value])[0] is value  # Whole on this worker.
    monkeypatch.setattr(renewal, "_is_whole", lambda array: False)
    with pytest.raises(ElasticError, match=r"\(2, 3\) was made when other workers"):
        renewed([value])
