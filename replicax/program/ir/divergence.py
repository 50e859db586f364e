"""Which values of a replica's program may differ between replicas, control flow taken into account.

JAX's types follow data only: a `cond` with two equal branches is typed as equal, whatever chooses the branch. This is a
pass over the traced program that follows both. The results of a `cond` differ if its predicate does, and so does what a
loop carries if the replicas may leave it at different times. The result of a callback may differ since it is called on
each device by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence

import jax
from jax.extend import core as jex_core

from replicax.compat.jax import axes_of_type
from replicax.compat.jax_equations import location, scan_counts, scopes
from replicax.compat.jax_names import (
    CALLBACKS,
    CALLS_ON_OPERANDS,
    EQUALIZING_COLLECTIVES,
    LOCAL_WITH_AXES,
    NAME,
    STATEFUL,
)
from replicax.errors import ProgramError
from replicax.program.ir.jaxprs import DECISION, ROWS, Atom, is_literal, programs_in, with_inner
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.values.aggregation import assigned_in
from replicax.values.equality import OWN_DATA, Difference

#: For each of some values, why it may differ; None if it is equal on all replicas.
Differences = list[Difference | None]


@dataclasses.dataclass
class Divergence:
    """The values of a program that may differ between replicas."""

    outputs: Differences
    decisions: dict[int, Difference | None]  # of the values that are marked as those of decisions, by their numbers
    # Collectives that not all replicas would reach, or not equally often.
    split_meetings: list[tuple[jex_core.JaxprEqn, Difference]]
    # Operations of a backward pass whose results JAX takes to be equal, and that are not: it does not sum over the
    # replicas where it should.
    split_gradients: list[tuple[jex_core.JaxprEqn, Difference]]
    # Loops that not all replicas repeat equally often, in which numbers are drawn that belong to rows.
    split_draws: list[jex_core.JaxprEqn]
    differing: dict[int, dict[Atom, Difference | None]]  # by the ids of the programs in it

    @property
    def splits_gradients(self) -> bool:
        """Whether not all replicas would come by a sum of gradients, or JAX leaves one out."""
        return bool(self.split_gradients) or any("transpose(" in scopes(each) for each, _ in self.split_meetings)

    def values(self, jaxpr: jex_core.Jaxpr) -> dict[Atom, Difference | None]:
        """Returns the values in a program in it that is reached once, and why they may differ (None: they do not)."""
        return self.differing[id(jaxpr)]

    def check_meetings(self, name: str) -> None:
        """Checks that all replicas come by all collectives of a program equally often."""
        if not self.split_meetings:
            return
        equation, split = self.split_meetings[0]
        variable = assigned_in(scopes(equation))
        if variable is not None:
            raise ProgramError(
                f"{name} assigns variable {variable!r} where not all replicas may be: whether it is assigned "
                f"{split.reason}. Its value is combined over the replicas, so all of them must assign it equally "
                "often, or those that do wait forever. Assign it before or after the branch or loop (the state of a "
                "seed generator: draw the random number before, and use it inside), or let all replicas decide "
                "alike: combine the predicate first (rx.get_replica_context().all_reduce, jax.lax.pmax)."
            )
        raise ProgramError(
            f"{name} calls the collective `{equation.primitive.name}` ({location(equation)}) where not all "
            f"replicas may meet: whether it is reached {split.reason}. All replicas must call a collective equally "
            "often, or those that do wait forever. Move it out of the branch or loop, or let all replicas decide "
            "alike: combine the predicate first (rx.get_replica_context().all_reduce, jax.lax.pmax)."
        )


def find_divergence(program: jex_core.ClosedJaxpr, constants: Differences | None = None) -> Divergence:
    """Finds what may differ between replicas in a replica's program, as traced inside `jax.shard_map`."""
    search = _Search()
    jaxpr = program.jaxpr
    # Values that are typed as varying differ, all others are equal; of constants, more than the type may be known.
    inputs = [_of_type(var.aval) for var in jaxpr.invars]
    constants = [_of_type(var.aval) for var in jaxpr.constvars] if constants is None else constants
    outputs = search.outputs(jaxpr, constants + inputs, None)
    return Divergence(
        outputs,
        search.decisions,
        list(search.split_meetings.values()),
        search.split_gradients,
        list(search.split_draws.values()),
        search.differing,
    )


def _of_type(aval: jax.core.AbstractValue) -> Difference | None:
    return OWN_DATA if REPLICA_AXIS in axes_of_type(aval) else None


def _joined(differences: Iterable[Difference | None]) -> Difference | None:
    """Returns a difference if there is one among `differences`, by preference one that needs an explanation."""
    found = None
    for each in differences:
        if each is not None:
            if each.reason is not None:
                return each
            found = each
    return found


