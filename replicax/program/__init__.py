"""Programs: Python functions that read and assign variables, as compiled functions.

The problem: a step of a training loop is Python with side effects. It reads weights and assigns them, counts in
metrics, draws from a seed generator. XLA compiles pure functions. `jax.jit` leaves it to the author to pass all of that
in and out; here the first is turned into the second. For example:

    w = rx.Variable(0.0)

    @rx.function
    def step(x):
        w.assign_add(x)
        return 2 * w.value

    step(jnp.float32(3.0))

1. `function.py` looks for a program of this signature: the structure, shapes and dtypes of the arguments
   (`pytrees.py` flattens them), the strategy and the mode. The first call finds none and makes one.
2. `lifting.py` makes it. `tracing.py` calls `step` once, in a frame (`frames.py`): reading `w` gives a placeholder and
   notes an input, assigning it notes an output (`accesses.py`). Keras variables do the same through `keras/state.py`
   and `keras/hooks.py`, flax's through `flax/`. Layers that build themselves in the first call need another pass.
3. The traced function is `(w, x) -> (w + x, 2 * (w + x))`. `compiled_pass.py` compiles it with the buffer of `w`
   donated, so that the update happens in place. `bound_variables.py` knows where the values of its variables live.
4. Each call places the arguments, copies buffers that somebody else holds before they are donated (`own`), runs the
   program, and stores the new values in the variables, all at once or not at all (`storing.py`).

Under a strategy, `strategy.run(fn, args)` inside `step` adds one level:

5. `replicas/replica.py` maps `fn` over the replicas with `jax.shard_map`. `replicas/replica_program.py` traces it once
   more, in the frame of a replica. Each decision of its Python that depends on whether a value is equal on all replicas
   is marked (`ir/decisions.py`), and `ir/divergence.py` checks these decisions in the traced program.
6. `rx.value_and_grad` (`gradients/autodiff.py`) sums gradients over the replicas (`collectives/gradient_sums.py`).
   Whatever follows from the sums needs no replica any more: `replicas/after_meeting.py` and `ir/moving.py` take it out
   of the map. `fit` maps nothing: its program is over global arrays (`global_view.py`), and `replicas/global_sums.py`
   writes out its sums over rows.
7. A strategy that keeps variables elsewhere has the program cut at the gradients (`cut/split.py`).

The sub-rooms: `ir/` has what works on traced programs as data, `replicas/` what runs once per replica, `gradients/`
derivatives, accumulation and rematerialization, `blocks/` steps whose bits depend on no device, `loops/` `rx.lax.scan`
and the like, `cut/` programs in two parts, `random/` draws by rows, `hints/` the search for steps that run and compute
something else than what is meant, `keras/` and `flax/` the variables of these libraries.

The mistakes that it guards against:

- A value that a step computes while it is traced, and would lose with the trace (`accesses.py`).
- A value that differs between replicas and is stored as if it did not, also where control flow decides about it
  (`ir/divergence.py`), or a gradient that lacks its sum (`gradients/autodiff.py`).
- A buffer that is donated while somebody else holds it (`bound_variables.py`).
- A step that fails after some variables have got new values (`storing.py`), or in a callback of the host
  (`host_calls.py`).
- An old program that goes on when what the step finds outside of its arguments has changed (`capture_changes.py`).
"""

from replicax.program.function import Function, function
from replicax.program.gradients.autodiff import grad, value_and_grad
from replicax.program.tensor_spec import TensorSpec

__all__ = [
    "Function",
    "TensorSpec",
    "function",
    "grad",
    "value_and_grad",
]
