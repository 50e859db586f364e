"""Writes a checkpoint, an export, weights and the position of a dataset: `python tests/formats/write.py FOLDER`.

`written/` is what this wrote at commit 4ab275c; later versions must read it (`test_formats.py`). Run it again with an
older version when a format changes on purpose, and keep what is there: people have such files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
Y = X.sum(axis=1, keepdims=True)


def model_of(strategy: rx.Strategy) -> keras.Model:
    """Returns a small model with an optimizer that has slots."""
    keras.backend.clear_session()  # The names of layers are numbered.
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def main(folder: Path) -> None:
    """Trains for two epochs and writes all there is to write."""
    rx.config.set_virtual_devices(2)
    strategy = rx.FullyShardedStrategy(min_size=1)
    model = model_of(strategy)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    with strategy.scope():
        counter = rx.Variable(7, name="counter")
    dataset = strategy.distribute_dataset((X, Y), batch_size=4)
    batches = iter(dataset)
    next(batches)
    note = {"text": "held", "numbers": [1, 2.5]}
    checkpoint = rx.Checkpoint(model=model, optimizer=model.optimizer, counter=counter, data=batches, note=note)
    with rx.CheckpointManager(checkpoint, folder / "checkpoints") as manager:
        manager.save(step=5)
    batches.close()
    rx.export(rx.function(lambda x: model(x)), folder / "export", jnp.asarray(X))
    rx.weights.save_safetensors(model, folder / "weights.safetensors")
    (folder / "expected.json").write_text(
        json.dumps(
            {
                "weights": [np.asarray(each).tolist() for each in model.get_weights()],
                "optimizer": [np.asarray(each).tolist() for each in model.optimizer.variables],
                "predictions": np.asarray(model(X)).tolist(),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
