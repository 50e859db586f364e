"""The table of programs: in which style each is written, and how equal all have to be."""

from __future__ import annotations

import dataclasses
import importlib.util

# How far parameters of float32 may be apart: the norm of the difference, relative to their norm. A program must not
# have a parameter without a gradient (a bias before batch normalisation, or that of attention's keys) under Adam: it
# divides a gradient by its own size, so that rounding errors would become steps of full length.
TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
      name: its file under `programs`.
      style: how its training is written.
      needs: a package that replicax does not install; without it the program is left out.
    """

    name: str
    style: str
    needs: str = ""

    @property
    def can_run(self) -> bool:
        """Whether the package that it needs is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


CASES = (
    Case("adversarial_training", "optax"),
    Case("character_model", "Model.fit"),
    Case("collaborative_filtering", "Model.fit"),
    Case("deep_q", "tf.distribute"),
    Case("diffusion", "optax"),
    Case("distillation", "Model.fit"),
    Case("flax_linen", "flax", needs="flax"),
    Case("flax_nnx", "flax", needs="flax"),
    Case("forecast", "Model.fit"),
    Case("gan", "tf.distribute"),
    Case("graph_network", "optax"),
    Case("keras_from_scratch", "Keras stateless"),
    Case("lbfgs", "optax"),
    Case("maml", "optax"),
    Case("mixture_of_experts", "Model.fit"),
    Case("neural_ode", "optax"),
    Case("normalizing_flow", "tf.distribute"),
    Case("reinforce", "optax"),
    Case("resnet_pmap", "pmap"),
    Case("segmentation", "Model.fit"),
    Case("siamese", "Model.fit"),
    Case("simclr", "optax"),
    Case("super_resolution", "Model.fit"),
    Case("tabular", "Model.fit"),
    Case("translation", "tf.distribute"),
    Case("vae", "Keras train_step"),
)
