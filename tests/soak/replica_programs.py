"""Random replica functions: a description that can be run in two worlds.

In replicax's world a program runs inside `strategy.run`. In the reference's it runs under `jax.vmap` over an axis of
the same name, where nothing is decided by types: every value simply has a row for each replica.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

AXIS, SHAPE = "replica", (2,)
VARIABLES = {"plain": "none", "mean": "mean", "sum": "sum", "first": "only_first_replica"}
INPUTS = 3  # per-replica x, equal e, per-replica number k
_DEEPEST = 2


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation on earlier values, given by their numbers."""

    kind: str
    of: tuple[int, ...] = ()
    bodies: tuple[Body, ...] = ()
    detail: Any = None


@dataclasses.dataclass(frozen=True)
class Body:
    """Steps that work on the values around them and an argument (the last of them), and the number of the result."""

    steps: tuple[Step, ...]
    result: int


@dataclasses.dataclass(frozen=True)
class Program:
    """A replica function: its steps, what it assigns to which variable, and what it returns."""

    number: int
    steps: tuple[Step, ...]
    assigned: tuple[tuple[str, int], ...]
    returned: tuple[int, ...]

    @property
    def is_exact(self) -> bool:
        """Whether both worlds must come to the same numbers."""
        return not any(step.kind == "plain_grad" for step in all_steps(self.steps))


def all_steps(steps: Sequence[Step]) -> list[Step]:
    """Returns the steps and those in their bodies."""
    return [found for step in steps for found in [step, *(s for body in step.bodies for s in all_steps(body.steps))]]


def generated(number: int, seed: int) -> Program:
    """Returns the program of a number."""
    chance = random.Random(f"{seed}/{number}")
    known = INPUTS
    steps: list[Step] = []
    for _ in range(chance.randint(3, 6)):
        steps.append(_step(chance, known, 0))
        known += 1
    names = chance.sample(sorted(VARIABLES), chance.randint(1, 2))
    # By preference late values: they depend on more.
    late = [max(chance.randrange(known), chance.randrange(known)) for _ in range(8)]
    assigned = tuple((name, late[i]) for i, name in enumerate(names))
    read = (("own", late[4]),) if chance.random() < 0.3 else ()
    return Program(number, tuple(steps), assigned + read, tuple(late[5:]))


_SIMPLE = ["add", "mul", "sin", "where", "const", "read"]
_FLOW = ["cond", "switch", "fori", "while", "scan"]
_CALLS = ["jit", "remat", "custom_jvp", "custom_vjp", "vmap", "closed_jit"]
_MEETINGS = ["psum", "pmean", "pmax", "gather", "permute"]
_RARE = ["index", "callback", "random", "grad", "plain_grad"]
_TOP = [
    "all_reduce_sum",
    "all_reduce_mean",
    "all_reduce_mean",
    "merge",
    "merge",
    "variable_grad_sum",
    "variable_grad_mean",
]


def _step(chance: random.Random, known: int, depth: int, smooth: bool = False) -> Step:
    # In the body of a gradient is nothing that JAX cannot differentiate, or that the worlds differentiate differently.
    def pick() -> int:
        return chance.randrange(known) if chance.random() < 0.5 else max(0, known - 1 - chance.randrange(3))

    def body(smooth: bool = smooth) -> Body:
        inner = [_step(chance, known + 1 + i, depth + 1, smooth) for i in range(chance.randint(1, 2))]
        return Body(tuple(inner), known + len(inner))

    groups = [(_SIMPLE, 4), (_FLOW, 5 if depth < _DEEPEST else 0), (_CALLS, 2 if depth < _DEEPEST else 0), (_RARE, 1)]
    groups += [(_MEETINGS, (2 if depth == 0 else 0.15) if not smooth else 0), (_TOP, 1 if depth == 0 else 0)]
    [group] = chance.choices([group for group, _ in groups], [weight for _, weight in groups])
    kind = chance.choice(group)
    if smooth and kind in ("fori", "while", "callback"):
        kind = "cond" if depth < _DEEPEST else "sin"
    of = (pick(), pick(), pick())
    if kind in ("cond", "switch"):
        return Step(kind, of, tuple(body() for _ in range(2 if kind == "cond" else 3)), chance.uniform(-1, 1))
    if kind in ("grad", "plain_grad") or kind.startswith("variable_grad"):
        if depth >= _DEEPEST:
            return Step("sin", of)
        return Step(kind, of, (body(smooth=True),))
    if kind in _FLOW or kind in _CALLS:
        return Step(kind, of, (body(),), chance.random() < 0.5)
    return Step(kind, of, (), chance.uniform(-1, 1))


