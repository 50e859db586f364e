"""A step in two compiled halves: gradients over a mesh of devices, the update on the device that has the variables.

Numbers among the results of the step (a loss) come home too, where they can be combined with variables; arrays stay on
the compute devices. Results of one number per replica, such as their sum, are computed at home. Values that cross are
copied, unless all devices share one memory. Then each half reads the arrays of the other one: no device copies a
variable, and home adds up the gradients of all replicas in the update. An array that another device reads is not
overwritten, so the new value of such a variable takes the buffer of its gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from replicax.program.cut.shared_memory_sums import UnsummedEvaluation
from replicax.program.cut.split import Assigned, Split, is_bound_to_worker
from replicax.program.cut.transfers import Crossing, Parts, stacked, summed
from replicax.program.ir.graph import Graph
from replicax.program.ir.interpreter import evaluate_elsewhere
from replicax.program.ir.jaxprs import Atom, aval_of, calls_host, is_literal, read, variables_of
from replicax.program.ir.moving import inlined
from replicax.typing import PyTree, PyTreeFunction


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the values of a step are."""

    home: SingleDeviceSharding  # where the variables live and are updated
    compute: NamedSharding  # where the worker's half wants their values: on all of its devices
    read: Sequence[Sharding | None]  # for each variable that the step reads, where it stays; None: it lives at home
    written: Sequence[Sharding | None]  # likewise for each variable that it assigns


class Halves:
    """A pure function of variables and arguments, cut at its gradients; traced and compiled at the first call."""

    def __init__(self, step: PyTreeFunction, assigned: Sequence[int | None], places: Places, in_place: bool):
        # A step is `(updated variables, other variables, donated, other arguments) -> (new values, results)`.
        # `in_place` says that the values of updated variables and the donated arguments may be overwritten.
        self.step, self.places, self.in_place = step, places, in_place
        # `assigned` has for each new value the number of its variable among the variables; None if that is not read.
        self._assigned = [Assigned(i, number) for i, number in enumerate(assigned) if places.written[i] is None]
        self._compiled: _Compiled | None = None

    def __call__(self, *args: PyTree) -> PyTree:
        """Runs both halves; in a function that JAX traces, the function itself becomes a part of that."""
        update, inputs, results_of = self.staged(*args)
        return results_of(update(*inputs))

    def staged(self, *args: PyTree) -> tuple[PyTreeFunction, Sequence[PyTree], PyTreeFunction]:
        """Runs the first half; returns the second, its arguments, and what makes the results of what it returns."""
        leaves = jax.tree_util.tree_leaves(args)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self.step, args, lambda results: results
        if self._compiled is None:
            self._compiled = _Compiled(self, args)
        return self._compiled.staged(leaves)  # Only the second half overwrites values of variables.

    def lower(self, *args: PyTree) -> jax.stages.Lowered:
        """Returns the worker's half as JAX lowers it."""
        return _Compiled(self, args).lower(jax.tree_util.tree_leaves(args))

    def split(self, args: Sequence[PyTree]) -> tuple[Split, jax.tree_util.PyTreeDef]:
        """Returns the step cut in two, and the structure of its results."""
        leaves, treedef = jax.tree_util.tree_flatten(args)
        found: list[jax.tree_util.PyTreeDef] = []

        def flat(*leaves: jax.Array) -> list[jax.Array]:
            results, structure = jax.tree_util.tree_flatten(self.step(*jax.tree_util.tree_unflatten(treedef, leaves)))
            found[:] = [structure]
            return results

        program = inlined(jax.make_jaxpr(flat)(*leaves))
        at_home = [i for i, place in enumerate(self.places.read) if place is None]
        return Split(program, at_home, self._assigned), found[0]


