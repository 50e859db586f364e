"""The old path of `rx.checkpoint.tensorflow`."""

from replicax.moved import moved

moved(__name__, "tensorflow.checkpoints")
