"""Forecasting a time series: an LSTM reads 24 hours and says the temperature of the 25th.

After https://keras.io/examples/timeseries/timeseries_weather_forecasting/: sliding windows, a validation set, and early
stopping that restores the best weights.
"""

from __future__ import annotations

import keras
import numpy as np

import replicax as rx  # +

HOURS, BATCH = 24, 32
strategy = rx.MirroredStrategy()  # +


def weather(hours):
    """Temperature, pressure and wind with a daily rhythm and noise."""
    rng = np.random.default_rng(0)
    time = np.arange(hours)
    noise = rng.normal(size=(hours, 3)).cumsum(axis=0) * 0.02
    rhythm = np.stack([np.sin(time / 24 * 2 * np.pi), np.cos(time / 80), np.sin(time / 7)], axis=1)
    return rhythm + noise


def windows(series):
    x = np.lib.stride_tricks.sliding_window_view(series[:-1], HOURS, axis=0).swapaxes(1, 2)
    return x, series[HOURS:, :1]


def main():
    x, y = windows(weather(290))
    (x_train, y_train), (x_val, y_val) = (x[:200], y[:200]), (x[200:], y[200:])
    with strategy.scope():  # +
        inputs = keras.Input((HOURS, 3))
        hidden = keras.layers.LSTM(16)(keras.layers.Normalization(mean=[0.0] * 3, variance=[1.0] * 3)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(1e-2), loss="mse", metrics=["mae"])
    stop = keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)
    history = model.fit(
        x_train, y_train, batch_size=BATCH, epochs=3, validation_data=(x_val, y_val), callbacks=[stop], verbose=0
    )
    return model.get_weights(), history.history["loss"] + history.history["val_loss"]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
