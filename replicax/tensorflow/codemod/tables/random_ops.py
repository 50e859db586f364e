"""Random numbers: those of Keras have the same distribution, and are other numbers."""

from __future__ import annotations

from replicax.tensorflow.codemod.op_row import OpRow
from replicax.tensorflow.codemod.rules import Drop, Refuse, Rewrite, Rule
from replicax.tensorflow.codemod.tensors import by_row, uniform

_OTHER = "the numbers are others: Keras draws them from one generator, which `keras.utils.set_random_seed` seeds"
_SEED = Refuse(
    "Keras takes one number or a keras.random.SeedGenerator as a seed: choose one, as in "
    "`keras.random.normal(shape, seed=1)`; the numbers differ."
)

ROWS = (
    OpRow(
        "random.normal(shape, mean=0.0, stddev=1.0, dtype=tf.float32)",
        "keras.random.normal(shape, mean=mean, stddev=stddev, dtype=dtype)",
        note=_OTHER,
    ),
    OpRow(
        "random.truncated_normal(shape, mean=0.0, stddev=1.0, dtype=tf.float32)",
        "keras.random.truncated_normal(shape, mean=mean, stddev=stddev, dtype=dtype)",
        note=_OTHER,
    ),
    OpRow("random.shuffle(value)", "keras.random.shuffle(value)", note=_OTHER),
    OpRow("random.categorical(logits, num_samples)", "keras.random.categorical(logits, num_samples)", note=_OTHER),
)
UNIFORM = OpRow(
    "random.uniform(shape, minval=0, maxval=None, dtype=tf.float32)",
    "keras.random.uniform(shape, minval=minval, maxval=maxval, dtype=dtype)",
    note=_OTHER,
)
INTEGERS = OpRow(
    "random.uniform(shape, minval=0, maxval=None, dtype=tf.float32)",
    "keras.random.randint(shape, minval, maxval, dtype=dtype)",
    note=_OTHER,
)
_LOG = Drop("replicax, JAX and Keras log with Python's `logging`.")

RULES: dict[str, Rule] = {
    **{row.name: Rewrite(by_row(row)) for row in ROWS},
    "tf.random.uniform": Rewrite(uniform(UNIFORM, INTEGERS)),
    **{f"tf.{module}logging.set_verbosity": _LOG for module in ("", "compat.v1.")},
    "tf.autograph.set_verbosity": _LOG,
}
PREFIXES: dict[str, str | Rule] = {"tf.random": _SEED}
RESULTS = {row.name: "tf.Tensor" for row in (*ROWS, UNIFORM)}
