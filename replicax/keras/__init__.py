"""Keras models under a strategy. Importing this does not import Keras."""

from replicax.keras.models import keras_entered, strategy_of

__all__ = ["keras_entered", "strategy_of"]
