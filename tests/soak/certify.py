"""Mistakes planted in scripts, which a certificate has to name, and right scripts, which it has to certify.

python tests/soak/certify.py [--only TEXT] [--right | --planted] [--variants 7]

Each right script is certified with `--variants` sets of data and sizes of the global batch, even and uneven.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import replicax as rx
from replicax.tools.certifying import catalogue
from replicax.tools.certifying.certificate import Outcome
from replicax.tools.certifying.certifying import certified_by
from replicax.tools.certifying.starting import Runner

SCRIPTS = Path(__file__).with_name("certify_scripts")
STEPS = 3
#: What a right script is certified on.
ON = "mirrored:2,mirrored:8,fully_sharded:4,workers:2"
#: Rows of a global batch, of the variants in turn.
ROWS = (32, 30, 33, 37, 24, 29, 41)


class Mistake(NamedTuple):
    """A mistake: an edit of a script, and what has to be said of it."""

    script: str
    old: str
    new: str
    rule: str
    name: str  # of the first tensor that differs
    on: str = "mirrored:4"


_AVERAGE = "rx.compute_average_loss(losses, global_batch_size=GLOBAL)"
_REDUCED = 'strategy.reduce("sum", strategy.run(step, args=(batch,)))'
_LOOP = "strategy.distribute_dataset((x, y), batch_size=GLOBAL)"

MISTAKES = [
    Mistake("keras_loop", _AVERAGE, "jnp.mean(losses)", catalogue.LOCAL_BATCH, "the loss"),
    Mistake("keras_loop", _REDUCED, _REDUCED.replace("sum", "mean"), catalogue.MEAN_FOR_SUM, "result"),
    Mistake(
        "keras_loop",
        "model.trainable_variables)()",
        'model.trainable_variables, aggregation="mean")()',
        catalogue.MEAN_FOR_SUM,
        "the loss",
    ),
    Mistake(
        "keras_loop",
        "zip(grads,",
        "zip([replicas * g for g in grads],",
        catalogue.REDUCED_TWICE,
        "sequential/dense/bias",
    ),
    Mistake(
        "keras_loop",
        "zip(grads,",
        "zip([g / replicas for g in grads],",
        catalogue.MEAN_FOR_SUM,
        "sequential/dense/bias",
    ),
    Mistake("keras_loop", "Adam(1e-2)", "Adam(1e-2 * replicas)", catalogue.RATE, "adam/learning_rate"),
    Mistake("keras_loop", "Adam(1e-2)", "Adam(1e-2 * replicas**0.5)", catalogue.RATE, "adam/learning_rate"),
    Mistake("keras_loop", _LOOP, _LOOP.replace("GLOBAL", "GLOBAL * replicas"), catalogue.BATCH_GROWS, "the batch"),
    Mistake("keras_loop", "default_rng(5)", "default_rng(replicas)", catalogue.ORDER, "the batch"),
    Mistake(
        "keras_loop",
        'outputs = rx.probe("outputs", model(rows))',
        'outputs = rx.probe("outputs", model(rows).astype("bfloat16" if replicas > 1 else "float32"))',
        catalogue.DTYPE,
        "outputs, squares summed over rows",
    ),
    Mistake("keras_loop", 'all_reduce("sum"', 'all_reduce("mean"', catalogue.MEAN_FOR_SUM, "all_reduce"),
    Mistake("keras_loop", "jnp.sum(rows)", "jnp.mean(rows)", catalogue.SUM_FOR_MEAN, "all_reduce"),
    Mistake("keras_loop", "rx.Variable(0.0,", "rx.Variable(np.zeros(replicas),", catalogue.SHAPE, "seen"),
    Mistake("jax_loop", "/ GLOBAL", "/ len(rows)", catalogue.LOCAL_BATCH, "the loss"),
    Mistake(
        "jax_loop",
        'strategy.reduce("sum", loss)',
        'strategy.reduce("mean", loss)',
        catalogue.MEAN_FOR_SUM,
        "result of reduce",
    ),
    Mistake("jax_loop", _LOOP, _LOOP.replace("GLOBAL", "GLOBAL * replicas"), catalogue.BATCH_GROWS, "the batch"),
    Mistake("jax_loop", "0.05 * g", "0.05 * g / replicas", catalogue.RATE, "result of run[0]['v']"),
    Mistake(
        "jax_loop",
        "jax.value_and_grad(loss_fn)(state, *batch)",
        "jax.value_and_grad(lambda s, r, t: loss_fn(s, r, t) * replicas)(state, *batch)",
        catalogue.LOCAL_BATCH,
        "the loss",
    ),
    Mistake("fit_dropout", "Adam(1e-2)", "Adam(1e-2 * replicas)", catalogue.RATE, "adam/learning_rate"),
    Mistake("fit_dropout", "batch_size=30", "batch_size=30 * replicas", catalogue.BATCH_GROWS, "the batch"),
    Mistake("fit_dropout", "verbose=0", "verbose=0, shuffle=replicas == 1", catalogue.ORDER, "the batch"),
    Mistake(
        "fit_dropout",
        "keras.losses.SparseCategoricalCrossentropy(from_logits=True),",
        "lambda t, p: replicas * keras.losses.sparse_categorical_crossentropy(t, p, from_logits=True),",
        catalogue.LOCAL_BATCH,
        "the loss",
    ),
    Mistake("fit_dropout", "batch_size=30", "batch_size=30 // replicas * replicas", catalogue.ROWS, "the batch"),
    Mistake("fit_lstm", "SGD(0.1)", "SGD(0.1 * replicas)", catalogue.RATE, "sgd/learning_rate"),
    Mistake("fit_lstm", "batch_size=32", "batch_size=32 * replicas", catalogue.BATCH_GROWS, "the batch"),
    Mistake(
        "normalization_loop",
        "synchronized=True",
        "synchronized=False",
        catalogue.STATISTICS,
        "sequential/batch_normalization/moving_variance",
    ),
    Mistake("normalization_loop", _AVERAGE, "jnp.mean(losses)", catalogue.LOCAL_BATCH, "the loss"),
    Mistake("normalization_loop", "SGD(0.05", "SGD(0.05 * replicas", catalogue.RATE, "sgd/learning_rate"),
    Mistake(
        "normalization_loop", _LOOP, _LOOP.replace("GLOBAL", "GLOBAL * replicas"), catalogue.BATCH_GROWS, "the batch"
    ),
    Mistake(
        "clipping_loop",
        "rx.value_and_grad(loss_fn, w)()\n    gradient = clipped(gradient)",
        "rx.value_and_grad(loss_fn, w, aggregation=None)()\n"
        '    gradient = rx.get_replica_context().all_reduce("sum", clipped(gradient))',
        catalogue.CLIPPED,
        "all_reduce",
    ),
    Mistake("clipping_loop", "0.1 * gradient", "0.1 * replicas * gradient", catalogue.RATE, "w"),
    Mistake("clipping_loop", "average.assign(", "replicas > 1 or average.assign(", catalogue.FROZEN, "average"),
    Mistake("clipping_loop", _AVERAGE, "jnp.mean(losses)", catalogue.LOCAL_BATCH, "the loss"),
    Mistake(
        "clipping_loop",
        "rx.value_and_grad(loss_fn, w)()",
        'rx.value_and_grad(loss_fn, w, aggregation="mean")()',
        catalogue.MEAN_FOR_SUM,
        "the loss",
    ),
    Mistake("bfloat16_loop", _AVERAGE, "jnp.mean(losses)", catalogue.LOCAL_BATCH, "the loss", "mirrored:5"),
    Mistake("bfloat16_loop", "SGD(0.02)", "SGD(0.02 * replicas)", catalogue.RATE, "sgd/learning_rate"),
    Mistake(
        "bfloat16_loop",
        "yield x[start : start + GLOBAL], y[start : start + GLOBAL]",
        "rows = np.arange(start, start + GLOBAL)[: GLOBAL // replicas * replicas]\n        yield x[rows], y[rows]",
        catalogue.ROWS,
        "the batch",
    ),
    Mistake(
        "bfloat16_loop",
        "yield x[start : start + GLOBAL], y[start : start + GLOBAL]",
        "rows = np.minimum(np.arange(start, start + -(-GLOBAL // replicas) * replicas), start + GLOBAL - 1)\n"
        "        yield x[rows], y[rows]",
        catalogue.PADDING,
        "the batch",
    ),
    Mistake(
        "normalization_loop",
        "model(rows, training=True)",
        "model(rows * __import__('jax').random.bernoulli(__import__('jax').random.key(1), 0.8, rows.shape), "
        "training=True)",
        catalogue.SAME_RANDOM,
        "sequential/batch_normalization/moving_mean",
    ),
    Mistake("dropout_loop", '"per_row"', '"per_replica"', catalogue.OTHER_RANDOM, "the loss"),
    Mistake(
        "dropout_loop",
        "def step(batch):",
        "own = np.random.default_rng(strategy.worker_index).permutation(256)\nx, y = x[own], y[own]\n\n\n"
        "def step(batch):",
        catalogue.REFUSED,
        "the script",
        "workers:2",
    ),
]


def main() -> None:
    """Certifies all, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scripts, or mistakes, with this in their name or text")
    parser.add_argument("--right", action="store_true", help="right scripts only")
    parser.add_argument("--planted", action="store_true", help="planted mistakes only")
    parser.add_argument("--variants", type=int, default=len(ROWS), help="of each right script")
    wanted = parser.parse_args()
    found = planted = alarms = right = 0
    with Runner() as runner:
        if not wanted.right:
            for mistake in (each for each in MISTAKES if wanted.only in f"{each.script} {each.new}"):
                planted += 1
                found += _is_found(runner, mistake)
        if not wanted.planted:
            for script in sorted(SCRIPTS.glob("*.py")):
                for variant in range(wanted.variants if wanted.only in script.stem else 0):
                    text = _variant(script.read_text(encoding="utf-8"), variant)
                    for outcome in _outcomes(runner, script.name, text, ON):
                        right += 1
                        alarms += outcome.difference is not None
                        print(f"{script.stem} {variant} {outcome}", flush=True)
    for name, number in (("found", found), ("planted", planted), ("false_alarms", alarms), ("right_runs", right)):
        print(f"RESULT certify_{name} {number}")


