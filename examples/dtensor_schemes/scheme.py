"""What the examples beside this file share: a parallel scheme, and running it on a mesh and on one device.

A scheme is a mesh, a layout for each parameter and each array of the batch, and a loss. Everything else of a training
step is the same for all of them, and stands here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.dtensor import (
    CommunicationReport,
    DVariable,
    Layout,
    Mesh,
    call_with_layout,
    communication,
    create_mesh,
    relayout,
    stateless_normal,
)

DEVICES = 8
STEPS = 5
LEARNING_RATE, MOMENTUM = 0.05, 0.9

rx.config.set_virtual_devices(DEVICES)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter's shape, its layout on the scheme's mesh, and the spread of its random initial values."""

    shape: tuple[int, ...]
    specs: Sequence[str]
    stddev: float = 0.0


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A way to train in parallel.

    Attributes:
        name: For people.
        mesh_dims: The mesh.
        parameters: The parameters by name.
        batch_specs: Layout of each array of a batch.
        make_batch: Returns a batch, given a random generator.
        loss: `loss(mesh, parameters, *batch)`, for the whole batch: on any mesh it is the same number.
    """

    name: str
    mesh_dims: Mapping[str, int]
    parameters: Mapping[str, Parameter]
    batch_specs: Sequence[Sequence[str]]
    make_batch: Callable[[np.random.Generator], Sequence[np.ndarray]]
    loss: Callable[..., jax.Array]


class Training:
    """A scheme's parameters on a mesh, and the step that trains them: gradient descent with momentum."""

    def __init__(self, scheme: Scheme, mesh: Mesh):
        self.scheme, self.mesh = scheme, mesh
        self.parameters = {
            name: self._parameter(name, parameter, seed)
            for seed, (name, parameter) in enumerate(scheme.parameters.items())
        }
        self.momenta = {
            name: DVariable(call_with_layout(jnp.zeros, parameter.layout, parameter.shape))
            for name, parameter in self.parameters.items()
        }
        batch = scheme.make_batch(np.random.default_rng(0))
        self.batch = [
            relayout(array, Layout(specs, mesh)) for array, specs in zip(batch, scheme.batch_specs, strict=True)
        ]

    def _parameter(self, name: str, parameter: Parameter, seed: int) -> DVariable:
        # Each device draws its own part. The numbers depend on the seed and the shape, not on the mesh.
        layout = Layout(parameter.specs, self.mesh)
        values = stateless_normal(parameter.shape, seed, stddev=parameter.stddev, layout=layout)
        return DVariable(values, name=name)

    @rx.function
    def step(self, *batch: jax.Array) -> jax.Array:
        loss_fn = functools.partial(self.scheme.loss, self.mesh, self.parameters)
        loss, gradients = rx.value_and_grad(loss_fn, self.parameters)(*batch)
        for name, gradient in gradients.items():  # in the parameter's layout, and so is the momentum
            momentum = self.momenta[name].assign(MOMENTUM * self.momenta[name] + gradient)
            self.parameters[name].assign_sub(LEARNING_RATE * momentum)
        return loss


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A scheme's training on its mesh, beside the same training on one device."""

    scheme: Scheme
    losses: list[float]
    losses_on_one: list[float]
    differences: dict[str, float]  # of each parameter in the end: |mesh - one device| / |one device|
    report: CommunicationReport

    def __str__(self) -> str:
        mesh = ", ".join(f"{name}={size}" for name, size in self.scheme.mesh_dims.items())
        name = max(self.differences, key=self.differences.__getitem__)
        lines = [
            f"{self.scheme.name} ({mesh})",
            "losses on the mesh:   " + " ".join(f"{loss:.6f}" for loss in self.losses),
            "losses on one device: " + " ".join(f"{loss:.6f}" for loss in self.losses_on_one),
            f"largest difference of a parameter: {self.differences[name]:.1e} ({name})",
            "one step on the mesh:",
            str(self.report),
        ]
        return "\n".join(lines)


def mesh_of(scheme: Scheme) -> Mesh:
    """Returns the scheme's mesh: of accelerators where there are enough, otherwise of virtual CPU devices."""
    devices = jax.devices() if len(jax.devices()) >= DEVICES else jax.devices("cpu")
    return create_mesh(scheme.mesh_dims, devices=devices[:DEVICES])


def compare(scheme: Scheme) -> Comparison:
    """Trains a scheme on its mesh and on one device."""
    mesh = mesh_of(scheme)
    on_mesh = Training(scheme, mesh)
    on_one = Training(scheme, create_mesh(dict.fromkeys(mesh.dim_names, 1), devices=mesh.global_devices()[:1]))
    report = communication(on_mesh.step, *on_mesh.batch)
    losses, losses_on_one = (
        [float(training.step(*training.batch)) for _ in range(STEPS)] for training in (on_mesh, on_one)
    )
    differences = {
        name: relative_difference(parameter.numpy(), on_one.parameters[name].numpy())
        for name, parameter in on_mesh.parameters.items()
    }
    return Comparison(scheme, losses, losses_on_one, differences, report)


def relative_difference(value: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm((value - expected).astype("float64")) / np.linalg.norm(expected.astype("float64")))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))
