"""Compares what replicax claims of random replica functions with what their replicas really hold.

A claim is: this result is `Mirrored`, the copies of this variable are equal, this value was equal where it decided
something (so that a mean, a sum or a refusal went by it). Each program also runs in a reference world without types; a
program that was refused is looked at there: were the values equal after all?

Usage: python tests/soak/replica_safety.py --programs 2000
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.compat.jax import varying_axes
from replicax.errors import ProgramError, ReduceError, ReplicaDivergenceError, VariableError
from tests.soak.replica_programs import AXIS, SHAPE, VARIABLES, Program, World, all_steps, generated

_AT_ONCE = 10  # programs in one compiled function
_TRIES = 64  # inputs by which a refusal is judged
_REFUSALS = (ReplicaDivergenceError, ReduceError, VariableError, ProgramError)


class Replicas(World):
    """replicax's world."""

    def __init__(self, variables: dict[str, Any]):
        super().__init__()
        self.variables, self.differentiates = variables, False

    def own(self, a: Any) -> Any:
        if self.differentiates:  # All that is made of variables is typed as varying there; what counts is the data.
            return a + 0.0 * jax.lax.axis_index(AXIS)
        return a if AXIS in varying_axes(a) else jax.lax.pcast(a, (AXIS,), to="varying")

    def do_read(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return self.variables["plain"].value + a

    def do_all_reduce_sum(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.tanh(rx.get_replica_context().all_reduce("sum", a))

    def do_all_reduce_mean(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return rx.get_replica_context().all_reduce("mean", a)

    def do_merge(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return rx.get_replica_context().merge_call(lambda strategy, x: strategy.reduce("mean", x), args=(a,))

    def do_variable_grad_sum(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return self._gradient(inner[0], a, "sum")

    def do_variable_grad_mean(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return self._gradient(inner[0], a, "mean")

    def _gradient(self, body: Any, a: Any, aggregation: str) -> Any:
        w = self.variables["plain"]

        def loss() -> Any:
            before, self.differentiates = self.differentiates, True
            result = jnp.sum(w.value * body(jnp.sin(w.value) + a))
            self.differentiates = before
            return result

        return jnp.tanh(rx.grad(loss, w, aggregation=aggregation)())

    def assign(self, name: str, value: Any) -> None:
        self.variables[name].assign(value)


class Reference(World):
    """The same under `jax.vmap`; notes what was equal, for judging refusals."""

    def __init__(self, variables: dict[str, Any], own: Any):
        super().__init__()
        self.variables = dict(variables)
        self.differed: dict[str, Any] = {}
        self._own = own  # How much what each replica has by rule differs from replica to replica.

    def _note(self, what: str, value: Any) -> None:
        if self.depth == 0:
            rows = jax.lax.all_gather(value, AXIS)
            differs = jnp.any(rows != rows[:1])
            self.differed[what] = jnp.logical_or(self.differed.get(what, False), differs)

    def do_callback(self, *step: Any) -> Any:
        return super().do_callback(*step) + self._own * jax.lax.axis_index(AXIS)

    def do_permute(self, *step: Any) -> Any:
        return super().do_permute(*step) + self._own * jax.lax.axis_index(AXIS)

    def predicate(self, value: Any) -> Any:
        self._note(f"predicate {self.noted}", value)
        return value

    def do_read(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return self.variables["plain"] + a

    def do_all_reduce_sum(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        self._note(f"reduced {self.noted}", a)
        return jnp.tanh(jax.lax.psum(a, AXIS))

    def do_all_reduce_mean(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.lax.pmean(a, AXIS)

    def do_merge(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jax.lax.pmean(a, AXIS)

    def do_variable_grad_sum(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.tanh(jax.lax.psum(self._gradient(inner[0], a), AXIS))

    def do_variable_grad_mean(self, _: Any, inner: Any, a: Any, b: Any, c: Any) -> Any:
        return jnp.tanh(jax.lax.pmean(self._gradient(inner[0], a), AXIS))

    def _gradient(self, body: Any, a: Any) -> Any:
        held = self.variables["plain"]

        def loss(w: Any) -> Any:
            self.variables["plain"] = w  # What the body reads is differentiated, too.
            result = jnp.sum(w * body(jnp.sin(w) + a))
            self.variables["plain"] = held
            return result

        return jax.grad(loss)(held)

    def assign(self, name: str, value: Any) -> None:
        self._note(f"assigned {name}", value)
        how = VARIABLES.get(name)
        if how == "sum":
            value = jax.lax.psum(value, AXIS)
        elif how == "mean":
            value = jax.lax.pmean(value, AXIS)
        elif how == "only_first_replica":
            value = jax.lax.all_gather(value, AXIS)[0]
        self.variables[name] = value


class Judge:
    """Runs programs in both worlds and compares."""

    def __init__(self, replicas: int, seed: int):
        self.strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])
        self.replicas, self.seed = replicas, seed
        chance = np.random.default_rng(seed)
        # The first try is what both worlds run; refusals are judged by all. By rule, what comes from a callback or from
        # another replica is a replica's own, also where it is equal: it differs in all others.
        shapes = [(replicas, *SHAPE), SHAPE, (replicas, *SHAPE)]
        self.tries = [(*map(chance.normal, (0,) * 3, (1,) * 3, shapes), 0.1 if i else 0.0) for i in range(_TRIES)]
        self.initial = chance.normal(size=SHAPE).astype(np.float32)

    def judged(self, programs: Sequence[Program]) -> list[tuple[str, str]]:
        """Returns for each program what is to be said of it, and details."""
        expected = self._expected(programs)
        try:
            outcome = self._really(programs)
        except _REFUSALS:  # Something of one of them that is known at the end of the trace only.
            outcome = [self._alone(program) for program in programs]
        return [self._said(*each) for each in zip(programs, outcome, expected, strict=True)]

    def _alone(self, program: Program) -> Any:
        try:
            return self._really([program])[0]
        except _REFUSALS as error:
            return error

    def _really(self, programs: Sequence[Program]) -> list[Any]:
        variables = [self._variables() for _ in programs]
        refusals: dict[int, Exception] = {}
        results = self._function(programs, variables, refusals)(*self._arguments())
        found = [(results[i], variables[i]) for i in range(len(programs))]
        return [refusals.get(i, each) for i, each in enumerate(found)]

    def _arguments(self) -> tuple[Any, Any, Any]:
        x, e, k = (jnp.asarray(value, jnp.float32) for value in self.tries[0][:3])
        return rx.PerReplica(x), e, rx.PerReplica(k)

    def _function(self, programs: Sequence[Program], variables: Any, refusals: dict[int, Exception]) -> Any:
        def replica(x: Any, e: Any, k: Any) -> list[Any]:
            refusals.clear()
            results = []
            for i, program in enumerate(programs):
                try:
                    results.append(Replicas(variables[i]).run(program, (x, e, k)))
                except (*_REFUSALS, TypeError, ValueError) as error:
                    refusals[i] = error
                    results.append([])
            return results

        return rx.function(lambda *args: self.strategy.run(replica, args=args))

    def _variables(self) -> dict[str, Any]:
        with self.strategy.scope():
            found = {name: rx.Variable(self.initial, aggregation=how, name=name) for name, how in VARIABLES.items()}
            found["own"] = rx.Variable(self.initial, synchronization="on_read", aggregation="sum", name="own")
        return found

    def _expected(self, programs: Sequence[Program]) -> list[Any]:
        def one_try(x: Any, e: Any, k: Any, own: Any) -> list[Any]:
            found = []
            for program in programs:
                world = Reference({name: jnp.asarray(self.initial) for name in [*VARIABLES, "own"]}, own)
                results = world.run(program, (x, e, k))
                found.append((results, world.variables, world.differed))
            return found

        over_replicas = jax.vmap(one_try, in_axes=(0, None, 0, None), axis_name=AXIS, axis_size=self.replicas)
        arrays = [jnp.asarray(np.stack(column), jnp.float32) for column in zip(*self.tries, strict=True)]
        found = jax.jit(lambda *tries: jax.lax.map(lambda one: over_replicas(*one), tries))(*arrays)
        return jax.tree_util.tree_map(np.asarray, found)

    def _said(self, program: Program, outcome: Any, expected: Any) -> tuple[str, str]:
        results, variables, differed = expected
        if isinstance(outcome, Exception):
            return self._of_refusal(program, outcome, {what: bool(rows.any()) for what, rows in differed.items()})
        problems = []
        for i, (result, rows) in enumerate(zip(outcome[0], results, strict=True)):
            problems += self._of_value(program, f"result {i}", result, rows[0])
        for name, _ in program.assigned:
            problems += self._of_value(program, f"variable {name}", outcome[1][name]._value, variables[name][0])
        return ("unsound", "; ".join(problems)) if problems else ("accepted", "")

    def _of_value(self, program: Program, what: str, value: Any, rows: np.ndarray) -> list[str]:
        if isinstance(value, rx.PerReplica) or what == "variable own":
            held = np.asarray(getattr(value, "stacked", value))
        else:
            copies = [np.asarray(shard.data) for shard in value.addressable_shards]
            if any(copy.tobytes() != copies[0].tobytes() for copy in copies):
                return [f"{what} is claimed to be equal and is {copies}"]
            held = np.stack([copies[0]] * self.replicas)
        if program.is_exact and not np.allclose(held, rows, rtol=1e-3, atol=1e-4, equal_nan=True):
            return [f"{what} is {held.tolist()}, should be {rows.tolist()}"]
        return []

    def _of_refusal(self, program: Program, error: Exception, differed: dict[str, bool]) -> tuple[str, str]:
        said = f"{type(error).__name__}: {str(error)[:300]}"
        if not program.is_exact:
            sound = False  # The reference's values are other ones.
        elif isinstance(error, ReplicaDivergenceError):
            sound = not differed[f"assigned {error.variable}"]
        elif isinstance(error, VariableError):
            sound = differed["assigned sum"]
        elif isinstance(error, ReduceError):
            sound = all(differs for what, differs in differed.items() if what.startswith("reduced"))
        elif isinstance(error, ProgramError) and "computes a gradient" in str(error):
            sound = False
        elif isinstance(error, ProgramError) and "may meet" in str(error):
            sound = not any(differs for what, differs in differed.items() if what.startswith("predicate"))
            nested = [s for step in program.steps for body in step.bodies for s in all_steps(body.steps)]
            if any(step.kind in ("cond", "switch", "fori", "while") for step in nested):
                sound = False  # Predicates inside are not noted.
        else:
            return "ill-typed", said
        return ("refused_sound" if sound else "refused"), said


def soak(programs: int, seed: int = 0, replicas: Sequence[int] = (2, 3)) -> dict[str, Any]:
    """Returns how many programs there were of each kind, and what was wrong with the unsound ones."""
    counts: Counter[str] = Counter()
    details: list[str] = []
    judges = [Judge(number, seed) for number in replicas]
    for first in range(0, programs, _AT_ONCE):
        batch = [generated(number, seed) for number in range(first, min(first + _AT_ONCE, programs))]
        judge = judges[0] if first // _AT_ONCE % 4 else judges[-1]
        for program, (kind, said) in zip(batch, judge.judged(batch), strict=True):
            counts[kind] += 1
            if kind in ("unsound", "refused_sound", "ill-typed"):
                details.append(f"{kind} program {program.number} of {judge.replicas} replicas: {said}")
    return {"counts": dict(counts), "details": details}


def main() -> int:
    """Runs the soak and prints what it found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="say what was refused although sound, too")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 3)
    begin = time.monotonic()
    found = soak(options.programs, options.seed)
    for line in found["details"]:
        if options.verbose or line.startswith("unsound"):
            print(line)
    counts = found["counts"]
    print(f"{options.programs} programs in {time.monotonic() - begin:.0f} s: {counts}")
    print(f"RESULT unsound_programs {counts.get('unsound', 0)}")
    print(f"RESULT refused_sound_programs {counts.get('refused_sound', 0)}")
    return 1 if counts.get("unsound") else 0


if __name__ == "__main__":
    sys.exit(main())
