"""What a step finds outside of its arguments: another array, number or object is noticed, and said when it goes on."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import random
import types
import weakref

import equinox
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.program import capture_changes
from replicax.program.captures import found_outside
from tests.program import watched_names

WEIGHT = jnp.float32(0.0)  # some tests bind it anew


def run_in(strategy, fn):
    return lambda *args: strategy.run(fn, args=args)


@pytest.fixture(params=["run", "function", "run in a function"])
def call(request, mirrored):
    """Returns what makes a function of a step that compiles it, in each of the ways to do that."""
    two = mirrored(2)
    ways = {
        "run": lambda fn: run_in(two, fn),
        "function": rx.function,
        "run in a function": lambda fn: rx.function(run_in(two, fn)),
    }
    return ways[request.param]


class Trainer:
    shared = 1.0

    def __init__(self, w):
        self.w, self.unused, self.items, self.calls = w, 0, {"w": w, "others": [w, w]}, 0

    def step(self, x):
        self.calls += 1
        return x + self.w

    def by_a_method(self, x):
        return x + self._weight()

    def _weight(self):
        return self.weight * self.shared

    @property
    def weight(self):
        return self.items["w"]

    def in_a_list(self, x):
        return x + self.items["others"][1]


@dataclasses.dataclass
class Settings:
    rate: float = 1.0
    seed: int = 0


def numbers(f, change, values=(1.0, 5.0, 7.0)):
    """Returns what a step of 0 gives after each change."""
    found = []
    for value in values:
        change(value)
        found.append(float(np.max(np.asarray(jax.tree.leaves(f(jnp.float32(0.0)))[0]))))
    return found


# An array, by each way on which a step can find it.


def as_given(kind):
    return {"jax": jnp.float32, "numpy": lambda x: np.full((), x, np.float32), "number": float}[kind]


@pytest.mark.daily(35)
@pytest.mark.parametrize("kind", ["jax", "numpy", "number"])
@pytest.mark.parametrize(
    "where",
    [
        "cell", "global", "module", "import", "from import", "attribute", "method", "dict", "slot", "class", "keyword",
        "inner", "partial",
    ],
)  # fmt: skip
def test_another_value_is_noticed(call, where, kind):
    of, trainer, w, cfg = as_given(kind), Trainer(None), None, {}
    slots = type("Slots", (), {"__slots__": ("w",), "__module__": __name__})()
    klass = type("Klass", (), {"w": 0.0, "__module__": __name__})
    helper = lambda x: x + w  # noqa: E731
    state = types.SimpleNamespace(w=None)
    default = lambda x, *, w=None: x + w  # noqa: E731

    def rebind(value):
        nonlocal w
        w = of(value)

    def importing(x):
        import tests.program.watched_names as names

        return x + names.w

    def importing_from(x):
        from tests.program.watched_names import w

        return x + w

    steps = {
        "cell": (lambda x: x + w, rebind),
        "global": (lambda x: x + WEIGHT, lambda value: globals().update(WEIGHT=of(value))),
        "module": (lambda x: x + watched_names.w, lambda value: setattr(watched_names, "w", of(value))),
        "import": (importing, lambda value: setattr(watched_names, "w", of(value))),
        "from import": (importing_from, lambda value: setattr(watched_names, "w", of(value))),
        "attribute": (trainer.step, lambda value: setattr(trainer, "w", of(value))),
        "method": (trainer.by_a_method, lambda value: trainer.items.update(w=of(value))),
        "dict": (lambda x: x + cfg["w"], lambda value: cfg.update(w=of(value))),
        "slot": (lambda x: x + slots.w, lambda value: setattr(slots, "w", of(value))),
        "class": (lambda x: x + klass.w, lambda value: setattr(klass, "w", of(value))),
        "keyword": (default, lambda value: default.__kwdefaults__.update(w=of(value))),
        "inner": (lambda x: jax.jit(lambda y: helper(y))(x), rebind),
        "partial": (functools.partial(lambda s, x: x + s.w, state), lambda value: setattr(state, "w", of(value))),
    }
    step, change = steps[where]
    change(0.0)
    assert numbers(call(step), change) == [1.0, 5.0, 7.0]


def test_arrays_in_lists_and_objects_without_a_name_are_noticed_where_the_program_uses_them(call):
    trainer = Trainer(jnp.float32(0.0))
    assert numbers(call(trainer.in_a_list), lambda x: trainer.items["others"].__setitem__(1, jnp.float32(x))) == [
        1,
        5,
        7,
    ]
    held = [types.SimpleNamespace(w=None)]
    take = lambda each: each.w  # noqa: E731
    assert numbers(call(lambda x: x + take(held[0])), lambda x: setattr(held[0], "w", jnp.float32(x))) == [1, 5, 7]


@pytest.mark.daily(2)
def test_modules_states_keys_and_variables_are_noticed(call):
    layer = equinox.nn.Linear(1, 1, key=jax.random.key(0))
    weight = lambda x: jnp.full((1, 1), x)  # noqa: E731
    found = {"layer": layer, "state": optax.trace(0.9).init({"w": jnp.float32(0.0)}), "flag": None}
    set_layer = lambda x: found.update(layer=equinox.tree_at(lambda m: m.weight, layer, weight(x)))  # noqa: E731
    assert numbers(call(lambda x: found["layer"].weight[0, 0] + x), set_layer) == [1, 5, 7]
    set_state = lambda x: found.update(state=optax.TraceState({"w": jnp.float32(x)}))  # noqa: E731
    assert numbers(call(lambda x: found["state"].trace["w"] + x), set_state) == [1, 5, 7]

    variable, key = None, None

    def set_variable(x):
        nonlocal variable
        variable = rx.Variable(x)

    def set_key(x):
        nonlocal key
        key = jax.random.key(int(x))

    assert numbers(rx.function(lambda x: variable.value + x), set_variable) == [1, 5, 7]
    plain = [float(jax.random.uniform(jax.random.key(i))) for i in (1, 5, 7)]
    assert numbers(call(lambda x: jax.random.uniform(key) + x), set_key) == pytest.approx(plain)


def test_a_number_of_a_module_is_noticed(call):
    dropout = equinox.nn.Dropout(0.5, inference=True)

    def rebind(x):
        nonlocal dropout
        dropout = equinox.tree_at(lambda m: m.p, dropout, x)

    assert numbers(call(lambda x: x + dropout.p), rebind) == [1, 5, 7]


def test_a_model_that_was_made_anew_is_the_one_that_is_used():
    models = [keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(x)) for x in (1.0, 5.0)]
    for each in models:
        each.build((None, 1))
    model = models[0]
    f = rx.function(lambda x: model(x))
    x = jnp.ones((1, 1))
    assert float(f(x)[0, 0]) == 1.0
    model = models[1]
    assert float(f(x)[0, 0]) == 5.0


def test_decorated_methods_notice_it_too(mirrored):
    two = mirrored(2)

    class Model:
        def __init__(self):
            self.rate = 1.0

        @rx.function
        def step(self, x):
            return two.run(self.loss, args=(x,))

        def loss(self, x):
            return x + self.rate

    model = Model()
    assert numbers(model.step, lambda x: setattr(model, "rate", x)) == [1, 5, 7]


def test_a_step_may_return_what_it_captures_the_next_time(mirrored):
    two = mirrored(2)

    class Sum:
        def __init__(self):
            self.w = jnp.float32(0.0)

        def step(self, x):
            return self.w + rx.get_replica_context().all_reduce("sum", jnp.sum(x))

    total = Sum()
    for batch in two.distribute_dataset([np.ones(2, np.float32)] * 4):
        total.w = two.run(total.step, args=(batch,))
    assert float(np.max(np.asarray(total.w))) == 8.0


class Kept:
    def __init__(self):
        self.w, self.scratch = jnp.float32(0.0), None

    def lost(self, x):
        self.w = self.w + x
        return self.w

    def within(self, x):
        self.scratch = x + 1.0
        return self.scratch * 2.0


def test_what_a_step_leaves_in_the_place_of_an_array_is_told_of(call, caplog):
    kept = Kept()
    within, lost = call(kept.within), call(kept.lost)
    for x in (jnp.float32(1.0), jnp.ones(3, jnp.float32)):  # two programs
        within(x)
    assert not caplog.records
    for _ in range(2):
        lost(jnp.float32(1.0))
    assert ["self.w" in record.message for record in caplog.records] == [True]
    assert "Return the new value" in caplog.text


# A number, by each way on which no name leads to it.


class Phase(enum.Enum):
    START, ONE, FIVE, SEVEN = 0, 1, 5, 7


class Parent:
    inherited = 0.0

    def factor(self):
        return self.config.rate


class Odd(Parent):
    shared = 0.0

    def __init__(self):
        self.sizes, self.state, self.config, self.rate = [0.0], {"w": 0.0}, Settings(0.0), 0.0
        self.nested, self.key = {"a": {"b": (1.0, [0.0])}}, "w"
        self.phase, self.members, self.steps = Phase.START, {0.0}, range(0)

    def factor(self):
        return super().factor()

    def alias(self, x):
        settings = self.config
        return x + settings.rate

    def loop(self, x):
        for each in self.sizes:
            x = x + each
        return x

    def computed(self, x):
        name = "_rate"[1:]
        return x + getattr(self, name)


def rate_of(config):
    return config.rate


def with_default(x, options={"rate": 0.0}):  # noqa: B006
    return x + options["rate"]


BY_NO_NAME = {
    "item": (lambda o, x: x + o.sizes[0], lambda o, value: o.sizes.__setitem__(0, value)),
    "key in a variable": (lambda o, x: x + o.state[o.key], lambda o, value: o.state.update(w=value)),
    "getattr": (lambda o, x: x + getattr(o, "rate"), lambda o, value: setattr(o, "rate", value)),  # noqa: B009
    "computed name": (lambda o, x: o.computed(x), lambda o, value: setattr(o, "rate", value)),
    "alias": (lambda o, x: o.alias(x), lambda o, value: setattr(o.config, "rate", value)),
    "parameter": (lambda o, x: x + rate_of(o.config), lambda o, value: setattr(o.config, "rate", value)),
    "values": (lambda o, x: x + sum(o.state.values()), lambda o, value: o.state.update(w=value)),
    "length": (lambda o, x: x + len(o.sizes), lambda o, value: setattr(o, "sizes", [0.0] * int(value))),
    "loop": (lambda o, x: o.loop(x), lambda o, value: o.sizes.__setitem__(0, value)),
    "super": (lambda o, x: x + o.factor(), lambda o, value: setattr(o.config, "rate", value)),
    "class": (lambda o, x: x + type(o).shared, lambda o, value: setattr(Odd, "shared", value)),
    "inherited": (lambda o, x: x + Odd.inherited, lambda o, value: setattr(Parent, "inherited", value)),
    "of a function": (lambda o, x: x + one.rate, lambda o, value: setattr(one, "rate", value)),
    "enum": (lambda o, x: x + o.phase.value, lambda o, value: setattr(o, "phase", Phase(value))),
    "set": (lambda o, x: x + max(o.members), lambda o, value: (o.members.clear(), o.members.add(value))),
    "range": (lambda o, x: x + len(o.steps), lambda o, value: setattr(o, "steps", range(int(value)))),
    "vars": (lambda o, x: x + vars(o)["rate"], lambda o, value: setattr(o, "rate", value)),
    "nested": (lambda o, x: x + o.nested["a"]["b"][1][0], lambda o, value: o.nested["a"]["b"][1].__setitem__(0, value)),
    "default": (lambda o, x: with_default(x), lambda o, value: with_default.__defaults__[0].update(rate=value)),
    "function": (lambda o, x: x + o.fn(), lambda o, value: setattr(o, "fn", {1: one, 5: five, 7: seven}[int(value)])),
}


def one():
    return 1.0


def five():
    return 5.0


def seven():
    return 7.0


one.rate = 0.0


@pytest.mark.daily(20)
@pytest.mark.parametrize("where", BY_NO_NAME)
def test_a_number_that_no_name_leads_to_is_noticed(call, where):
    step, change = BY_NO_NAME[where]
    odd = Odd()
    assert numbers(call(lambda x: step(odd, x)), lambda value: change(odd, value)) == [1, 5, 7]


class Layer(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.rate, self.sizes = 0.0, [0.0]

    def call(self, x):
        return x + self.rate

    def other(self, x):
        return x + self.sizes[0]


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer, self.several = Layer(), keras.Sequential([Layer()])

    def call(self, x):
        return self.several(self.layer(x))


@pytest.mark.daily(3)
@pytest.mark.parametrize("where", ["layer", "other method", "in a model", "in a Sequential"])
def test_what_keras_layers_read_in_their_methods_is_noticed(call, where):
    model = Model()
    layer = model.several.layers[0] if where == "in a Sequential" else model.layer
    steps = {"layer": layer, "other method": layer.other}
    step = steps.get(where, model)

    def change(value):
        layer.rate = layer.sizes[0] = value

    assert numbers(call(lambda x: step(x[None])), change) == [1, 5, 7]


@pytest.mark.daily(25)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2_000,), (300, 400)])
@pytest.mark.parametrize("where", ["name", "part", "number", "converted", "list"])
def test_arrays_of_numpy_that_are_changed_in_place_are_noticed(call, where, shape):
    array = np.zeros(shape, np.float32)
    held = [array]
    steps = {
        "name": lambda x: x + array,
        "part": lambda x: x + array[..., 1:2] if shape else x + array[()],
        "number": lambda x: x + float(array.flat[0]),
        "converted": lambda x: x + jnp.asarray(array),
        "list": lambda x: x + held[0],
    }
    assert numbers(call(steps[where]), lambda value: array.fill(value)) == [1, 5, 7]


# What makes no new program.


class Counting:
    def __init__(self):
        self.config = types.SimpleNamespace(steps=0, rate=1.0)
        self.history, self.traces = [], 0

    def step(self, x):
        self.traces += 1
        settings = self.config
        if settings.steps > 20:
            x = x + 100.0
        return jax.nn.relu(x) + settings.rate


def test_what_a_step_may_come_by_but_does_not_use_is_traced_ever_more_rarely(caplog):
    two = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    counting = Counting()
    f, found = rx.function(run_in(two, counting.step)), []
    for i in range(40):
        counting.config.steps = i
        counting.history.append(float(i))
        found.append(float(np.max(np.asarray(f(jnp.float32(0.0))))))
    assert found[:21] == [1.0] * 21
    assert found[32:] == [101.0] * 8  # It is noticed at the 32nd change at the latest.
    assert f.num_programs == 2
    assert counting.traces < 40
    assert "compiled again" not in caplog.text
    counting.config.rate = 2.0
    assert float(np.max(np.asarray(f(jnp.float32(0.0))))) == 102.0


def test_numbers_that_change_to_and_fro_make_two_programs():
    rates = [1.0]
    f = rx.function(lambda x: x * rates[0])
    for rate in (1.0, 2.0) * 4:
        rates[0] = rate
        assert float(f(jnp.float32(1.0))) == rate
    assert f.num_programs == 2


def test_an_array_that_a_callback_fills_is_no_reason(caplog):
    seen, traced = np.zeros(3, np.float32), []

    def step(x):
        traced.append(1)
        jax.debug.callback(lambda x: seen.fill(x), x)
        return x

    f = rx.function(step)
    for i in range(20):
        f(jnp.float32(i))
        jax.effects_barrier()
    assert f.num_programs == 1
    assert len(traced) <= 6
    assert "compiled again" not in caplog.text


GROWING = {
    "objects in a list": ([Settings(1.0)], lambda c: c.append(Settings(4.0)), lambda c: sum(each.rate for each in c)),
    "objects in a dict": (
        {"a": Settings(1.0)},
        lambda c: c.update(b=Settings(4.0)),
        lambda c: sum(each.rate for each in c.values()),
    ),
    "arrays": ([jnp.ones(())], lambda c: c.append(jnp.ones(())), sum),
    "lists": ([[1.0], [2.0]], lambda c: c.append([3.0]), lambda c: sum(map(sum, c))),
    "functions": ([jnp.sin], lambda c: c.append(jnp.cos), lambda c: sum(each(1.0) for each in c)),
    "another function": ({"f": jnp.sin}, lambda c: c.update(f=jnp.cos), lambda c: c["f"](1.0)),
    "another function as an attribute": (
        types.SimpleNamespace(f=jnp.sin),
        lambda c: setattr(c, "f", jnp.cos),
        lambda c: c.f(1.0),
    ),
}


@pytest.mark.parametrize("what", GROWING)
def test_what_a_container_gets_is_noticed(what):
    made, change, result = GROWING[what]
    container = types.SimpleNamespace(**vars(made)) if what.endswith("attribute") else made.copy()
    f = rx.function(lambda x: x + result(container))
    before = float(f(0.0))
    assert float(f(0.0)) == before
    change(container)
    assert float(f(0.0)) == float(0.0 + result(container)) != before


def test_nothing_is_traced_again_for_what_a_step_does_not_ask_for(call):
    trainer = Trainer(jnp.float32(1.0))
    f = call(trainer.step)
    for i in range(5):
        f(jnp.float32(0.0))
        trainer.unused = i
        trainer.items = {"w": np.float32(i)}
        trainer.other, trainer.shared = jnp.float32(i), float(i)
    assert trainer.calls <= 2  # inner decisions may trace it twice


def test_another_container_with_the_same_arrays_is_the_same(call):
    state, traced = {"w": jnp.float32(2.0), "steps": [0]}, []

    def step(x):
        traced.append(1)
        return x + state["w"]

    f = call(step)
    f(jnp.float32(0.0))
    times = len(traced)
    for _ in range(3):
        state = dict(state, other=1)
        traced.clear()
        assert float(np.max(np.asarray(f(jnp.float32(0.0))))) == 2.0
        assert not traced
    assert times


def test_lists_that_a_step_fills_are_no_reason(call):
    seen, losses = [], []

    def step(x):
        seen.append("traced")
        jax.debug.callback(lambda x: losses.append(np.asarray(x)), x)
        return x

    f = call(step)
    f(jnp.float32(1.0))
    jax.effects_barrier()
    times = len(seen)
    for _ in range(3):
        f(jnp.float32(1.0))
        jax.effects_barrier()
    assert len(seen) == times


def test_a_flag_that_changes_to_and_fro_makes_two_programs():
    settings = Settings()
    f = rx.function(lambda x: x * settings.rate)
    for rate in (1.0, 2.0) * 4:
        settings = Settings(rate, seed=random.randrange(10))
        assert float(f(jnp.float32(1.0))) == rate
    assert f.num_programs == 2


# What is said.


def test_it_is_said_from_the_second_time_on_and_once(caplog):
    two = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    trainer = Trainer(jnp.float32(0.0))
    for i in range(5):
        assert ("self.w" in caplog.text) == (i > 2)
        trainer.w = jnp.float32(i)
        two.run(trainer.step, args=(1.0,))
    assert caplog.text.count("step is compiled again each time that self.w is another one") == 1
    assert "Pass it as an argument, or keep it in an rx.Variable." in caplog.text


def test_outdated_programs_are_dropped():
    trainer = Trainer(jnp.float32(0.0))
    f = rx.function(trainer.step)
    for i in range(10):
        trainer.w = jnp.float32(i)
        assert float(f(0.0)) == i
    assert f.num_programs <= 4


def test_programs_keep_neither_functions_nor_what_they_lead_to_alive(mirrored):
    two = mirrored(2)

    def make():
        trainer = Trainer(jnp.float32(1.0))
        trainer.inner = lambda x: x + trainer.w * trainer.shared
        two.run(trainer.inner, args=(1.0,))
        two.run(trainer.step, args=(1.0,))
        return weakref.ref(trainer)

    trainer = make()
    gc.collect()
    assert trainer() is None


# Paths.


def test_each_path_leads_to_what_was_found():
    trainer = Trainer(jnp.float32(0.0))
    fn = lambda x: trainer.step(x) + trainer.by_a_method(x) + WEIGHT  # noqa: E731
    found = found_outside(fn, (Settings(),), lambda value: False)
    for each in found:
        value = (fn, Settings())
        for get, key in each.path:
            value = get(value, key)
        assert value is each.value or each.where.startswith("Settings()"), each.where
    names = {each.where for each in found if each.named}
    assert {"trainer.w", "trainer.items['w']", "trainer.shared", "WEIGHT"} <= names
    assert "trainer.unused" not in names


def test_what_pytest_writes_into_a_step_is_not_looked_into():
    """An `assert` of a test calls pytest, from which everything that pytest has can be found."""
    scale = 2.0

    def step(x):
        assert x is not None, "rewritten by pytest"
        return x * scale

    assert any("pytest" in name for name in step.__code__.co_names)
    assert {each.where for each in found_outside(step, (), lambda value: False)} >= {"scale"}
    assert len(found_outside(step, (), lambda value: False)) < 5


@pytest.mark.parametrize("dtype", ["float64", "int64", "float32"])
def test_an_array_of_a_dtype_that_jax_converts_is_noticed_too(dtype):
    weights = np.ones(3, dtype)
    beside = rx.function(lambda x: x - weights)  # Its program keeps JAX's conversion, too.
    step = rx.function(lambda x: x * weights)
    beside(jnp.ones(3)), step(jnp.ones(3))
    for value in (5, 7):
        weights[0] = value
        np.testing.assert_array_equal(step(jnp.ones(3)), [value, 1, 1])
        np.testing.assert_array_equal(beside(jnp.ones(3)), [1 - value, 0, 0])


def test_an_array_is_watched_beside_a_view_of_its_beginning():
    whole = np.ones(8, np.float32)
    first = whole[:1]
    step = rx.function(lambda x: x * first + jnp.sum(jnp.asarray(whole)))
    assert step(1.0).tolist() == [9.0]
    whole[5] = 100.0
    assert step(1.0).tolist() == [108.0]


def test_steady_steps_do_not_look_for_conversions(monkeypatch):
    weights, asked = np.ones(3), []
    step = rx.function(lambda x: x * weights)
    step(jnp.ones(3))
    weights[0] = 5.0
    step(jnp.ones(3))
    monkeypatch.setattr(capture_changes, "conversion_of", lambda array: asked.append(array))
    np.testing.assert_array_equal([step(jnp.ones(3)) for _ in range(3)], [[5, 1, 1]] * 3)
    assert asked == []


def test_zero_and_minus_zero_are_two_numbers(call):
    held = types.SimpleNamespace(zero=0.0, zeros=[0.0], part=complex(1.0, 0.0))
    step = call(lambda x: (jnp.copysign(x, held.zero), jnp.copysign(x, held.zeros[0]), jnp.angle(-held.part) * x))
    signs = lambda: [float(np.sign(each)) for each in step(jnp.float32(1.0))]  # noqa: E731
    assert signs() == [1.0, 1.0, -1.0]
    held.zero = -0.0
    assert signs() == [-1.0, 1.0, -1.0]
    held.zeros[0] = -0.0
    assert signs() == [-1.0, -1.0, -1.0]
    held.part = complex(1.0, -0.0)
    assert signs() == [-1.0, -1.0, 1.0]


def test_so_they_are_as_settings_of_an_argument(call):
    @dataclasses.dataclass
    class Signed:
        x: jax.Array
        zero: float = dataclasses.field(metadata={"static": True})

    step = call(lambda given: jnp.copysign(given.x, given.zero))
    assert [float(step(Signed(jnp.float32(1.0), zero))) for zero in (0.0, -0.0, 0.0)] == [1.0, -1.0, 1.0]


def test_a_function_that_is_given_other_code_is_noticed(call):
    def helper(x):
        return x + 1.0

    def other(x):
        return x + 10.0

    step = call(lambda x: helper(x))
    assert float(step(jnp.float32(0.0))) == 1.0
    helper.__code__ = other.__code__  # as IPython does when a module has changed
    assert float(step(jnp.float32(0.0))) == 10.0


def test_an_object_that_is_given_another_class_is_noticed(call):
    class One:
        def scaled(self, x):
            return x

    class Ten(One):
        def scaled(self, x):
            return 10.0 * x

    thing = One()
    step = call(lambda x: thing.scaled(x))
    assert float(step(jnp.float32(1.0))) == 1.0
    thing.__class__ = Ten
    assert float(step(jnp.float32(1.0))) == 10.0