def _is_found(runner: Runner, mistake: Mistake) -> bool:
    text = (SCRIPTS / f"{mistake.script}.py").read_text(encoding="utf-8")
    assert text.count(mistake.old) == 1, f"{mistake.old!r} is not once in {mistake.script}"
    try:
        (outcome,) = _outcomes(runner, f"{mistake.script}.py", text.replace(mistake.old, mistake.new), mistake.on)
    except rx.ReplicaxError as error:
        print(f"FAILED {mistake.script} {mistake.new!r}: {error}", flush=True)
        return False
    difference = outcome.difference
    is_found = difference is not None and (difference.rule, difference.name) == (mistake.rule, mistake.name)
    print(f"{'found' if is_found else 'MISSED'} {mistake.script} {mistake.new!r}: {outcome}", flush=True)
    return is_found


def _variant(text: str, number: int) -> str:
    """Returns a script with other data and another global batch."""
    text = re.sub(r"default_rng\((\d+)\)", lambda seed: f"default_rng({int(seed[1]) + 100 * number})", text)
    return re.sub(r"(GLOBAL = |batch_size=)\d+", rf"\g<1>{ROWS[number % len(ROWS)]}", text)


def _outcomes(runner: Runner, name: str, text: str, on: str) -> tuple[Outcome, ...]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, name)
        script.write_text(text, encoding="utf-8")
        return certified_by(runner, script, STEPS, on).outcomes


if __name__ == "__main__":
    main()
