"""`rx.plan` and `strategy.plan` on the devices that there are."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.collectives.hlo import collectives
from replicax.errors import ArgumentError, ProgramError
from replicax.planning import Plan
from replicax.planning.buffers import refused_buffers

ROWS = 16


def made(strategy, optimizer="adam"):
    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(128, "relu"), keras.layers.Dense(8)])
    model.compile(optimizer, "mse")
    return model


def batch(rows=ROWS):
    return np.ones([rows, 64], np.float32), np.ones([rows, 8], np.float32)


def held(variables):
    return sum(each.value.addressable_data(0).nbytes for each in variables)


@pytest.mark.parametrize("kind", [rx.MirroredStrategy, rx.FullyShardedStrategy])
def test_a_step_of_fit_has_the_bytes_that_its_variables_take(kind):
    strategy = kind()
    model = made(strategy)
    plan = strategy.plan(model, batch())
    model.fit(*batch(), batch_size=ROWS, verbose=0)
    assert plan.bytes_of("parameters") == held(model.trainable_variables)
    assert plan.bytes_of("optimizer state") == held(model.optimizer.variables)
    assert plan.batch == 4 * (ROWS // 8) * (64 + 8)
    assert plan.kind == "train"
    assert plan.fits


def test_collectives_are_those_of_the_compiled_program():
    strategy = rx.MirroredStrategy()
    model = made(strategy, "sgd")
    with strategy.scope():
        model.build([None, 64])
    [train] = [strategy.plan(model, batch())]
    found = {each.kind: (each.count, each.bytes, each.axis) for each in train.collectives}
    assert found["all-reduce"][2] == "replica"
    assert found["all-reduce"][1] >= held(model.trainable_variables)


def test_a_loop_counts_its_collectives_as_often_as_it_runs():
    strategy = rx.MirroredStrategy()

    @rx.function
    def sums(x):
        def step(total, row):
            summed = rx.get_replica_context().all_reduce("sum", row)
            return total + summed, None

        return strategy.run(lambda own: rx.lax.scan(step, jnp.zeros(64), own)[0], (x,))

    [values] = strategy.distribute_dataset([np.ones([8 * 5, 64], np.float32)])
    plan = rx.plan(sums, (values,), strategy=strategy)
    hlo = sums.lower(values).compile().as_text()
    [sent] = plan.collectives
    assert (sent.count, sent.bytes, sent.at_least) == (5, 5 * 64 * 4, False)
    assert len(collectives(hlo)) == 1
    assert plan.kind == "predict"


def test_state_that_a_step_is_given_and_returns_is_state():
    strategy = rx.MirroredStrategy()
    optimizer = optax.adam(1e-3)
    params = {"w": jnp.ones([64, 8])}

    def step(params, state, x):
        loss, grads = jax.value_and_grad(lambda p: (x @ p["w"]).sum())(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    [x] = strategy.distribute_dataset([batch()[0]])
    plan = rx.plan(step, (params, optimizer.init(params), x), strategy=strategy)
    assert plan.kind == "train"
    assert plan.bytes_of("parameters") == 64 * 8 * 4
    assert plan.bytes_of("optimizer state") == 2 * 64 * 8 * 4 + 4
    assert plan.batch == 2 * 64 * 4


def test_donated_state_counts_once():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    model = made(strategy, "sgd")
    memory = strategy.plan(model, batch()).memory
    assert memory.aliased > 0
    assert memory.needed == memory.arguments + memory.outputs - memory.aliased + memory.temporaries + memory.code


def test_it_is_a_table_and_json_and_back():
    plan = made_plan()
    text = str(plan)
    for part in (
        "parameters",
        "exact",
        "all-reduce",
        "over replica",
        "floating-point operations",
        "8 devices of cpu:8",
    ):
        assert part in text
    assert "<table>" in plan._repr_html_()
    assert Plan.from_dict(json.loads(json.dumps(plan.as_dict()))) == plan


def test_the_largest_arrays_have_the_lines_that_made_them():
    strategy = rx.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        w = rx.Variable(jnp.ones([64, 512]), name="w")

    def step(x):
        wide = jnp.tanh(x @ w.value)  # this line
        w.assign_sub(wide.T.sum(1, keepdims=True).T * jnp.sort(wide, 0)[-1])
        return wide

    plan = rx.plan(step, (np.ones([1024, 64], np.float32),), strategy=strategy)
    first = step.__code__.co_firstlineno + 1
    temporary = next(each for each in plan.largest if each.kind == "temporary")
    assert (temporary.shape, temporary.bytes) == ("f32[1024,512]", 1024 * 512 * 4)
    assert {f"test_planning.py:{first}", f"test_planning.py:{first + 1}"} & {each.line for each in plan.largest}
    held = {each.name: (each.bytes, each.kind) for each in plan.largest if each.kind != "temporary"}
    assert held["w"] == (64 * 512 * 4, "parameters")
    assert (1024 * 64 * 4, "batch") in held.values()
    assert plan.memory.needed * 0.8 < max(plan.over_time) < plan.memory.needed * 1.2


def test_the_body_of_a_loop_lives_beside_what_is_around_it():
    strategy = rx.OneDeviceStrategy("cpu:0")

    @rx.function
    def loops(x):
        return jax.lax.scan(lambda total, row: (total + jnp.sort(jnp.tile(row, 1024)).sum(), None), 0.0, x)[0]

    plan = rx.plan(loops, (jnp.ones([5, 256]),), strategy=strategy)
    assert max(plan.over_time) >= 256 * 1024 * 4 + 5 * 256 * 4
    assert plan.largest[0].bytes == 256 * 1024 * 4


def test_what_libtpu_lists_in_its_refusal_is_the_list_of_the_largest():
    said = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.
  Largest program allocations in hbm:

  1. Size: 1.50G
     Operator: op_name="jit(step)/jvp(dense)/dot_general" source_file="/home/me/train.py" source_line=23
     Shape: f32[4096,98304]{1,0:T(8,128)}
     ==========================

  2. Size: 512.00M
     Shape: bf16[16,2]{1,0}
"""
    first, second = refused_buffers(said)
    assert (first.name, first.shape, first.bytes) == ("dense/dot_general", "f32[4096,98304]", 3 * 2**29)
    assert first.line == "train.py:23"
    assert (second.name, second.bytes) == ("", 2**29)


