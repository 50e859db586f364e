"""The steps of a built model: each is the body of an `rx.function`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp

from replicax.errors import EstimatorError
from replicax.estimator.batches import features_and_labels, num_rows
from replicax.estimator.built_model import BuiltModel
from replicax.estimator.spec import EstimatorSpec
from replicax.program import value_and_grad
from replicax.typing import PyTree


class ModelSteps:
    """The steps that train, evaluate, predict and serve a built model."""

    _traced: EstimatorSpec  # what the model function has returned in the trace that is going on

    def __init__(self, model: BuiltModel):
        self._model, self.strategy = model, model.strategy

    def train(self, batch: PyTree) -> dict[str, jax.Array]:
        """Makes one training step; returns the loss and the plain metrics of the batch."""
        if isinstance(batch, Iterator):  # of the worker's own batches, with parameter servers
            batch = next(batch)
        features, labels = features_and_labels(batch, self._model.mode)
        return self._combined(self.strategy.run(self._train_replica, args=(features, labels)))

    def _train_replica(self, features: PyTree, labels: PyTree) -> dict[str, jax.Array]:
        updater = self._model.updater
        with self._model.called():
            if updater.takes_gradients:
                differentiated = value_and_grad(
                    lambda: self._scaled_loss(features, labels),
                    self._model.trainable,
                    has_aux=True,
                    aggregation=self._model.spec.loss_reduction,
                )
                (_, values), gradients = differentiated()
                self._check_connected(gradients)
                updater.update(self._traced, gradients)
            else:
                values = self._values(self._spec_of(features, labels))
                updater.update(self._traced, ())
        self._model.global_step.assign_add(1)
        return values

    def _scaled_loss(self, features: PyTree, labels: PyTree) -> tuple[jax.Array, dict[str, jax.Array]]:
        spec = self._spec_of(features, labels)
        return self._model.updater.scaled(spec.loss), self._values(spec)

    def _check_connected(self, gradients: Sequence[jax.Array | None]) -> None:
        if all(gradient is None for gradient in gradients):
            raise EstimatorError(
                "The loss depends on none of the trainable variables that the model function makes. Compute it from "
                "the outputs of its layers, or from the values of its variables."
            )

    def evaluate(self, batch: PyTree) -> tuple[dict[str, jax.Array], jax.Array]:
        """Evaluates one batch: updates the metrics; returns the loss and the plain metrics, and the number of rows."""
        features, labels = features_and_labels(batch, self._model.mode)
        values, rows = self.strategy.run(self._evaluate_replica, args=(features, labels))
        return self._combined(values), self.strategy.reduce("sum", rows)

    def _evaluate_replica(self, features: PyTree, labels: PyTree) -> tuple[dict[str, jax.Array], jax.Array]:
        with self._model.called():
            return self._values(self._spec_of(features, labels)), jnp.asarray(num_rows(features), jnp.int32)

    def predict(self, batch: PyTree) -> PyTree:
        """Returns the predictions for all rows of a batch, in their order."""
        features, labels = features_and_labels(batch, self._model.mode)
        return self.strategy.gather(self.strategy.run(self._predict_replica, args=(features, labels)))

    def _predict_replica(self, features: PyTree, labels: PyTree) -> PyTree:
        with self._model.called():
            return self._spec_of(features, labels).predictions

    def serve(self, features: PyTree) -> PyTree:
        """Returns the outputs of an exported model: those of the only signature, or a dict of all."""
        with self._model.called():
            outputs = self._spec_of(features, None).export_outputs
        assert outputs
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _spec_of(self, features: PyTree, labels: PyTree) -> EstimatorSpec:
        self._traced = self._model.call(features, labels)
        return self._traced

    def _values(self, spec: EstimatorSpec) -> dict[str, jax.Array]:
        return {"loss": spec.loss, **spec.means}

    def _combined(self, values: Mapping[str, PyTree]) -> dict[str, jax.Array]:
        """Returns values of replicas, all with equally many rows, for the whole batch."""
        loss = self.strategy.reduce(self._model.spec.loss_reduction, values["loss"])
        return {
            "loss": loss,
            **{name: self.strategy.reduce("mean", values[name]) for name in values if name != "loss"},
        }
