"""A replica function as a program: it is traced once, and the program is kept and evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
from jax.extend import core as jex_core

from replicax.compat.jax import vary, varying_axes
from replicax.compat.jax_equations import location
from replicax.compat.jax_tracing import current_trace, tracing_anew
from replicax.contracts.variable_access import VariableLike, has_split_rows, is_per_replica_variable, name_of
from replicax.errors import ProgramError, ReplicaDivergenceError
from replicax.program.accesses import Accesses
from replicax.program.cut.split import Assigned, Split
from replicax.program.frames import ReplicaFrame
from replicax.program.ir.decisions import Answers, Decisions
from replicax.program.ir.divergence import Divergence, find_divergence
from replicax.program.ir.interpreter import called
from replicax.program.random.jax_random import drawing
from replicax.program.random.row_draws import RowDraws
from replicax.program.replicas.after_meeting import Late
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import PyTreeFunction

_MAX_PASSES = 10


@dataclasses.dataclass
class ReplicaProgram:
    """A traced replica function."""

    name: str
    inputs: list[VariableLike]  # the variables that the replicas read
    outputs: list[VariableLike]  # the variables that they assign
    varying: list[bool]  # for each array in the result, whether it may differ between replicas
    # One replica's: arguments -> results, then the assigned variables' new values. Its constants are the placeholders
    # of `inputs`, and what the function has captured.
    program: jex_core.ClosedJaxpr
    placeholders: list[jax.Array]  # what stands in `program` for the values of `inputs`
    saw_new: bool  # whether variables were created meanwhile
    accumulators: list[VariableLike]  # their parts are combined at the end; in the order of their numbers
    late: Late | None = None  # the program in two parts, of which the second needs no replica; None: unknown

    def __call__(
        self, arrays: Sequence[jax.Array], values: Sequence[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Evaluates the program inside `shard_map`, in the JAX trace in which it was made or one enclosed by that."""
        found = called(self.program, arrays, self.placeholders, values)
        return self.typed(found[: len(self.varying)]), found[len(self.varying) :]

    def constants(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the program's constants, with values of `inputs` in the places of their placeholders."""
        given = {id(placeholder): value for placeholder, value in zip(self.placeholders, values, strict=True)}
        return [given.get(id(const), const) for const in self.program.consts]

    def variables_among(self, positions: Sequence[int]) -> list[int]:
        """Returns the numbers of those variables of `inputs` that are among some constants of the program."""
        wanted = {id(self.program.consts[i]) for i in positions}
        return [number for number, placeholder in enumerate(self.placeholders) if id(placeholder) in wanted]

    def typed(self, results: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns results of the program, typed as `varying` says; None stays None."""
        return [
            vary(result, REPLICA_AXIS) if differs else result
            for result, differs in zip(results, self.varying, strict=True)
        ]


def trace_replica(
    name: str,
    call: Callable[[ReplicaFrame, Sequence[jax.Array]], list[jax.Array]],
    arrays: Sequence[jax.Array],  # global ones, which `shard_map` deals out
    shard_map: Callable[[PyTreeFunction], PyTreeFunction],
    replicas: int,
    accesses: Accesses,
    draws: RowDraws | None = None,  # None: each replica draws its own random numbers
) -> ReplicaProgram:
    """Traces a replica function until all decisions of its Python turn out to be right."""
    # A decision that its Python has taken by a type may turn out to be wrong when the program is known, and so may what
    # was believed about its random numbers. Then it is traced again, with the right one. So it is where JAX sums a
    # gradient in a place that not all replicas come by.
    answers: Answers | None = None
    apart = False
    for _ in range(_MAX_PASSES):
        decisions, found = Decisions(answers, apart), Accesses()
        if draws is not None:
            draws.begin()
        try:
            with tracing_anew(), drawing(draws):
                traced = _trace(name, call, arrays, shard_map, decisions, found)
        finally:
            accesses.add(found)
        if replicas == 1 and not decisions.taken:
            return traced
        if draws is None or draws.are_right(traced.saw_new):
            divergence = find_divergence(traced.program)
            corrected = decisions.checked(divergence.decisions)
            if replicas == 1 and corrected is None:
                return traced
            if corrected is None and (apart or not decisions.plain_gradients or not divergence.splits_gradients):
                return _checked(traced, divergence)
            if corrected is None:
                apart = True  # The sums come after the gradients, and no decision is the same as before.
            answers = corrected
        found.lose()
    raise ProgramError(
        f"{name} did something else in each of {_MAX_PASSES} traces: what it does depends on which of its values are "
        "equal on all replicas, and that on what it does. Take such decisions outside of loops."
    )


def trace_as_one_device(
    call: Callable[[ReplicaFrame, Sequence[jax.Array]], list[jax.Array]],
    arrays: Sequence[jax.Array],  # only shapes: those for one replica, with the rows of all of them
    shard_map: Callable[[PyTreeFunction], PyTreeFunction],
    draws: RowDraws,
) -> None:
    """Traces a replica function as the only replica, for the random numbers that it draws alone."""
    accesses = Accesses()
    with tracing_anew(), drawing(draws):
        _trace("as_one_device", call, arrays, shard_map, Decisions(), accesses)
    accesses.lose()


def _trace(
    name: str,
    call: Callable[[ReplicaFrame, Sequence[jax.Array]], list[jax.Array]],
    arrays: Sequence[jax.Array],
    shard_map: Callable[[PyTreeFunction], PyTreeFunction],
    decisions: Decisions,
    accesses: Accesses,
) -> ReplicaProgram:
    found: list[ReplicaProgram] = []

    def body(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        outside = current_trace()
        frames: list[tuple[ReplicaFrame, list[bool]]] = []

        def step(arrays: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            frame = ReplicaFrame(outside, decisions, accesses)
            leaves = call(frame, arrays)
            frames.append((frame, [REPLICA_AXIS in varying_axes(leaf) for leaf in leaves]))
            return leaves, frame.new_values()

        step.__name__ = step.__qualname__ = name
        # As one call of a compiled function the program can be evaluated without going through its operations.
        program = jax.make_jaxpr(jax.jit(step))(arrays)
        [(frame, varying)] = frames
        inputs, outputs = list(frame.inputs.values()), list(frame.written.values())
        placeholders = list(frame.placeholders.values())
        accumulators = list(frame.accumulators.values())
        found.append(ReplicaProgram(name, inputs, outputs, varying, program, placeholders, frame.saw_new, accumulators))
        return []

    jax.eval_shape(shard_map(body), arrays)
    return found[0]


def _checked(traced: ReplicaProgram, divergence: Divergence) -> ReplicaProgram:
    """Returns a program in which all decisions are right, with the results typed by what is known of them."""
    divergence.check_meetings(traced.name)
    if divergence.split_draws:
        where = location(divergence.split_draws[0])
        raise ProgramError(
            f"{traced.name} draws random numbers for its rows in a loop ({where}) that each replica repeats as often "
            "as its own rows want. With random_numbers='per_row' the numbers are those of one device, which repeats it "
            "for all rows equally often. Let all replicas decide alike (jax.lax.pmax of the predicate), or give each "
            "row a key and a loop of its own: jax.vmap over jax.random.split(key, rows)."
        )
    if divergence.split_gradients:
        equation, split = divergence.split_gradients[0]
        raise ProgramError(
            f"{traced.name} computes a gradient ({location(equation)}) by way of a value that JAX takes to be equal on "
            f"all replicas, but it {split.reason or 'is computed from data of this replica'}. JAX would leave out the "
            "sum over the replicas. Choose with jnp.where instead, or make the values that go in each replica's own "
            "first: jax.lax.pcast(value, 'replica', to='varying')."
        )
    results = len(traced.varying)
    for variable, why in zip(traced.outputs, divergence.outputs[results:], strict=True):
        if why is not None and not is_per_replica_variable(variable) and not has_split_rows(variable):
            raise ReplicaDivergenceError(name_of(variable), why.reason)
    found = zip(traced.varying, divergence.outputs[:results], strict=True)
    varying = [typed or why is not None for typed, why in found]
    return dataclasses.replace(traced, varying=varying, late=Late(traced.program, divergence))


def cut_at_gradients(program: jex_core.ClosedJaxpr, arguments: int, site: ReplicaProgram) -> Split:
    """Splits a replica's program; the variables of `site` follow its arguments, and their new values its results."""
    position = {id(variable): arguments + i for i, variable in enumerate(site.inputs)}
    assigned = [
        Assigned(len(site.varying) + i, position.get(id(variable)))
        for i, variable in enumerate(site.outputs)
        if not is_per_replica_variable(variable) and not has_split_rows(variable)
    ]
    variables = [
        i
        for variable, i in zip(site.inputs, position.values(), strict=True)
        if not is_per_replica_variable(variable) and not has_split_rows(variable)
    ]
    return Split(program, variables, assigned, only_gradients=True)
