"""Cutting a traced step in two at the gradient: a worker's half and a server's.

`rx.value_and_grad` marks the gradients in the program (with JAX's own `name` operation, which costs nothing). Whatever
follows from them and ends in a variable is the update; it goes to the server, which has the variables. Everything else
(forward and backward pass, metrics, results) is the worker's, who sends what the update needs: the gradients, or what
they were made into where that does not need the variables (clipping by the global norm, say). Of all places where the
two could be cut, the one is taken where least has to be sent: a minimum cut.

A gradient may follow from an update by another one (a GAN whose generator learns from the discriminator's new weights).
Then the worker does that update, too, on the values that it has read, and the server does it for good.

A variable that is assigned in the forward pass, such as a metric's total or a moving average, is updated by the server
too if the new value is a cheap function of the old one and of something that the worker sends; otherwise the worker
sends the new value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import jax
from jax.extend import core as jex_core

from replicax.compat.jax import axes_of_type
from replicax.compat.jax_names import CHEAP, PLACED
from replicax.program.cut.min_cut import cheapest_cut
from replicax.program.ir.graph import Graph
from replicax.program.ir.interpreter import evaluate, evaluate_elsewhere
from replicax.program.ir.jaxprs import Atom, Values, aval_of, is_mark, is_one_of, read, variables_of
from replicax.runtime.mesh import REPLICA_AXIS


@dataclasses.dataclass(frozen=True)
class Assigned:
    """A variable that the program assigns."""

    output: int  # the number of its new value among the program's outputs
    input: int | None  # that of its old value among the inputs; None if it is not read


@dataclasses.dataclass(frozen=True)
class Part:
    """The server's part for one of the variables."""

    equations: list[jex_core.JaxprEqn]
    outvar: Atom  # the new value: a variable of the program, or a number that stands in it
    inputs: dict[int, jex_core.Var]  # the variables' values that it reads, by their numbers among the program's inputs
    sent: dict[int, jex_core.Var]  # what it takes from the worker, by the numbers in `Split.sent`
    consts: Values