class _Search:
    """One pass over a program. Each inner program is looked at once for each way in which its inputs differ."""

    # `control` is why the replicas may not all do what is being looked at, or not equally often; None if they do.

    def __init__(self) -> None:
        self.decisions: dict[int, Difference | None] = {}
        self.split_meetings: dict[int, tuple[jex_core.JaxprEqn, Difference]] = {}
        self.split_gradients: list[tuple[jex_core.JaxprEqn, Difference]] = []
        self.split_draws: dict[int, jex_core.JaxprEqn] = {}
        self._is_backward = False  # whether what is being looked at computes gradients
        self.differing: dict[int, dict[Atom, Difference | None]] = {}
        self._done: dict[Hashable, Differences] = {}
        self._of_equations: dict[Hashable, Difference] = {}
        self._sources: dict[int, bool] = {}
        self._rules: dict[str, Callable[..., Differences]] = {
            "cond": self._cond,
            "while": self._while,
            "scan": self._scan,
            "custom_linear_solve": self._solve,
            NAME: self._name,
            "axis_index": self._axis_index,
            "optimization_barrier": lambda equation, inputs, control: inputs,
            "replicax_assert_equal_over_axis": _promised,
        }
        self._rules |= dict.fromkeys(CALLS_ON_OPERANDS, self._call)
        self._rules |= dict.fromkeys(CALLBACKS, self._callback)
        self._rules |= dict.fromkeys(STATEFUL, self._stateful)

    def outputs(
        self, jaxpr: jex_core.Jaxpr, inputs: Sequence[Difference | None], control: Difference | None
    ) -> Differences:
        """Returns which results of a program differ; `inputs` stands for its constants and then its inputs."""
        key = (id(jaxpr), tuple(inputs), control, self._is_backward)
        if key not in self._done:
            self._done[key] = self._outputs(jaxpr, inputs, control)
        return self._done[key]

    def _inner(
        self, jaxpr: jex_core.Jaxpr, inputs: Sequence[Difference | None], control: Difference | None
    ) -> Differences:
        """Searches a program inside of another; its constants are numbers."""
        return self.outputs(jaxpr, [None] * len(jaxpr.constvars) + [*inputs], control)

    def _outputs(
        self, jaxpr: jex_core.Jaxpr, inputs: Sequence[Difference | None], control: Difference | None
    ) -> Differences:
        differs: dict[Atom, Difference | None] = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))

        def of(atom: Atom) -> Difference | None:
            return None if is_literal(atom) else differs[atom]

        for equation in jaxpr.eqns:
            operands = [of(atom) for atom in equation.invars]
            references = [atom for atom in equation.invars if _is_reference(atom)]
            if references and self._may_store(equation, operands, control):
                why = _joined([*operands, control]) or OWN_DATA
                for reference in references:
                    differs[reference] = why
                operands = [of(atom) for atom in equation.invars]
            rule = self._rules.get(equation.primitive.name)
            around, self._is_backward = self._is_backward, rule is not None and self._goes_backward(equation)
            results = (rule or self._other)(equation, operands, control)
            self._is_backward = around
            self._check_gradient(equation, results)
            differs.update(zip(equation.outvars, results, strict=True))
        self.differing[id(jaxpr)] = differs
        return [of(atom) for atom in jaxpr.outvars]

    def _goes_backward(self, equation: jex_core.JaxprEqn) -> bool:
        if equation.primitive.name == "shard_map" and not equation.params.get("check_vma", True):
            return False  # Nothing is typed there.
        names = scopes(equation)
        return "rematted_computation" not in names and (self._is_backward or "transpose(" in names)

    def _check_gradient(self, equation: jex_core.JaxprEqn, results: Differences) -> None:
        """Notes an operation of a backward pass whose result is typed as equal and is not."""
        # A gradient with respect to an equal value is the sum of what the replicas contribute. JAX sums where its types
        # change from varying to equal, so with a wrong type the sum is missing.
        for why, out in zip(results, equation.outvars, strict=True):
            if why is not None and _of_type(out.aval) is None and self._goes_backward(equation):
                self.split_gradients.append((equation, why))
                return

    def _may_store(self, equation: jex_core.JaxprEqn, operands: Differences, control: Difference | None) -> bool:
        """Returns whether an operation on a reference (mutable array) may put something in it that differs."""
        if equation.primitive.name == "get":
            return False
        return _joined([*operands, control]) is not None or any(map(self._has_source, programs_in(equation)))

    # Rules: (equation, what differs among its operands, control) -> what differs among its results.

    def _other(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        axes = _axes(equation)
        if REPLICA_AXIS in axes and equation.primitive.name not in LOCAL_WITH_AXES:
            return self._meeting(equation, inputs, control)
        why = _joined(inputs)
        inner = programs_in(equation)
        if inner:
            # Nothing is known of how the inner programs are called: with anything that goes in.
            found = [self._inner(jaxpr, [why] * len(jaxpr.invars), control) for jaxpr in inner]
            why = _joined([why, *(each for outputs in found for each in outputs)])
            if why is None and any(map(self._has_source, inner)):
                why = OWN_DATA
        return [why] * len(equation.outvars)

    def _meeting(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        if control is not None:
            self.split_meetings[id(equation)] = (equation, control)
        equal = equation.primitive.name in EQUALIZING_COLLECTIVES and equation.params.get("axis_index_groups") is None
        return [None if equal else _joined(inputs) or OWN_DATA] * len(equation.outvars)

    def _axis_index(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        return [OWN_DATA if REPLICA_AXIS in _axes(equation) else None]

    def _name(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        number = DECISION.number(equation)
        if number is not None:
            self.decisions[number] = self.decisions.get(number) or inputs[0]
        return inputs

    def _callback(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        name = equation.primitive.name
        why = self._because(equation, f"comes from a `{name}`, which each replica calls by itself")
        return [why] * len(equation.outvars)

    def _stateful(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        why = self._because(equation, f"comes from `{equation.primitive.name}`, which each device answers by itself")
        return [why] * len(equation.outvars)

    def _call(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        inner = programs_in(equation)
        if len(inner) != 1 or not _has_shape_of(equation, inner[0]):
            return self._other(equation, inputs, control)
        return self._inner(inner[0], inputs, control)

    def _solve(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        # Its other programs say how to differentiate it, and are not called any more.
        solve = equation.params["jaxprs"].solve.jaxpr
        of_matvec, of_vecmat, of_solve, of_transposed = equation.params["const_lengths"]
        before = of_matvec + of_vecmat
        right_hand_side = inputs[before + of_solve + of_transposed :]
        # JAX does not differentiate what is in it: there no sum of a gradient can be missing.
        self._is_backward = False
        return self._inner(solve, [*inputs[before : before + of_solve], *right_hand_side], control)

    def _cond(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        predicate, *operands = inputs
        if predicate is not None:
            control = self._because(equation, "depends on which branch of a `cond` or `switch` each replica takes")
        branches = [self._inner(branch.jaxpr, operands, control) for branch in equation.params["branches"]]
        chosen = control if predicate is not None else None
        return [_joined([*results, chosen]) for results in zip(*branches, strict=True)]

    def _while(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        params = equation.params
        condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        of_condition, of_body, carry = inputs[:first], inputs[first:second], inputs[second:]
        split = self._because(equation, "depends on how often each replica repeats a `while_loop` or `fori_loop`")
        ends_apart = False
        while True:
            inside = split if ends_apart else control
            predicate = self._inner(condition, of_condition + carry, inside)
            results = self._inner(body, of_body + carry, inside)
            ends_apart_now = ends_apart or predicate[0] is not None
            merged = _carried(carry, results)
            if ends_apart_now:
                merged = [each or split for each in merged]
            if ends_apart_now == ends_apart and _same(merged, carry):
                if ends_apart and any(ROWS.is_on(each) for each in with_inner(equation)):
                    self.split_draws[id(equation)] = equation
                return carry
            carry, ends_apart = merged, ends_apart_now

    def _scan(self, equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
        params = equation.params
        consts, carries = scan_counts(params)
        fixed, carry, rows = inputs[:consts], inputs[consts : consts + carries], inputs[consts + carries :]
        while True:
            results = self._inner(params["jaxpr"].jaxpr, fixed + carry + rows, control)
            merged = _carried(carry, results[:carries])
            if _same(merged, carry):
                return carry + results[carries:]
            carry = merged

    def _because(self, equation: jex_core.JaxprEqn, reason: str) -> Difference:
        if id(equation) not in self._of_equations:
            self._of_equations[id(equation)] = Difference(f"{reason} ({location(equation)})")
        return self._of_equations[id(equation)]

    def _has_source(self, jaxpr: jex_core.Jaxpr) -> bool:
        """Returns whether something in a program makes a difference of its own."""
        if id(jaxpr) not in self._sources:
            self._sources[id(jaxpr)] = any(
                _is_source(equation) or any(map(self._has_source, programs_in(equation))) for equation in jaxpr.eqns
            )
        return self._sources[id(jaxpr)]


def _promised(equation: jex_core.JaxprEqn, inputs: Differences, control: Difference | None) -> Differences:
    return [None] if equation.params["proven"] else inputs


def _carried(carry: Differences, results: Differences) -> Differences:
    return [before or after for before, after in zip(carry, results, strict=True)]


def _same(some: Differences, others: Differences) -> bool:
    return all((a is None) == (b is None) for a, b in zip(some, others, strict=True))


def _is_source(equation: jex_core.JaxprEqn) -> bool:
    name = equation.primitive.name
    if name in CALLBACKS or name in STATEFUL:
        return True
    if name == "axis_index":
        return REPLICA_AXIS in _axes(equation)
    return REPLICA_AXIS in _axes(equation) and name not in EQUALIZING_COLLECTIVES | LOCAL_WITH_AXES


def _axes(equation: jex_core.JaxprEqn) -> tuple[Hashable, ...]:
    """Returns the mesh axes that an operation names."""
    axes = equation.params.get("axis_name", equation.params.get("axes", ()))
    return tuple(axes) if isinstance(axes, tuple | list | frozenset | set) else (axes,)


def _has_shape_of(equation: jex_core.JaxprEqn, jaxpr: jex_core.Jaxpr) -> bool:
    return len(jaxpr.invars) == len(equation.invars) and len(jaxpr.outvars) == len(equation.outvars)


def _is_reference(atom: Atom) -> bool:
    return hasattr(atom.aval, "inner_aval")
