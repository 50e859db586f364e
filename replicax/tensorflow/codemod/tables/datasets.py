"""Rules for pipelines of tf.data: Grain's `MapDataset`, or TensorFlow's where the script keeps it."""

from __future__ import annotations

from replicax.tensorflow.codemod import datasets
from replicax.tensorflow.codemod.datasets import DATASET, made
from replicax.tensorflow.codemod.rules import Rewrite, Rule

_NO_STEP = "Grain has no such step with the same elements."
_KEPT = f"{_NO_STEP} The pipelines of this script stay TensorFlow's, which has to be installed for them."

#: Methods that give a dataset, and the function that converts them.
STEPS = {
    "batch": datasets.batch,
    "shuffle": datasets.shuffle,
    "repeat": datasets.repeat,
    "prefetch": datasets.dropped,
    "cache": datasets.dropped,
    "take": datasets.take,
    "skip": datasets.skip,
    "shard": datasets.shard,
    "map": datasets.map_,
    "enumerate": datasets.enumerate_,
    "concatenate": datasets.concatenate,
    "with_options": datasets.with_options,
}
_WITHOUT = "apply bucket_by_sequence_length filter flat_map group_by_window interleave padded_batch ragged_batch random"
_WITHOUT += " rebatch rejection_resample save scan snapshot sparse_batch take_while unbatch unique window counter"

_AUTOTUNE = datasets.mentioned(lambda rewriting: rewriting.code("-1"))
_OTHERS = "zip from_generator list_files choose_from_datasets sample_from_datasets random load"

RULES: dict[str, Rule] = {
    **{f"{DATASET}.{name}": datasets.refused(f"{DATASET}.{name}", _KEPT) for name in _OTHERS.split()},
    DATASET: Rewrite(datasets.batch, datasets.mentioned(lambda rewriting: rewriting.target("grain.MapDataset"))),
    "tf.data.AUTOTUNE": Rewrite(datasets.batch, _AUTOTUNE),
    "tf.data.experimental.AUTOTUNE": Rewrite(datasets.batch, _AUTOTUNE),
    f"{DATASET}.from_tensor_slices": made(
        f"{DATASET}.from_tensor_slices", "grain.MapDataset.source(rx.data.ArraySource({x}))"
    ),
    f"{DATASET}.from_tensors": made(
        f"{DATASET}.from_tensors", "grain.MapDataset.source(rx.data.ArraySource.of_one({x}))"
    ),
    f"{DATASET}.range": made(f"{DATASET}.range", "grain.MapDataset.range({x})"),
    "tf.data.experimental.cardinality": made("tf.data.experimental.cardinality", "len({x})"),
}
PREFIXES: dict[str, Rule] = {"tf.data": datasets.refused("tf.data", _KEPT)}

METHODS: dict[tuple[str, str], Rule] = {
    **{(DATASET, name): Rewrite(convert) for name, convert in STEPS.items()},
    **{(DATASET, name): datasets.refused(f"{DATASET}.{name}", _KEPT) for name in (*_WITHOUT.split(), "reduce")},
    (DATASET, "element_spec"): datasets.refused(f"{DATASET}.element_spec", "Grain has none: look at `dataset[0]`."),
    (DATASET, "as_numpy_iterator"): Rewrite(datasets.iterator),
    (DATASET, "make_one_shot_iterator"): Rewrite(datasets.iterator),
    (DATASET, "cardinality"): Rewrite(datasets.cardinality),
    (DATASET, "get_single_element"): Rewrite(datasets.single),
    ("tf.data.Iterator", "get_next"): Rewrite(datasets.next_of),
}
#: Methods that nothing but datasets have.
UNKNOWN_METHODS: dict[str, Rule] = {
    name: METHODS[DATASET, name] for name in ("prefetch", "with_options", "as_numpy_iterator", "get_single_element")
}

RESULTS = {
    **{
        f"{DATASET}.{name}": DATASET
        for name in ("from_tensor_slices", "from_tensors", "range", "zip", "from_generator")
    },
    **{f"{DATASET}.{name}": DATASET for name in ("list_files", "sample_from_datasets", "random", "load")},
    "tf.data.Options": "tf.data.Options",
    "tf.data.TFRecordDataset": DATASET,
    "tf.data.TextLineDataset": DATASET,
}
MEMBERS = {
    **{(DATASET, name): DATASET for name in (*STEPS, *_WITHOUT.split())},
    (DATASET, "__iter__"): "tf.data.Iterator",
    (DATASET, "as_numpy_iterator"): "tf.data.Iterator",
}
