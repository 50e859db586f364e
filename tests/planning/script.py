"""Trains a small network by `fit` under a strategy of a name; what it really holds goes to a file, if there is one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import replicax as rx

rx.config.set_virtual_devices(8)


def main(name: str, rows: str = "32", units: str = "64", *out: str) -> None:
    strategy = getattr(rx, name)()
    with strategy.scope():
        model = keras.Sequential([keras.Input([24]), keras.layers.Dense(int(units), "relu"), keras.layers.Dense(8)])
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    x, y = np.ones([int(rows), 24], "float32"), np.ones([int(rows), 8], "float32")
    print("training")
    model.fit(x, y, batch_size=int(rows), verbose=0)
    if out:
        held = {
            each.path: each.value.addressable_data(0).nbytes
            for each in (*model.variables, *model.optimizer.variables, *model.metrics_variables)
        }
        Path(out[0]).write_text(json.dumps(held), encoding="utf-8")
    model.predict(x, verbose=0)


main(*sys.argv[1:])
