"""Trials before a training, for a learning rate and a batch size. They change nothing of the training."""

from replicax.tools.tuning.batch_sizes import BatchSize, find_batch_size
from replicax.tools.tuning.learning_rates import LearningRates, scaled_learning_rate
from replicax.tools.tuning.range_test import find_learning_rate

__all__ = ["BatchSize", "LearningRates", "find_batch_size", "find_learning_rate", "scaled_learning_rate"]
