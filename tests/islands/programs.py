"""What workers of the multi-process tests of islands run."""

from __future__ import annotations

import numpy as np


def train_alone_and_together(every: int) -> dict[str, object]:
    """Trains a linear model by local SGD; returns what came of it, and the bytes of the exchanges and of a step."""
    import replicax as rx
    from tests.islands.test_strategy import BATCHES, Training

    strategy = rx.LocalSGDStrategy(every)
    training = Training(strategy).fit(BATCHES)
    strategy.synchronize()
    return {
        "values": [np.asarray(value).tolist() for value in training.values()],
        "rows": float(training.rows.numpy()),
        "islands": strategy.num_islands,
        "index": strategy.island_index,
    }


def bytes_of_a_round_and_a_step() -> dict[str, int]:
    """Returns the bytes that collectives move in the exchange of a round, and in a step of mirrored training."""
    import keras

    import replicax as rx
    from replicax.collectives.hlo import collectives

    x, y = np.ones((8, 30), "float32"), np.zeros(8, "int32")

    def collective_bytes(text):
        return sum(each.num_bytes for each in collectives(text))

    def made(strategy):
        with strategy.scope():
            model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(40, "relu"), keras.layers.Dense(10)])
            optimizer = keras.optimizers.Adam(1e-3)
            optimizer.build(model.trainable_variables)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

        def train_step(batch):
            def loss_fn():
                return rx.compute_average_loss(loss(batch[1], model(batch[0])), global_batch_size=8)

            _, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        return model, rx.function(lambda batch: strategy.run(train_step, args=(batch,)))

    islands = rx.LocalSGDStrategy(50, elastic=False)
    model, step = made(islands)
    for batch in islands.distribute_dataset([(x, y)] * 100):
        step(batch)
    inside = step.lower(batch).compile().as_text()
    texts = [lowered.compile().as_text() for lowered in islands.lower_exchange()]
    mirrored = rx.MultiWorkerMirroredStrategy()
    _, mirrored_step = made(mirrored)
    (batch,) = mirrored.distribute_dataset([(x, y)])
    return {
        "parameters": model.count_params(),
        "step_of_an_island": collective_bytes(inside),
        "exchange": sum(map(collective_bytes, texts)),
        "mirrored_step": collective_bytes(mirrored_step.lower(batch).compile().as_text()),
        "told": islands.bytes_exchanged,
    }


def values_after_ten_steps(strategy_name: str) -> dict[str, object]:
    """Trains a small network with plain SGD on batches of both workers' rows; returns its parameters."""
    import keras

    import replicax as rx

    islands = strategy_name == "local_sgd"
    strategy = rx.LocalSGDStrategy(1) if islands else rx.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    random, rows = np.random.default_rng(0), 8
    x = random.normal(size=(10, 2 * rows, 6)).astype("float32")
    y = np.sin(x.sum(axis=2, keepdims=True))
    # An island's batch has its own rows; the mirrored one has those of both.
    batches = [(each[half], other[half]) for each, other in zip(x, y, strict=True) for half in _halves(islands, rows)]
    global_batch = rows if islands else 2 * rows

    def train_step(batch):
        def loss_fn():
            error = (model(batch[0]) - batch[1]) ** 2
            return rx.compute_average_loss(error[:, 0], global_batch_size=global_batch)

        _, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    train = rx.function(lambda batch: strategy.run(train_step, args=(batch,)))
    steps = 0
    for batch in strategy.distribute_dataset(batches):
        train(batch)
        steps += 1
    if islands:
        strategy.synchronize()
    return {"values": [np.asarray(value).tolist() for value in model.get_weights()], "steps": steps}


def _halves(islands: bool, rows: int) -> list[slice]:
    return [slice(rows), slice(rows, 2 * rows)] if islands else [slice(2 * rows)]
