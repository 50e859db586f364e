"""Modules, optimizers, metrics and random streams of flax's `nnx` in steps. Their variables: test_flax_variables.py."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import ProgramError, ReplicaDivergenceError, VariableError

nnx = pytest.importorskip("flax.nnx")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(14, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
UNEVEN = [(X[:8], Y[:8]), (X[8:], Y[8:])]


class Net(nnx.Module):
    def __init__(self, rngs, axis_name=None):
        self.hidden = nnx.Linear(3, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs, axis_name=axis_name)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.norm(nnx.tanh(self.hidden(x))))


def trainer(axis_name="replica"):
    model = Net(nnx.Rngs(0), axis_name)
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), nnx.metrics.Average("loss")


def train_step(model, optimizer, metric, batch):
    x, y = batch

    def loss_fn(model):
        losses = jnp.square(model(x) - y)[:, 0]
        return rx.compute_average_loss(losses), losses

    (loss, losses), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    metric.update(loss=losses)
    return loss


def arrays_of(*modules):
    return jax.tree.leaves(nnx.to_pure_dict(nnx.state(modules)))


def trained(strategy, how, epochs=2):
    objects = trainer()
    if how == "arguments":
        run = lambda batch: strategy.run(train_step, args=(*objects, batch))  # noqa: E731
    elif how == "captured":
        run = rx.function(lambda batch: strategy.run(lambda batch: train_step(*objects, batch), args=(batch,)))
    else:
        both = rx.function(lambda tree, batch: strategy.run(lambda b: train_step(*tree["of"], b), args=(batch,)))
        run = lambda batch: both({"of": objects}, batch)  # noqa: E731
    losses = []
    for _ in range(epochs):
        for batch in strategy.distribute_dataset(UNEVEN):
            losses.append(float(strategy.reduce("sum", run(batch), axis=None)))
    return losses, arrays_of(*objects)


@pytest.fixture(scope="module")
def on_one_device():
    return trained(rx.OneDeviceStrategy("cpu:0"), "arguments")


@pytest.mark.slow
@pytest.mark.daily(2)
@pytest.mark.parametrize("how", ["arguments", "captured", "nested"])
@pytest.mark.parametrize(
    "replicas", [pytest.param(1, marks=pytest.mark.nightly), 2, 3, pytest.param(8, marks=pytest.mark.nightly)]
)
def test_training_is_that_of_one_device(mirrored, on_one_device, how, replicas):
    losses, state = trained(mirrored(replicas), how)
    np.testing.assert_allclose(losses, on_one_device[0], rtol=1e-5)
    for one, other in zip(state, on_one_device[1], strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_one_device_is_nnx_jit(on_one_device):
    """The same training by hand, where no strategy is."""
    model, optimizer, metric = trainer(axis_name=None)
    step = nnx.jit(lambda model, optimizer, metric, batch: train_step(model, optimizer, metric, batch))
    losses = [float(step(model, optimizer, metric, batch)) for _ in range(2) for batch in UNEVEN]
    np.testing.assert_allclose(losses, on_one_device[0], rtol=1e-6)
    np.testing.assert_allclose(model.out.kernel[...], _of(on_one_device[1], (8, 1)), rtol=1e-5)
    assert int(optimizer.step[...]) == 4


def _of(arrays, shape):
    """Returns the last array of a shape: the weights follow the optimizer's moments or precede them."""
    return next(array for array in arrays if array.shape == shape)


def test_objects_keep_their_identity_and_hold_living_arrays(two, per_replica):
    model, optimizer, metric = trainer()
    kernel, before = model.hidden.kernel, model.hidden.kernel[...]
    for batch in two.distribute_dataset([UNEVEN[0]] * 2):
        two.run(train_step, args=(model, optimizer, metric, batch))
    assert model.hidden.kernel is kernel
    assert np.asarray(before).shape == (3, 8)  # The array that was read before is still there.
    assert not any(array.is_deleted() for array in arrays_of(model, optimizer, metric))
    assert not np.array_equal(before, kernel[...])
    nnx.split(model)  # They are of no trace.
    model.eval()


