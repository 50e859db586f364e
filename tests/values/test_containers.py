from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import types
import weakref

import attrs
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from replicax.values.containers import found_in, holds_values, opened


class SubDict(dict):
    pass


class Ordered(collections.OrderedDict):
    pass


class Default(collections.defaultdict):
    pass


class SubList(list):
    pass


class SubTuple(tuple):
    pass


class Slotted(dict):
    __slots__ = ("label",)


class ByAttribute(collections.abc.MutableMapping):
    """A mapping whose shallow copies share what they hold."""

    def __init__(self, **items):
        self._items = items

    def __getitem__(self, key):
        return self._items[key]

    def __setitem__(self, key, value):
        self._items[key] = value

    def __delitem__(self, key):
        del self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Frozen(collections.abc.Mapping):
    def __init__(self, **items):
        self._items = items

    __getitem__, __iter__, __len__ = ByAttribute.__getitem__, ByAttribute.__iter__, ByAttribute.__len__


@dataclasses.dataclass
class Batch:
    x: object
    label: str = "a"
    rows: int = dataclasses.field(default=3, metadata={"static": True})


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenBatch:
    x: object


@attrs.define
class AttrsBatch:
    x: object


MAKERS = {
    "dict subclass": lambda x: SubDict(x=x),
    "OrderedDict": lambda x: collections.OrderedDict(b=x, a=1),
    "OrderedDict subclass": lambda x: Ordered(b=x, a=2),
    "defaultdict": lambda x: collections.defaultdict(list, x=x),
    "defaultdict subclass": lambda x: Default(list, x=x),
    "Counter": lambda x: collections.Counter(x=x),
    "UserDict": lambda x: collections.UserDict(x=x),
    "ChainMap": lambda x: collections.ChainMap({"x": x}, {"y": x}),
    "MutableMapping": lambda x: ByAttribute(x=x),
    "Mapping": lambda x: Frozen(x=x),
    "view": lambda x: types.MappingProxyType({"x": x}),
    "list subclass": lambda x: SubList([x, x]),
    "tuple subclass": lambda x: SubTuple([x, x]),
    "UserList": lambda x: collections.UserList([x]),
    "deque": lambda x: collections.deque([x, x], maxlen=2),
    "dataclass": lambda x: Batch(x),
    "frozen dataclass": lambda x: FrozenBatch(x),
    "attrs": lambda x: AttrsBatch(x),
    "namespace": lambda x: types.SimpleNamespace(x=x, label="a"),
    "nested": lambda x: {"a": [Batch(SubDict(x=SubList([FrozenBatch(x)])))]},
}


def content(value):
    """All that a container holds, with the classes, as something that can be compared."""
    if isinstance(value, rx.PerReplica):
        value = value.stacked
    if isinstance(value, (jax.Array, np.ndarray)):
        return np.asarray(value).tolist()
    if isinstance(value, collections.abc.Mapping):
        keys = (
            list(value) if isinstance(value, (collections.OrderedDict, SubDict)) else sorted(value)
        )  # JAX sorts dicts
        return type(value), [(key, content(value[key])) for key in keys]
    if isinstance(value, (list, tuple, collections.UserList, collections.deque)):
        return type(value), getattr(value, "maxlen", 0), [content(child) for child in value]
    if isinstance(value, FrozenBatch):
        return type(value), content(value.x)
    if dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace):
        return type(value), content(vars(value))
    return (type(value), content(value.x)) if attrs.has(type(value)) else value


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("through", ["function", "run", "run in function"])
def test_what_holds_arrays_goes_in_and_comes_out_as_what_it_was(mirrored, per_replica, make, through):
    two = mirrored(2)
    inside = []

    def step(container):
        inside.append(container)
        return container

    if through == "function":
        given = make(jnp.arange(3.0))
        call = rx.function(step)
    else:
        given = make(per_replica(two, 1.0, 2.0))
        call = lambda container: two.run(step, args=(container,))  # noqa: E731
        call = rx.function(call) if through == "run in function" else call
    before = content(given)
    for _ in range(2):
        returned = call(given)
        assert content(returned) == before
        assert type(returned) is type(given)
    assert content(given) == before
    assert len(inside) == 1, "traced once"
    assert not isinstance(returned, type(inside[0])) or returned is not inside[0]
    if isinstance(given, collections.defaultdict):
        assert returned.default_factory is list


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_arrays_are_inputs_of_the_program_and_not_constants(make):
    f = rx.function(lambda container: sum(jnp.sum(x) for x in jax.tree.leaves(opened(container)) if hasattr(x, "aval")))
    one, two = float(f(make(jnp.ones(2)))), float(f(make(2 * jnp.ones(2))))
    assert f.num_programs == 1
    assert two - one >= 2.0


HOLD_MORE = ("OrderedDict", "OrderedDict subclass", "namespace", "dataclass")


@pytest.mark.parametrize("make", [MAKERS[name] for name in MAKERS if name not in HOLD_MORE])
def test_reduce_gather_and_local_results_take_them(mirrored, per_replica, make):
    two = mirrored(2)
    given = make(per_replica(two, [1.0], [2.0]))
    if make is not MAKERS["nested"]:  # which has a label
        assert content(two.reduce("sum", given)) == content(make(jnp.asarray([3.0])))
        assert content(two.gather(given)) == content(make(jnp.asarray([1.0, 2.0])))
        assert content(two.local_results(given)[1]) == content(make(jnp.asarray([2.0])))