def made_plan():
    strategy = rx.MirroredStrategy()
    return strategy.plan(made(strategy), batch())


def test_what_does_not_go_together_is_refused():
    strategy = rx.MirroredStrategy()
    other = rx.OneDeviceStrategy("cpu:1")
    model = made(strategy)
    with pytest.raises(ArgumentError, match="belongs to"):
        other.plan(model, batch())
    with pytest.raises(ArgumentError, match=r"strategy=rx\.MirroredStrategy"):
        rx.plan(model.fit, on="cpu:4", strategy=strategy)
    with pytest.raises(ArgumentError, match="Give the strategy"):
        rx.plan(lambda: None)
    with pytest.raises(ArgumentError, match="goes with `on`"):
        rx.plan(lambda: None, hosts=2)
    with pytest.raises(ArgumentError, match="list or a tuple"):
        rx.plan(lambda: None, 3)
    with pytest.raises(ArgumentError, match="one of"):
        rx.plan(lambda: None, steps="all")
    with strategy.scope():
        bare = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    with pytest.raises(ArgumentError, match="not compiled"):
        strategy.plan(bare, batch())


def test_a_step_that_is_cut_in_parts_says_so():
    strategy = rx.CentralStorageStrategy(["cpu:0", "cpu:1"])
    with pytest.raises(ProgramError, match="cut in parts"):
        strategy.plan(made(strategy), batch())


def test_nothing_is_run():
    strategy = rx.MirroredStrategy()
    model = made(strategy)
    before = [np.asarray(each.value) for each in model.trainable_variables]
    strategy.plan(model, batch())
    for old, each in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, np.asarray(each.value))
    assert int(jax.device_get(model.optimizer.iterations.value)) == 0