def test_one_program_until_the_structure_changes():
    model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    step = rx.function(lambda model, x: model(x))
    first, second = step(model, X), step(model, X)
    assert not np.array_equal(first, second)
    assert step.num_programs == 1
    model.eval()
    np.testing.assert_array_equal(step(model, X), X)
    assert step.num_programs == 2
    model.train()
    assert not np.array_equal(step(model, X), X)
    assert step.num_programs == 2
    np.testing.assert_array_equal(model.rngs.count[...], 3)


def test_a_captured_name_that_is_another_model_now_is_that_model():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    step = rx.function(lambda x: model(x))
    step(X)
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(1))
    np.testing.assert_allclose(step(X), model(X), rtol=1e-6)


def test_the_same_object_twice_is_one():
    weight = nnx.Param(jnp.ones(2))
    pair = nnx.List([weight, weight])

    @rx.function
    def step(pair, weight):
        weight[...] += 1.0
        pair[0][...] *= 2.0
        return pair[1][...]

    np.testing.assert_array_equal(step(pair, weight), [4.0, 4.0])
    np.testing.assert_array_equal(weight[...], [4.0, 4.0])


def test_a_returned_module_is_the_object_and_a_new_one_is_new():
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    def step(model, x):
        model.bias[...] += x.sum(axis=0)[:2]
        return {"model": model}, nnx.clone(model)

    found, copied = rx.function(step)(model, X)
    assert found["model"] is model
    assert copied is not model
    np.testing.assert_array_equal(copied.bias[...], model.bias[...])
    copied.bias[...] += 1.0


def test_an_error_in_a_step_leaves_everything_as_it_was(two, per_replica):
    model, optimizer, metric = trainer()
    before = [np.asarray(a) for a in arrays_of(model.hidden, optimizer, metric)]

    def failing(*args):
        train_step(*args)
        model.mode = "changed"
        raise KeyError("mine")

    for batch in two.distribute_dataset([UNEVEN[0]]):
        with pytest.raises(KeyError, match="mine"):
            two.run(failing, args=(model, optimizer, metric, batch))
    assert not hasattr(model, "mode")
    for one, other in zip(before, arrays_of(model.hidden, optimizer, metric), strict=True):
        np.testing.assert_array_equal(one, other)


def test_attributes_that_a_step_sets_are_set_at_each_call():
    model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    @rx.function
    def evaluate(model, x):
        model.eval()
        return model(x)

    for _ in range(2):
        model.train()
        np.testing.assert_array_equal(evaluate(model, X), X)
        assert model.deterministic
    assert evaluate.num_programs == 1
    evaluate(model, X)
    assert evaluate.num_programs == 2  # It begins in the other mode.


def test_a_variable_that_a_step_makes_is_there_afterwards(two, per_replica):
    class Keeping(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(jnp.float32(2.0))

    model = Keeping()

    def step(x):
        if not hasattr(model, "seen"):
            model.seen = nnx.Variable(jnp.zeros(()))
        model.seen[...] += jax.lax.psum((model.scale * x).sum(), "replica")

    for i in range(3):
        two.run(step, args=(per_replica(two, [1.0], [2.0]),))
        assert float(model.seen[...]) == 6.0 * (i + 1)
    nnx.split(model)


def test_metrics_sum_and_read_the_same_everywhere(two, per_replica):
    metric = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())

    def step(loss):
        metric.update(loss=loss, logits=jnp.stack([loss, 2 - loss], axis=1), labels=jnp.zeros(1, int))

    for _ in range(2):
        two.run(step, args=(per_replica(two, [1.5], [0.5]),))
    assert {name: float(value) for name, value in metric.compute().items()} == {"loss": 1.0, "accuracy": 0.5}
    metric.reset()
    two.run(step, args=(per_replica(two, [3.0], [5.0]),))
    assert float(metric.compute()["loss"]) == 4.0


def test_a_metric_that_does_not_sum_is_told(two, per_replica):
    metric = nnx.metrics.Welford("loss")
    with pytest.raises(VariableError, match=r"the metric's variable 'metric\.mean'"):
        two.run(lambda loss: metric.update(loss=loss), args=(per_replica(two, [1.0], [2.0]),))
    assert int(metric.count[...]) == 0


