"""Programs: Python functions that read and assign variables, as compiled functions.

A step of a training loop is Python with side effects: it reads weights and assigns them. XLA compiles pure functions.
This package turns the first into the second. For example:

    w = rx.Variable(0.0)

    @rx.function
    def step(x):
        w.assign_add(x)
        return 2 * w.value

    step(jnp.float32(3.0))

1. `function.py` looks for a program of this signature: the structure, shapes and dtypes of the arguments
   (`pytrees.py` flattens them), the strategy and the mode. The first call finds none and makes one.
2. `lifting.py` makes it. `tracing.py` calls `step` once, in a frame (`frames.py`): reading `w` gives a placeholder and
   notes an input, assigning it notes an output (`accesses.py`). Keras variables do the same through
   `keras_state.py` and `keras_hooks.py`. Layers that build themselves in the first call make another pass necessary.
3. The traced function is `(w, x) -> (w + x, 2 * (w + x))`. `compiled_pass.py` compiles it with the buffer of `w`
   donated, so that the update happens in place. `bound_variables.py` knows where the values of its variables live.
4. Each call places the arguments, makes sure that nobody else holds a buffer that is donated (`buffers.py`), runs the
   program, and stores the new values in the variables, all at once or not at all (`handover.py`).

Under a strategy, `strategy.run(fn, args)` inside `step` adds one level:

5. `replica.py` maps `fn` over the replicas with `jax.shard_map`. `replica_program.py` traces it once more, in the frame
   of a replica. Each decision of its Python that depends on whether a value is equal on all replicas is noted
   (`decisions.py`), and `divergence.py` checks these decisions in the traced program.
6. `rx.value_and_grad` (`autodiff.py`) sums gradients over the replicas. Whatever follows from the sums needs no replica
   any more: `late.py` and `moving.py` take it out of the map. A strategy that keeps variables on another device has
   the program split at the gradients (`split.py`, `halves.py`).
   `rx.cond`, `rx.scan` and the like (`loops.py`) carry the variables that their bodies assign (`carrying.py`).
7. `accumulators.py`, `scales.py` and `summed_means.py` look for steps that run and compute something else than what is
   meant; `advice.py` says so.
"""

from replicax.program.gradients.autodiff import grad, value_and_grad
from replicax.program.function import Function, function
from replicax.program.tensor_spec import TensorSpec

__all__ = [
    "Function",
    "TensorSpec",
    "function",
    "grad",
    "value_and_grad",
]
