"""Feeding: every kind of data that Keras takes, and distributed datasets, reach the devices row by row."""

from __future__ import annotations

import gc
import itertools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import replicax as rx
from replicax.keras.feeding import Feed
from tests.keras.comparing import CLASSES, FEATURES, X, Y, assert_same, made

BATCH = 7  # Of 21 rows, over three devices.


def linear():
    """The model that compiles fastest."""
    model = keras.Sequential([keras.layers.Dense(CLASSES)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def batches(*arrays):
    return [tuple(array[start : start + BATCH] for array in arrays) for start in range(0, len(arrays[0]), BATCH)]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return len(batches(X))

    def __getitem__(self, index):
        return batches(X, Y)[index]


class Rows:
    """A random access source of rows, as Grain wants it."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


def grain_maps():
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(Rows()).batch(BATCH)


def grain_iterators():
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(Rows()).to_iter_dataset().batch(BATCH)


def torch_loader():
    torch = pytest.importorskip("torch")
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(rows, batch_size=BATCH)


ARRAYS = {
    "NumPy": lambda: (X, Y),
    "NumPy of 64 bits": lambda: (X.astype("float64"), Y.astype("int64")),
    "JAX": lambda: (jnp.asarray(X), jnp.asarray(Y)),
    "JAX on several devices": lambda: (over_all_devices(X), over_all_devices(Y)),
    "pandas": lambda: tuple(pytest.importorskip("pandas").DataFrame(array) for array in (X, Y)),
}
DATASETS = {
    "PyDataset": Batches,
    "generator": lambda: (batch for batch in batches(X, Y)),
    "Grain maps": grain_maps,
    "Grain iterators": grain_iterators,
    "torch": torch_loader,
}


def over_all_devices(array):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("everywhere",))
    return jax.device_put(array, jax.sharding.NamedSharding(mesh, PartitionSpec()))


def all_loops(model, make):
    """Trains, evaluates and predicts with what `make()` returns, without shuffling."""
    settings = {"verbose": 0, **({"batch_size": BATCH} if isinstance(make(), tuple) else {})}

    def data():
        made = make()
        return made if isinstance(made, tuple) else (made,)

    results = (
        model.fit(*data(), shuffle=False, **settings).history,
        model.evaluate(*data(), **settings),
        model.predict(*data()[:1], **settings),
        model.get_weights(),
    )
    gc.collect()  # Ends the threads of Grain's iterators, which Keras leaves to the garbage collector.
    return results


@pytest.fixture(scope="module")
def expected():
    """What the rows give without a strategy."""
    return all_loops(made(None, linear), ARRAYS["NumPy"])


@pytest.mark.daily(5)
@pytest.mark.parametrize("kind", [*ARRAYS, *DATASETS])
@pytest.mark.filterwarnings("ignore:.*shuffle=True.*:UserWarning", "ignore:.*ran out of data.*:UserWarning")
def test_every_kind_of_data_trains_alike(three, expected, kind):
    make = (ARRAYS | DATASETS)[kind]
    assert_same(all_loops(made(three, linear), make), expected)


# Distributed datasets.


def distributed(strategy):
    return {
        "of arrays": lambda: strategy.distribute_dataset((X, Y), batch_size=BATCH),
        "of batches": lambda: strategy.distribute_dataset(batches(X, Y)),
        "of a generator": lambda: strategy.distribute_dataset(lambda: iter(batches(X, Y))),
        "without prefetching": lambda: strategy.distribute_dataset(batches(X, Y), rx.InputOptions(prefetch=0)),
    }


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("devices", "kind"),
    [
        (1, "of arrays"),
        (3, "of arrays"),
        (8, "of arrays"),
        (3, "of batches"),
        (3, "of a generator"),
        (3, "without prefetching"),
    ],
)
def test_distributed_datasets_train_alike(mirrored, expected, devices, kind):
    strategy = mirrored(devices)
    assert_same(all_loops(made(strategy, linear), distributed(strategy)[kind]), expected)


@pytest.mark.parametrize("made_by", ["strategy", "creator"])
def test_a_distributed_dataset_from_a_function_trains_alike(three, made_by):
    """Three batches of 7 make one step of 21 rows."""
    per_replica = [(X[i : i + 7], Y[i : i + 7]) for i in (0, 7, 14)]
    creator = rx.data.DatasetCreator(lambda context: per_replica)
    dataset = three.distribute_datasets_from_function(creator) if made_by == "strategy" else creator
    settings = {"epochs": 2, "verbose": 0}
    actual = made(three, linear).fit(dataset, **settings).history
    expected = made(None, linear).fit(X, Y, batch_size=21, shuffle=False, **settings).history
    assert_same(actual, expected)


def test_a_distributed_dataset_validates(three):
    """Of ten rows: the last batch has three."""
    validation = three.distribute_dataset((X[:10], Y[:10]), batch_size=BATCH)
    settings = {"batch_size": BATCH, "epochs": 2, "verbose": 0}
    actual = made(three, linear).fit(X, Y, validation_data=validation, **settings).history
    expected = made(None, linear).fit(X, Y, validation_data=(X[:10], Y[:10]), **settings).history
    assert_same(actual, expected)


def test_a_distributed_dataset_with_weights_and_names_trains_alike(three):
    def make():
        inputs = keras.Input((FEATURES,), name="rows")
        model = keras.Model({"rows": inputs}, {"out": keras.layers.Dense(3, name="out")(inputs)})
        model.compile(keras.optimizers.SGD(0.1), {"out": "mse"})
        return model

    weights = np.linspace(0, 2, 21).astype("float32")
    dataset = three.distribute_dataset(({"rows": X}, {"out": Y}, {"out": weights}), batch_size=BATCH)
    actual = made(three, make).fit(dataset, verbose=0).history
    expected = made(None, make).fit(
        {"rows": X}, {"out": Y}, sample_weight={"out": weights}, batch_size=BATCH, shuffle=False, verbose=0
    )
    assert_same(actual, expected.history)


def test_steps_of_a_distributed_dataset_can_be_counted(three):
    model = made(three, linear)
    history = model.fit(three.distribute_dataset((X, Y), batch_size=BATCH), steps_per_epoch=2, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2


def test_single_batches_of_a_distributed_dataset_train_alike(three):
    first = next(iter(three.distribute_dataset((X, Y), batch_size=9)))
    actual = made(three, linear).train_on_batch(*first)
    assert_same(actual, made(None, linear).train_on_batch(X[:9], Y[:9]))


def test_a_dataset_that_another_strategy_distributed_is_an_error(three, eight):
    dataset = eight.distribute_dataset((X, Y), batch_size=BATCH)
    with pytest.raises(rx.ReplicaxError, match="MirroredStrategy"):
        made(three, linear).fit(dataset, verbose=0)


def test_masked_arrays_are_an_error(three):
    masked, model = np.ma.masked_less(X, 0), made(three, linear)
    model.build(X.shape)
    calls = [
        lambda: model.fit(masked, Y, verbose=0),
        lambda: model.evaluate(X, np.ma.masked_less(Y, 0), verbose=0),
        lambda: model.predict(masked, verbose=0),
        lambda: list(three.distribute_dataset([masked])),
        lambda: list(rx.data.Rows(list(masked)).batch(4)),
        lambda: three.run(lambda x: x, (masked,)),
    ]
    for call in calls:
        with pytest.raises((rx.errors.BatchError, rx.errors.ArgumentError), match=r"a masked array.*\.filled"):
            call()


# Placement.


def test_rows_that_divide_are_cut_on_the_way_and_others_are_not(three):
    feed = Feed.over(three)
    cut, whole, number = feed.placed((np.zeros((6, 2)), np.zeros((7, 2)), np.float32(1)))
    assert cut.addressable_shards[0].data.shape == (2, 2)
    assert whole.is_fully_replicated
    assert number.is_fully_replicated
    assert {array.sharding.device_set == set(three.devices) for array in (cut, whole, number)} == {True}


def test_missing_parts_of_a_batch_stay_missing(three):
    placed = Feed.over(three).placed((np.zeros((3, 1)), None, {"weights": None}))
    assert placed[1:] == (None, {"weights": None})


def test_a_program_on_one_device_takes_a_copy_of_a_host_batch_as_it_is():
    """`jax.device_put` would take longer than the whole rest of a step of a small model."""
    x = np.ones((4, 2))
    one, three = rx.MirroredStrategy(["cpu:1"]), rx.MirroredStrategy(3)
    (left,) = Feed.over(one, to_program=True).placed((x,))
    assert isinstance(left, np.ndarray)
    assert left.dtype == np.float32
    assert not np.shares_memory(left, x)
    (placed,) = Feed.over(one).placed((x,))
    assert placed.sharding.device_set == set(one.mesh.devices.flat)
    (mixed, _) = Feed.over(one, to_program=True).placed((x, jnp.ones(4)))
    assert isinstance(mixed, jax.Array)
    (cut,) = Feed.over(three, to_program=True).placed((np.ones((6, 2)),))
    assert cut.sharding.device_set == set(three.mesh.devices.flat)


def test_a_step_of_fit_on_one_device_puts_no_array_on_a_device(monkeypatch):
    """The program puts its batch there, and so does what places the metric that each epoch resets."""
    with rx.MirroredStrategy(["cpu:1"]).scope():
        model = linear()
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    puts: list[int] = []
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda value, *args, **kwargs: puts.append(1) or put(value, *args, **kwargs))
    model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0)
    assert not puts
    assert model.layers[0].kernel.value.sharding.device_set == {jax.devices("cpu")[1]}


def test_a_batch_that_does_not_divide_looks_up_right_rows_where_several_devices_make_a_replica():
    """XLA's gradient of `take` is wrong where rows are padded and devices hold the same rows."""
    weights = []
    for strategy in (rx.OneDeviceStrategy("cpu:0"), rx.LayoutStrategy(mesh_shape=(4, 2), layout="fsdp")):
        with strategy.scope():
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Embedding(40, 16), keras.layers.Dense(8, "tanh"), keras.layers.Flatten()]
            model = keras.Sequential([keras.Input((6,), dtype="int32"), *layers])
            model.compile("sgd", "mse")
        tokens = np.random.default_rng(0).integers(0, 40, (10, 6))
        model.fit(tokens, np.ones((10, 48), "float32"), batch_size=10, verbose=0)
        weights.append(model.get_weights())
    for value, expected in zip(*weights, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)


# Passes.


class Sums(keras.callbacks.Callback):
    """Notes for each epoch the sum of the labels of each batch: SGD with a rate of 0 leaves zeros to be predicted."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_end(self, batch, logs=None):
        before = sum(self.epochs[-1])
        self.epochs[-1].append(round(logs["loss"] * (len(self.epochs[-1]) + 1)) - before)


def fitted(model, data, **options):
    sums = Sums()
    model.fit(data, verbose=0, callbacks=[sums], **options)
    return sums.epochs


def summing(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.0), lambda y, p: keras.ops.sum(y) + 0 * keras.ops.sum(p))
    return model


def shuffled():
    rows = rx.data.Rows([(np.ones(1, np.float32), np.float32([i])) for i in range(12)])
    return rows.shuffle(seed=1).batch(4)


def sums_of_passes(batches, count):
    each = [round(float(y.sum())) for _, y in batches.repeat(count)]
    return [each[start : start + 3] for start in range(0, len(each), 3)]


def test_an_epoch_of_fit_reads_the_pass_of_its_number(mirrored):
    batches = shuffled()
    passes = sums_of_passes(batches, 6)
    strategy = mirrored(2)
    model = summing(strategy)
    assert fitted(model, batches, epochs=2) == passes[:2]
    assert fitted(model, batches) == passes[2:3], "the next fit begins where the one before has ended"
    assert fitted(model, batches, initial_epoch=1, epochs=2) == passes[1:2]
    assert fitted(summing(strategy), batches, initial_epoch=3, epochs=5) == passes[3:5]
    evaluated = summing(strategy)
    evaluated.evaluate(batches, verbose=0)
    assert fitted(evaluated, batches, epochs=2) == passes[:2]
    dataset = strategy.distribute_dataset(batches)
    assert fitted(summing(strategy), dataset, epochs=2) == passes[:2]
    for _, first in zip(range(1), dataset, strict=False):
        del first
    state, restored = dataset.get_state(), strategy.distribute_dataset(batches)
    restored.set_state(state)
    assert fitted(summing(strategy), restored, initial_epoch=5, epochs=6) == [passes[2][1:]], "its own position counts"


@pytest.mark.filterwarnings("error:Your input ran out of data")
def test_epochs_may_have_other_numbers_of_batches(mirrored):
    strategy, numbers = mirrored(2), itertools.chain([2, 1, 5, 3], itertools.repeat(0))

    def batches():
        return ((np.ones((4, 1), np.float32), np.full((4, 1), i, np.float32)) for i in range(next(numbers)))

    dataset = strategy.distribute_dataset(batches)  # Keras looks at the first pass, to build the model.
    assert [len(each) for each in fitted(summing(strategy), dataset, epochs=3)] == [1, 5, 3]


def test_a_built_model_reads_nothing_before_its_loop(mirrored):
    begun = []

    def batches():
        begun.append(1)
        return iter([(np.ones((4, 1), np.float32), np.ones((4, 1), np.float32))])

    strategy = mirrored(2)
    model = summing(strategy)
    model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
    for _ in range(2):
        model.evaluate(strategy.distribute_dataset(batches), verbose=0)
    assert len(begun) == 2