@pytest.mark.daily(1)
def test_replicas_draw_their_own_numbers_and_the_first_those_of_one_device(two, per_replica, either_way):
    def draw(rngs, _):
        return jax.random.uniform(rngs.noise(), (4,)), rngs.uniform((2,))

    rngs, alone = nnx.Rngs(7, noise=3), nnx.Rngs(7, noise=3)
    for _ in range(2):
        noise, other = two.run(draw, args=(rngs, per_replica(two, [1.0], [2.0])))
        first, second = two.local_results(noise)
        expected = draw(alone, None)
        np.testing.assert_array_equal(first, expected[0])
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(two.local_results(other)[0], expected[1])
    assert int(rngs.noise.count[...]) == 2


def test_batch_statistics_get_the_mean_and_a_weight_that_differs_is_refused(two, per_replica):
    norm = nnx.BatchNorm(1, momentum=0.5, rngs=nnx.Rngs(0))
    x = per_replica(two, [[1.0], [3.0]], [[5.0], [7.0]])
    two.run(lambda x: norm(x), args=(x,))
    np.testing.assert_allclose(norm.mean[...], [2.0])  # half of the mean of 2 and 6
    model = nnx.Sequential(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))

    def diverging(x):
        model.layers[0].kernel[...] += x[:1]

    with pytest.raises(ReplicaDivergenceError, match=r"model\.layers\.0\.kernel"):
        two.run(diverging, args=(x,))
    with pytest.raises(ReplicaDivergenceError, match=r"Linear\.bias"):
        two.run(lambda layer, x: layer.bias.set_value(x[0]), args=(model.layers[0], x))


def test_aggregation_may_be_said_by_the_variable(two, per_replica):
    total = nnx.Variable(jnp.zeros(1), aggregation="sum")
    two.run(lambda x: total.set_value(x), args=(per_replica(two, [1.0], [2.0]),))
    np.testing.assert_array_equal(total[...], [3.0])


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
def test_jit_inside(two, jit):
    model, optimizer, metric = trainer()
    inner = nnx.jit(train_step)
    predict = jit(lambda x: x * 2)

    def step(batch):
        return predict(inner(model, optimizer, metric, batch))

    losses = []
    for batch in two.distribute_dataset([UNEVEN[0]] * 3):
        losses.append(float(two.reduce("sum", two.run(step, args=(batch,)), axis=None)))
    assert losses[2] < losses[1] < losses[0]
    assert int(optimizer.step[...]) == 3


def test_a_state_is_a_value_whose_change_must_be_returned():
    graphdef, state = nnx.split(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))

    def forgets(state, x):
        state["bias"] = state["bias"].replace(x[0, :1])

    with pytest.raises(ProgramError, match=r"changes the State .* does not return it"):
        rx.function(forgets)(state, X)

    def functional(state, x):
        model = nnx.merge(graphdef, state)
        model.bias[...] += 1.0
        return nnx.state(model)

    np.testing.assert_array_equal(rx.function(functional)(state, X)["bias"][...], [1.0])


def test_what_flax_refuses_is_told(two, per_replica):
    model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))

    def step(x):
        def loss(w):
            model.bias[...] += 1.0
            return (w * model(x)).sum()

        return jax.grad(loss)(1.0)

    with pytest.raises(ProgramError, match=r"nnx\.grad\(loss_fn\)\(model.*flax said: Cannot mutate Param"):
        two.run(step, args=(per_replica(two, [[1.0]], [[2.0]]),))


def test_arrays_are_kept_in_variables():
    class Counting(nnx.Module):
        def __init__(self):
            self.count = jnp.zeros(())

    def step(model, x):
        model.count = model.count + x.sum()

    with pytest.raises(ProgramError, match=r"sets Counting\.count to an array.*nnx\.Variable"):
        rx.function(step)(Counting(), X)


@pytest.mark.nightly
def test_programs_hold_no_module_once_the_function_is_gone(two):
    made = []

    def once():
        model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        step = rx.function(lambda: model.bias.set_value(model.bias[...] + 1))
        step()
        made.append(id(model))

    gc.collect()
    before = sum(isinstance(each, nnx.Linear) for each in gc.get_objects())
    once()
    gc.collect()
    assert sum(isinstance(each, nnx.Linear) for each in gc.get_objects()) == before