def test_without_arrays_it_is_a_setting_as_it_is(mirrored):
    seen = []
    config = SubDict(rate=0.1, layers=SubTuple([3, 4]))
    f = rx.function(lambda config, x: seen.append(config) or x * config["rate"])
    assert float(f(config, 2.0)) == pytest.approx(0.2)
    assert seen == [config]
    assert seen[0] is config
    assert opened(config) is config


def test_static_fields_of_a_dataclass_and_plain_attributes_are_fixed():
    f = rx.function(lambda batch: jnp.zeros(batch.rows) + batch.x)
    assert f(Batch(jnp.ones(()), rows=2)).shape == (2,)
    assert f(Batch(jnp.ones(()), rows=4)).shape == (4,)
    assert f(Batch(jnp.zeros(()), rows=4)).shape == (4,)
    assert f.num_programs == 2

    g = rx.function(lambda items: items["x"] * (2 if items.label == "double" else 1))
    for label, result in (("double", 2.0), ("single", 1.0), ("double", 2.0)):
        items = Slotted(x=jnp.ones(()))
        items.label = label
        assert float(g(items)) == result
    assert g.num_programs == 2


def test_arrays_in_attributes_of_a_container_are_inputs_too():
    def made(x, scale):
        items = SubDict(x=x)
        items.scale = scale
        return items

    f = rx.function(lambda items: made(items["x"] * items.scale, items.scale))
    for scale in (2.0, 3.0):
        returned = f(made(jnp.ones(()), jnp.asarray(scale)))
        assert (float(returned["x"]), float(returned.scale)) == (scale, scale)
    assert f.num_programs == 1


def test_a_program_keeps_nothing_of_what_it_was_made_with():
    class Held:
        pass

    array = np.ones(3)
    f = rx.function(lambda items: items["x"] + 1)
    given = SubDict(x=array, beside=None)
    f(given)
    reference = weakref.ref(given.__class__)
    count = len(gc.get_referrers(array))
    del given
    gc.collect()
    assert len(gc.get_referrers(array)) < count
    assert reference() is SubDict


# What cannot be taken apart.


class Plain:
    def __init__(self, x):
        self.state = {"x": [x]}


class PlainSlots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


LEAKS = {
    "object": (Plain, r"class Plain .*Plain\.state\['x'\]\[0\]"),
    "slots": (PlainSlots, r"PlainSlots\.x"),
    "in a dict": (lambda x: {"a": Plain(x)}, r"Plain\.state"),
    "set": (lambda x: {PlainSlots(x)}, r"class set .*\{\.\.\.\}\.x"),
    "function": (lambda x: lambda: x, "function with captured x"),
    "default": (lambda x: lambda y=x: y, "with a default"),
    "partial": (lambda x: __import__("functools").partial(jnp.add, x), "class partial"),
    "method": (lambda x: Plain(x).__eq__, "Plain"),
}


@pytest.mark.parametrize(("make", "message"), [LEAKS[name] for name in LEAKS if name != "method"], ids=list(LEAKS)[:-1])
def test_an_object_that_would_leak_an_array_of_the_trace_is_refused(mirrored, per_replica, make, message):
    two = mirrored(2)
    x = per_replica(two, 1.0, 2.0)
    for call in (lambda: rx.function(make)(jnp.ones(2)), lambda: two.run(make, args=(x,))):
        with pytest.raises(ArgumentError, match=message):
            call()


@pytest.mark.parametrize(
    "make", [lambda x: map(abs, [x]), lambda x: iter([x]), lambda x: {"x": x}.values(), lambda x: zip([x], strict=True)]
)
def test_what_gives_its_values_later_is_refused(make):
    with pytest.raises(ArgumentError, match="make a list"):
        rx.function(make)(jnp.ones(2))


def test_an_object_without_arrays_comes_back_as_it_is(mirrored):
    model = keras.Sequential([keras.layers.Dense(1)])
    kept = Plain(np.ones(2))
    for value in (Plain("text"), kept, model, rx.Variable(1.0), lambda: 3, mirrored(2), {1, 2}):
        assert rx.function(lambda x, value=value: (value, x))(1.0)[0] is value


def test_one_that_contains_itself_is_refused():
    batch = Batch(jnp.ones(2))
    batch.label = [batch]
    with pytest.raises(ArgumentError, match=r"class Batch .*contains itself"):
        rx.function(lambda batch: batch.x)(batch)


def test_one_that_cannot_be_made_anew_is_refused():
    class Picky(dict):
        def __new__(cls, name):
            return super().__new__(cls)

        def __init__(self, name):
            super().__init__(x=jnp.ones(2))

    with pytest.raises(ArgumentError, match=r"Picky\.__new__ wants arguments.*register Picky"):
        rx.function(lambda items: items["x"])(Picky("a"))


def test_keys_that_cannot_be_sorted_are_refused(mirrored):
    with pytest.raises(ArgumentError, match="keys of one dict must be of one type"):
        rx.function(lambda items: items)({1: jnp.ones(2), "a": jnp.ones(2)})
    with pytest.raises(ArgumentError, match="keys of one dict must be of one type"):
        rx.function(lambda x: {1: x, "a": x})(jnp.ones(2))


# Looking into objects.


def test_a_search_ends_and_says_where():
    loop = Plain(None)
    loop.state["x"].append(loop)
    assert found_in(loop, lambda each: each == "nowhere") is None
    loop.last = types.SimpleNamespace(batch=(1, "here"))
    assert found_in(loop, lambda each: each == "here") == ".last.batch[1]"
    assert not holds_values(copy.copy(loop))
    assert not holds_values(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
