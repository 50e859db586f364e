"""Checks of a model's optimizer where the model has tables, whose rows the optimizer does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.errors import ArgumentError

if TYPE_CHECKING:
    import keras


def check_model_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Checks that the gradients of rows, as a step computes them, are those that the optimizer works with."""
    import keras

    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps:
        raise ArgumentError(
            f"The optimizer of the model has gradient_accumulation_steps={steps}, but the rows of a "
            "DistributedEmbedding are updated in each step, with gradients of its part of the rows. Leave it out, and "
            "make batches larger."
        )
    factor = getattr(optimizer, "loss_scale_factor", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or factor:
        how = type(optimizer).__name__ + (f"(loss_scale_factor={factor})" if factor else "")
        raise ArgumentError(
            f"The optimizer of the model is {how}, for which the loss is scaled, and with it the gradients of the rows "
            "of a DistributedEmbedding, which it does not see. Use mixed_bfloat16 or float32, in which losses need no "
            "scale; with mixed_float16, compile(auto_scale_loss=False)."
        )