class PlainOperations:
    """Operations on float32 of `SHAPE`."""

    def do_add(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return a + 0.5 * b

    def do_mul(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.tanh(a * b)

    def do_sin(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.sin(3 * a)

    def do_where(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.where(a > b, b, c)

    def do_const(self, value: float, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.full(SHAPE, value, jnp.float32)

    def do_callback(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        shape = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
        return jax.pure_callback(lambda x: np.tanh(np.asarray(x)), shape, a, vmap_method="sequential")

    def do_random(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.random.uniform(jax.random.fold_in(jax.random.key(1), self.number(a, 5)), SHAPE)


class ControlFlow:
    """Branches, loops, calls and transformations."""

    def number(self, a: Any, below: int) -> Any:
        """Returns a small number that depends on `a`."""
        return jnp.abs(10 * jnp.sum(a)).astype(jnp.int32) % below

    def do_cond(self, limit: float, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.lax.cond(self.predicate(jnp.sum(a) > limit), *inner, b)

    def do_switch(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.lax.switch(self.predicate(self.number(a, 3)), inner, b)

    def do_fori(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        trips = self.predicate(self.number(a, 4))
        return jax.lax.fori_loop(0, trips, lambda i, x: jnp.tanh(inner[0](x)), b)

    def do_while(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        trips = self.predicate(self.number(a, 4))
        both = (jnp.int32(0), b)
        return jax.lax.while_loop(lambda s: s[0] < trips, lambda s: (s[0] + 1, jnp.tanh(inner[0](s[1]))), both)[1]

    def do_scan(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return jnp.tanh(inner[0](carry)), row + carry[0]

        carry, rows = jax.lax.scan(step, b, jnp.arange(2.0))
        return carry + rows

    def do_jit(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.jit(inner[0])(a)

    def do_closed_jit(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.jit(lambda x: jax.jit(inner[0])(x) + b)(a)

    def do_remat(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.checkpoint(inner[0])(a)

    def do_vmap(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.vmap(inner[0])(jnp.stack([a, b])).sum(0)

    def do_custom_jvp(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        function = jax.custom_jvp(jnp.tanh)
        function.defjvp(lambda primals, tangents: (jnp.tanh(*primals), 2.0 * tangents[0]))
        return function(inner[0](a))

    def do_custom_vjp(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        function = jax.custom_vjp(jnp.tanh)
        function.defvjp(lambda x: (jnp.tanh(x), x), lambda x, ct: (ct * jnp.cos(x),))
        return function(inner[0](a))

    def do_grad(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.tanh(jax.grad(lambda x: jnp.sum(jnp.sin(x) * inner[0](x)))(self.own(a)))

    def do_plain_grad(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.tanh(jax.grad(lambda x: jnp.sum(jnp.sin(x) * inner[0](x)))(a))


class Collectives:
    """What replicas do together, and what they know of themselves."""

    def do_psum(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.lax.psum(self.own(a), AXIS) / 2  # A sum of what is equal is refused.

    def do_pmean(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.lax.pmean(a, AXIS)

    def do_pmax(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.lax.pmax(a, AXIS)

    def do_gather(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.tanh(jax.lax.all_gather(a, AXIS).sum(0))

    def do_permute(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        replicas = jax.lax.axis_size(AXIS)
        return jax.lax.ppermute(self.own(a), AXIS, [(i, (i + 1) % replicas) for i in range(replicas)])

    def do_index(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return a + jax.lax.axis_index(AXIS)


class World(PlainOperations, ControlFlow, Collectives):
    """How the operations that know of replicas are done; the rest is JAX's."""

    def __init__(self) -> None:
        self.depth = 0

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """Runs the steps, makes the assignments and returns the results."""
        known = list(inputs)
        for i, step in enumerate(program.steps):
            self.noted = i
            known.append(self.step(step, known))
        for name, number in program.assigned:
            self.assign(name, known[number])
        return [known[number] for number in program.returned]

    def body(self, body: Body, known: Sequence[Any]) -> Callable[[Any], Any]:
        """Returns a body as a function of its argument."""

        def call(argument: Any) -> Any:
            self.depth += 1
            values = [*known, argument]
            for step in body.steps:
                values.append(self.step(step, values))
            self.depth -= 1
            return values[body.result]

        return call

    def step(self, step: Step, known: list[Any]) -> Any:
        """Returns the value of one step."""
        a, b, c = (known[i] for i in step.of)
        inner = [self.body(body, known) for body in step.bodies]
        return getattr(self, f"do_{step.kind}")(step.detail, inner, a, b, c)

    # What differs between the worlds.

    def predicate(self, value: Any) -> Any:
        """Returns `value`, which decides about control flow."""
        return value

    def own(self, a: Any) -> Any:
        """Returns `a` as a value of this replica."""
        return a

    def assign(self, name: str, value: Any) -> None:
        """Assigns a variable."""
        raise NotImplementedError
