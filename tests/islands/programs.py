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
    from tests.hlo_bytes import collective_bytes

    x, y = np.ones((8, 30), "float32"), np.zeros(8, "int32")

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
