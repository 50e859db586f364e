"""A step in two compiled halves: gradients over a mesh of devices, the update on the device that has the variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax.program.jaxprs import inlined
from replicax.program.split import Assigned, Split


class Halves:
    """A pure function of variables and arguments, cut at its gradients.

    Called like the function itself. It is traced and compiled at the first call.

    Args:
        step: The function. The arrays of its first arguments are the variables' values; of its results, the new ones
            come first.
        inputs: For each variable where the worker's half wants it, None if as it is.
        assigned: For each new value the numbers of the result and of the variable among the inputs, or None.
        outputs: For each new value where it goes, None if it stays where it has been computed.
        home: Where the variables live and are updated.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        inputs: Sequence[Any],
        assigned: Sequence[tuple[int, int | None]],
        outputs: Sequence[Any],
        home: Any,
    ):
        self._step, self._shardings, self._outputs, self._home = step, list(inputs), list(outputs), home
        self._assigned = [Assigned(*pair) for pair, output in zip(assigned, outputs, strict=True) if output is not None]
        self._compiled: _Compiled | None = None

    def __call__(self, *args: Any) -> Any:
        """Runs both halves; the values of updated variables are overwritten."""
        leaves, treedef = jax.tree_util.tree_flatten(args)
        if self._compiled is None:
            self._compiled = _Compiled(self, leaves, treedef)
        return self._compiled(leaves)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Returns the worker's half as JAX lowers it."""
        leaves, treedef = jax.tree_util.tree_flatten(args)
        return _Compiled(self, leaves, treedef).lower(leaves)

    def split(self, leaves: Sequence[Any], treedef: Any) -> tuple[Split, Any]:
        """Returns the step cut in two, and the structure of its results."""
        found: list[Any] = []

        def flat(*leaves: Any) -> list[Any]:
            results, structure = jax.tree_util.tree_flatten(self._step(*jax.tree_util.tree_unflatten(treedef, leaves)))
            found[:] = [structure]
            return results

        program = inlined(jax.make_jaxpr(flat)(*leaves), leaves)
        kept = [i for i, sharding in enumerate(self._shardings) if sharding is not None]
        return Split(program, kept, self._assigned), found[0]


class _Compiled:
    """The halves for arguments of one kind."""

    def __init__(self, halves: Halves, leaves: Sequence[Any], treedef: Any):
        self._home, self._shardings = halves._home, halves._shardings
        self._split, self._structure = halves.split(leaves, treedef)
        split = self._split
        pairs = list(zip(split.assigned, split.updates, strict=True))
        self._updated = [each.output for each, served in pairs if served]
        # Their buffers are overwritten, each by the new value of the same variable.
        donated = [each.input for each, served in pairs if served and each.input in split.server_inputs]
        self._donated = [i for i in donated if i is not None]
        self._others = [i for i in split.server_inputs if i not in donated]
        self._moved_out = [
            (i, home) for i, home in enumerate(halves._outputs) if home is not None and i not in self._updated
        ]
        moved = set(split.worker_inputs)
        self._moved_in = [(i, s) for i, s in enumerate(self._shardings) if s is not None and i in moved]
        self._worker = jax.jit(self._worker_half)
        self._server = jax.jit(self._server_half, donate_argnums=0)

    def _worker_half(self, args: dict[int, Any]) -> tuple[list[Any], list[Any]]:
        return self._split.worker([args.get(i) for i in range(len(self._split.program.jaxpr.invars))])

    def _server_half(self, donated: list[Any], others: list[Any], sent: list[Any]) -> list[Any]:
        args: list[Any] = [None] * len(self._split.program.jaxpr.invars)
        for i, value in zip([*self._donated, *self._others], [*donated, *others], strict=True):
            args[i] = value
        return self._split.server(args, sent)

    def _worker_args(self, leaves: Sequence[Any]) -> dict[int, Any]:
        own = {i: leaf for i, leaf in enumerate(leaves) if i >= len(self._shardings) or self._shardings[i] is None}
        numbers = [i for i, _ in self._moved_in]
        return own | dict(zip(numbers, self._copies([leaves[i] for i in numbers]), strict=True))

    def _copies(self, values: list[jax.Array]) -> list[jax.Array]:
        """Returns variables' values on all compute devices; on the one that has them already, they are not copied."""
        if not values:
            return []
        sharding = self._moved_in[0][1]
        rows = [self._on(values, device) for device in sharding.mesh.devices.flat]
        return [
            jax.make_array_from_single_device_arrays(value.shape, sharding, list(copies), dtype=value.dtype)
            for value, copies in zip(values, zip(*rows, strict=True), strict=True)
        ]

    def _on(self, values: list[jax.Array], device: jax.Device) -> list[jax.Array]:
        return values if self._home.device_set == {device} else jax.device_put(values, device)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        outputs, sent = self._worker(self._worker_args(leaves))
        arrived = [self._at_home(value) for value in sent]
        others = [leaves[i] for i in self._others]
        updated = self._server([leaves[i] for i in self._donated], others, arrived)
        for i, value in zip(self._updated, updated, strict=True):
            outputs[i] = value
        for i, home in self._moved_out:
            outputs[i] = jax.device_put(outputs[i], home)
        return jax.tree_util.tree_unflatten(self._structure, outputs)

    def _at_home(self, replicated: jax.Array) -> jax.Array:
        """Returns a copy of a value that all compute devices have: the one at home if there is one."""
        devices = list(replicated.sharding.mesh.devices.flat)
        (home,) = self._home.device_set
        if home in devices:
            return replicated.addressable_data(devices.index(home))
        return jax.device_put(replicated.addressable_data(0), self._home)

    def lower(self, leaves: Sequence[Any]) -> jax.stages.Lowered:
        return self._worker.lower(self._worker_args(leaves))