class Split:
    """A program cut in two."""

    def __init__(
        self,
        program: jex_core.ClosedJaxpr,  # flat, see `moving.inlined`
        variables: Iterable[int],  # the inputs that are variables' values; the others are the worker's own
        assigned: Sequence[Assigned],
        only_gradients: bool = False,  # leaves to the worker all that is no update by a gradient
    ):
        self.program, self.assigned = program, list(assigned)
        jaxpr = program.jaxpr
        self._graph = graph = Graph(jaxpr.eqns)
        self._held = held = {jaxpr.invars[i] for i in variables}
        own = [v for v in jaxpr.invars if v not in held]
        consts = zip(jaxpr.constvars, program.consts, strict=True)
        own += [v for v, const in consts if isinstance(const, jax.core.Tracer)]
        own += [out for equation in jaxpr.eqns if is_bound_to_worker(equation) for out in equation.outvars]
        self._from_worker = graph.following(own)
        self._from_held = graph.following(held)
        self._tainted = self._following_gradients()
        self._only_gradients = only_gradients
        self._parts: dict[int, Part] = {}
        self._served: dict[int, jex_core.JaxprEqn] = {}  # equations of the server's half, by identity
        self._leaves: dict[jex_core.Var, None] = {}  # values that they take from the worker, in order
        self.updates = [self._assign(each) for each in self.assigned]  # for each, whether the server computes it
        self._move_to_worker()
        self.sent = list(self._leaves)
        self._equations = [equation for equation in jaxpr.eqns if id(equation) in self._served]
        used = {atom for equation in self._equations for atom in variables_of(equation.invars)}
        used |= set(self._server_outvars())
        self.server_inputs = [
            i for i, v in enumerate(jaxpr.invars) if v in used and v in held and v not in self._leaves
        ]
        self.worker_equations, needed = graph.leading_to(self._made_by_worker(), and_effects=True)
        self.worker_inputs = [i for i, v in enumerate(jaxpr.invars) if v in needed]

    def _following_gradients(self) -> set[jex_core.Var]:
        """Returns the gradients and what is computed from them, up to where the worker begins another gradient."""
        equations = self.program.jaxpr.eqns
        marks = [equation for equation in equations if is_mark(equation)]
        gradients = {out for mark in marks for out in mark.outvars}
        found = self._graph.following(gradients)
        if all(found.isdisjoint(variables_of(mark.invars)) for mark in marks):
            return found
        # Updated weights meet rows there; what meets an update otherwise are numbers, such as a rate.
        rows = {v for v in self._from_worker if aval_of(v).shape}
        found = set(gradients)
        for equation in equations:
            operands = set(variables_of(equation.invars))
            if operands & found and not (operands & rows) - found:
                found.update(equation.outvars)
        return found

    def _server_outvars(self) -> list[jex_core.Var]:
        outvars = self.program.jaxpr.outvars
        pairs = zip(self.assigned, self.updates, strict=True)
        return variables_of(outvars[each.output] for each, served in pairs if served)

    def _made_by_worker(self) -> set[jex_core.Var]:
        served = {each.output for each, flag in zip(self.assigned, self.updates, strict=True) if flag}
        outvars = self.program.jaxpr.outvars
        results = {atom for i, atom in enumerate(outvars) if i not in served and isinstance(atom, jex_core.Var)}
        return results | self._leaves.keys()

    def _assign(self, each: Assigned) -> bool:
        """Decides who computes a variable's new value; returns whether it is the server."""
        new = self.program.jaxpr.outvars[each.output]
        if isinstance(new, jex_core.Literal):
            return not self._only_gradients
        if new in self._tainted and self._takes_on(new):
            self._serve(new)
            return True
        if self._only_gradients:
            return False
        path = self._cheap_path(new, each.input)
        if new in self._tainted or path is None:
            self._leaves[new] = None  # The last writer wins.
        else:
            self._serve(new, path)
        return True

    def _cheap_path(self, new: jex_core.Var, number: int | None) -> list[jex_core.JaxprEqn] | None:
        """Returns cheap equations by which the server computes a new value from variables; None if there are none."""
        jaxpr = self.program.jaxpr
        if new in self._from_worker:  # Then from the old value of the same variable, the input `number`.
            path = [] if number is None else self._graph.between([jaxpr.invars[number]], new)
            is_update = bool(path)
        else:
            path, is_update = self._graph.between(self._held, new), True
        return path if is_update and all(is_one_of(equation, CHEAP) for equation in path) else None

    def _takes_on(self, value: jex_core.Var) -> bool:
        """Returns whether the server can compute a value that follows from gradients."""
        equation = self._graph.producer[value]
        return not is_mark(equation) and not is_bound_to_worker(equation)

    def _serve(self, new: jex_core.Var, path: Iterable[jex_core.JaxprEqn] = ()) -> None:
        """Adds all equations to the server's half that it needs for a value, down to what the worker sends."""
        wanted = {id(equation) for equation in path}
        todo = [new]
        while todo:
            value = todo.pop()
            equation = self._graph.producer.get(value)
            if equation is None:
                if value in self._from_worker:
                    self._leaves[value] = None
            elif self._is_servers(value, equation, wanted):
                if id(equation) not in self._served:
                    self._served[id(equation)] = equation
                    todo += [atom for atom in equation.invars if isinstance(atom, jex_core.Var)]
            else:
                self._leaves[value] = None

    def _is_servers(self, value: jex_core.Var, equation: jex_core.JaxprEqn, wanted: set[int]) -> bool:
        if id(equation) in wanted:
            return True
        if value in self._tainted:
            return self._takes_on(value)
        if value in self._from_worker:
            # A variable times a rate that is an argument, say: the rate is sent.
            return value in self._from_held and is_one_of(equation, CHEAP) and not is_bound_to_worker(equation)
        return True  # From variables alone the server computes it itself.

    def _move_to_worker(self) -> None:
        """Lets the worker do what needs no variable, as long as no more has to be sent for it."""
        able: dict[int, jex_core.JaxprEqn] = {}
        constants = set(self.program.jaxpr.constvars)
        known = constants | self._leaves.keys()
        for equation in self.program.jaxpr.eqns:
            operands = {atom for atom in equation.invars if isinstance(atom, jex_core.Var)}
            if id(equation) in self._served and operands <= known:
                able[id(equation)] = equation
                known |= set(equation.outvars)
        if not able:
            return
        wanted = set(self._server_outvars())
        for key, equation in self._served.items():
            if key not in able:
                wanted |= {atom for atom in equation.invars if isinstance(atom, jex_core.Var)}
        wanted &= known - (constants - self._leaves.keys())
        self._leaves = dict.fromkeys(cheapest_cut(list(self._leaves), list(able.values()), wanted))
        for key in able:
            del self._served[key]
        for value in wanted - self._leaves.keys():
            self._restore(value, able)

    def _restore(self, value: jex_core.Var, able: dict[int, jex_core.JaxprEqn]) -> None:
        todo = [value]
        while todo:
            value = todo.pop()
            equation = self._graph.producer.get(value)
            if value in self._leaves or equation is None or id(equation) not in able:
                continue
            if id(equation) not in self._served:
                self._served[id(equation)] = equation
                todo += [atom for atom in equation.invars if isinstance(atom, jex_core.Var)]

    # Running the halves.

    def worker(self, args: Sequence[jax.Array | None]) -> tuple[list[jax.Array | None], list[jax.Array]]:
        """Returns the outputs of the program, None for those that the server computes, and what is sent to it."""
        values = self.inputs(args)
        evaluate(self.worker_equations, values)
        return self.worker_results(values)

    def worker_results(self, values: Values) -> tuple[list[jax.Array | None], list[jax.Array]]:
        """Returns what `worker` returns, from values of which the worker's half has been evaluated."""
        served = {each.output for each, flag in zip(self.assigned, self.updates, strict=True) if flag}
        outputs = [None if i in served else read(atom, values) for i, atom in enumerate(self.program.jaxpr.outvars)]
        return outputs, [values[leaf] for leaf in self.sent]

    def server(self, args: Sequence[jax.Array | None], sent: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the new values that the server computes, in the order of `assigned`; reads only `server_inputs`."""
        values = self.inputs(args) | dict(zip(self.sent, sent, strict=True))
        evaluate_elsewhere(self._equations, values)
        outvars = self.program.jaxpr.outvars
        pairs = zip(self.assigned, self.updates, strict=True)
        return [read(outvars[each.output], values) for each, flag in pairs if flag]

    def part(self, number: int) -> Part:
        """Returns the server's part that computes the new value of a variable, by its number in `assigned`."""
        if number not in self._parts:  # Kept, since placing and the programs of all servers use it.
            self._parts[number] = self._part(number)
        return self._parts[number]

    def _part(self, number: int) -> Part:
        outvar = self.program.jaxpr.outvars[self.assigned[number].output]
        equations, needed = Graph(self._equations).leading_to(variables_of([outvar]))
        invars = self.program.jaxpr.invars
        return Part(
            equations,
            outvar,
            {i: invars[i] for i in self.server_inputs if invars[i] in needed},
            {i: leaf for i, leaf in enumerate(self.sent) if leaf in needed},
            dict(zip(self.program.jaxpr.constvars, self.program.consts, strict=True)),
        )

    def inputs(self, args: Sequence[jax.Array | None]) -> Values:
        """Returns the values of the program's inputs and constants."""
        jaxpr = self.program.jaxpr
        return dict(zip([*jaxpr.constvars, *jaxpr.invars], [*self.program.consts, *args], strict=True))


def is_bound_to_worker(equation: jex_core.JaxprEqn) -> bool:
    """Returns whether an equation acts on the outside world, on a mesh, or on values that differ between replicas."""
    if equation.effects or is_one_of(equation, PLACED):
        return True
    return any(REPLICA_AXIS in axes_of_type(atom.aval) for atom in [*equation.invars, *equation.outvars])