class _Compiled:
    """The halves for arguments of one kind. Inputs and outputs of the step go by their numbers in the flat program."""

    def __init__(self, halves: Halves, args: Sequence[PyTree]):
        self._places = halves.places
        self._crossing = Crossing(halves.places.home, halves.places.compute)
        self._split, self._structure = halves.split(args)
        jaxpr = self._split.program.jaxpr
        self._num_inputs, self._num_outputs = len(jaxpr.invars), len(jaxpr.outvars)
        # A function of the host may fail when a half has begun: the old values are kept until the step has ended.
        self._calls_host = calls_host(self._split.program)
        variables, given = _donated(args) if halves.in_place else (set[int](), set[int]())
        if self._calls_host:
            variables = set()
        results = range(len(self._places.written), self._num_outputs)
        numbers = {i for i in results if not jaxpr.outvars[i].aval.shape}
        self._at_home = NumbersAtHome(self._split, numbers, halves.places.compute.mesh.size)
        self._numbers = numbers - self._at_home.outputs.keys()
        self._divide_worker(given)  # No variables: should the second half fail, they must be as they were.
        shared = set(self._moved) if self._crossing.in_place else set()
        self._divide_server((variables - shared) | given)
        self._compile(getattr(halves.step, "__name__", "step"))

    def _divide_worker(self, free: set[int]) -> None:
        at_home = {i for i, place in enumerate(self._places.read) if place is None}
        inputs = self._split.worker_inputs
        self._moved = [i for i in inputs if i in at_home]
        self._given = [i for i in inputs if i not in at_home and i in free]
        self._lent = [i for i in inputs if i not in at_home and i not in free]

    def _divide_server(self, free: set[int]) -> None:
        split = self._split
        updated = [each.output for each in split.assigned]
        donated = {
            each.output: each.input
            for each in split.assigned
            if each.input is not None and each.input in free and each.input in split.server_inputs
        }
        self._kept = [i for i in range(self._num_outputs) if i not in updated and i not in self._at_home.outputs]
        outvars = split.program.jaxpr.outvars
        kept = {atom for i in self._kept if not is_literal(atom := outvars[i])} | {*self._at_home.stacks}
        equations, _ = Graph(split.worker_equations).leading_to({*split.sent, *kept}, and_effects=True)
        self._worker_equations = UnsummedEvaluation(equations, split.sent if self._crossing.in_place else (), kept)
        self._sent = [*split.sent, *self._at_home.stacks]
        self._unsummed = [i for i, leaf in enumerate(split.sent) if leaf in self._worker_equations.unsummed]
        self._parted = [*self._unsummed, *range(len(split.sent), len(self._sent))]
        taken = self._gradients_taken([i for i in updated if i not in donated])
        # JAX gives the first result of a shape the first donated buffer of that shape, so those are in one order.
        first = [*donated, *taken]
        self._updated = [*first, *(i for i in updated if i not in first)]
        self._order = [updated.index(i) for i in self._updated]
        self._donated, self._taken = list(donated.values()), list(taken.values())
        self._read = [i for i in split.server_inputs if i not in self._donated]

    def _gradients_taken(self, updated: Sequence[int]) -> dict[int, int]:
        """Returns, for outputs that get no buffer of their old value, what is sent in whose buffer they are written."""
        taken: dict[int, int] = {}
        free = self._unsummed if self._crossing.own is not None else []
        for i in updated:
            wanted = _kind(self._split.program.jaxpr.outvars[i])
            fits = [k for k in free if k not in taken.values() and _kind(self._split.sent[k]) == wanted]
            if fits:
                taken[i] = fits[0]
        return taken

    def _compile(self, name: str) -> None:
        stays = self._places.written
        places = [stays[i] if i < len(stays) else None for i in self._kept]
        stacked = NamedSharding(self._places.compute.mesh, PartitionSpec(self._places.compute.mesh.axis_names))
        sent = [stacked if i in self._parted else self._places.compute for i in range(len(self._sent))]
        worker, server = _named(self._worker_half, name), _named(self._server_half, f"{name}_update")
        self._worker = jax.jit(worker, donate_argnums=0, out_shardings=(places, sent))
        self._server = jax.jit(server, donate_argnums=(0, 1), out_shardings=self._places.home)

    def _worker_half(
        self, given: list[jax.Array], lent: list[jax.Array], moved: list[jax.Array]
    ) -> tuple[list[jax.Array | None], list[jax.Array]]:
        args: list[jax.Array | None] = [None] * self._num_inputs
        for i, value in zip([*self._given, *self._lent, *self._moved], [*given, *lent, *moved], strict=True):
            args[i] = value
        values = self._split.inputs(args)
        self._worker_equations(values)
        outvars = self._split.program.jaxpr.outvars
        return [read(outvars[i], values) for i in self._kept], [values[leaf] for leaf in self._sent]

    def _server_half(
        self, donated: list[jax.Array], taken: list[jax.Array], read: list[jax.Array], sent: list[Parts]
    ) -> list[jax.Array]:
        args: list[jax.Array | None] = [None] * self._num_inputs
        for i, value in zip([*self._donated, *self._read], [*donated, *read], strict=True):
            args[i] = value
        at_home = dict(zip(self._taken, taken, strict=True))
        gradients, stacks = sent[: len(self._split.sent)], sent[len(self._split.sent) :]
        updated = self._split.server(args, [summed(parts, at_home.get(i)) for i, parts in enumerate(gradients)])
        return [*(updated[i] for i in self._order), *self._at_home.results(map(stacked, stacks))]

    def staged(self, leaves: Sequence[jax.Array]) -> tuple[PyTreeFunction, Sequence[PyTree], PyTreeFunction]:
        computed, sent = self._worker(*self._worker_args(leaves))
        arrived = self._crossing.arrived(sent, self._parted)
        at_home = self._crossing.at_home
        kept = {i: at_home(x) if i in self._numbers else x for i, x in zip(self._kept, computed, strict=True)}
        taken = [self._crossing.take_own(arrived[i]) for i in self._taken]

        def results_of(updated: Sequence[jax.Array]) -> PyTree:
            known = {**kept, **dict(zip([*self._updated, *self._at_home.outputs], updated, strict=True))}
            outputs = [known[i] for i in range(self._num_outputs)]
            if self._calls_host:
                jax.block_until_ready(outputs)
            return jax.tree_util.tree_unflatten(self._structure, outputs)

        donated, read = [leaves[i] for i in self._donated], [leaves[i] for i in self._read]
        return self._server, (donated, taken, read, arrived), results_of

    def lower(self, leaves: Sequence[jax.Array]) -> jax.stages.Lowered:
        return self._worker.lower(*self._worker_args(leaves))

    def _worker_args(self, leaves: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
        given, lent = ([self._crossing.at_work(leaves[i]) for i in group] for group in (self._given, self._lent))
        return given, lent, self._crossing.on_all_devices([leaves[i] for i in self._moved])


class NumbersAtHome:
    """Results of a step that are made of one number a replica: the worker sends these, and home does the rest."""

    def __init__(self, split: Split, numbers: Iterable[int], replicas: int):
        self._graph, self._replicas = Graph(split.worker_equations), replicas
        self._consts = dict(zip(split.program.jaxpr.constvars, split.program.consts, strict=True))
        self.outputs: dict[int, jex_core.Var] = {}  # by their numbers among the step's outputs
        self.stacks: dict[jex_core.Var, None] = {}  # what the worker sends: a number of each replica, in their order
        equations = set[int]()
        for i in numbers:
            number = split.program.jaxpr.outvars[i]
            found = None if is_literal(number) or number in split.sent else self._tail(number)
            if found is not None:
                self.outputs[i] = number
                self.stacks |= dict.fromkeys(found[0])
                equations |= found[1]
        self._equations = [each for each in split.worker_equations if id(each) in equations]

    def _tail(self, number: jex_core.Var) -> tuple[list[jex_core.Var], set[int]] | None:
        """Returns the stacks that a number follows from and the equations (by `id`) between; None if there is more."""
        stacks, equations, todo = list[jex_core.Var](), set[int](), [number]
        while todo:
            value = todo.pop()
            equation = self._graph.producer.get(value)
            if aval_of(value).shape == (self._replicas,) and jnp.issubdtype(aval_of(value).dtype, jnp.number):
                stacks.append(value)
            elif equation is None or is_bound_to_worker(equation):
                if value not in self._consts:
                    return None
            elif id(equation) not in equations:
                equations.add(id(equation))
                todo += variables_of(equation.invars)
        return stacks, equations

    def results(self, stacks: Iterable[jax.Array]) -> list[jax.Array]:
        """Returns the results, in the order of `outputs`, in a program."""
        values = self._consts | dict(zip(self.stacks, stacks, strict=True))
        evaluate_elsewhere(self._equations, values)
        return [values[number] for number in self.outputs.values()]


def _donated(args: Sequence[PyTree]) -> tuple[set[int], set[int]]:
    """Returns which of the arrays in `args` are those of the first argument, and which of the third."""
    updated, others, donated = (len(jax.tree_util.tree_leaves(group)) for group in args[:3])
    return set(range(updated)), set(range(updated + others, updated + others + donated))


def _kind(atom: Atom) -> tuple[object, ...]:
    return aval_of(atom).shape, aval_of(atom).dtype


def _named(half: PyTreeFunction, name: str) -> PyTreeFunction:
    """Returns a function with a name of its own; logs and profiles show it."""

    def named(*args: PyTree) -> PyTree:
        return half(*args)

    named.__name__ = named.__qualname__ = name
    return named
