"""Rules for pipelines of tf.data: Grain's `MapDataset`, rows of files, or TensorFlow's where the script keeps it."""

from __future__ import annotations

from replicax.tensorflow.codemod import datasets, row_pipelines as rows
from replicax.tensorflow.codemod.datasets import DATASET, made
from replicax.tensorflow.codemod.row_pipelines import BATCHES, FILES, PARSED, READER, ROWS
from replicax.tensorflow.codemod.rules import Rewrite, Rule

_NO_STEP = "Grain has no such step with the same elements."
_KEPT = f"{_NO_STEP} The pipelines of this script stay TensorFlow's, which has to be installed for them."

_NO_ROWS = f"Rows of files have no such step. {_KEPT.removeprefix(_NO_STEP + ' ')}"

#: Methods that give a dataset, and the function that converts them.
STEPS = {
    "batch": datasets.batch,
    "shuffle": datasets.shuffle,
    "repeat": datasets.repeat,
    "prefetch": datasets.prefetch,
    "cache": datasets.cache,
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
_RESAMPLED = (
    "It drops and repeats rows at random, in an order that cannot be given here: choose rows in a `filter`, or write "
    "the files with the classes that you want. "
) + _KEPT.removeprefix(_NO_STEP + " ")
_OTHERS = "zip from_generator choose_from_datasets sample_from_datasets random load"

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
    f"{DATASET}.list_files": rows.list_files,
    READER: rows.reader,
    "tf.io.FixedLenFeature": rows.feature("FixedLenFeature", "FixedLenFeature(shape, dtype, default_value=None)"),
    "tf.io.VarLenFeature": rows.feature("VarLenFeature", "VarLenFeature(dtype)"),
    "tf.io.FixedLenSequenceFeature": rows.feature(
        "FixedLenSequenceFeature",
        "FixedLenSequenceFeature(shape, dtype, allow_missing=False, default_value=None)",
    ),
    "tf.io.parse_single_example": rows.of_record(
        "io.parse_single_example(serialized, features)", "rx.data.parse_example({serialized}, {features})"
    ),
    "tf.io.parse_single_sequence_example": rows.of_record(
        "io.parse_single_sequence_example(serialized, context_features=None, sequence_features=None)",
        "rx.data.parse_sequence_example({serialized}, {context_features}, {sequence_features})",
    ),
    "tf.sparse.to_dense": rows.to_dense,
    "tf.io.decode_raw": rows.decode_raw,
    **{
        f"tf.{module}.{name}": rows.of_record(
            f"{module}.{name}(contents, channels=0)", "rx.data.decode_image({contents}, {channels})"
        )
        for module in ("io", "image")
        for name in ("decode_jpeg", "decode_png")
    },
}
PREFIXES: dict[str, Rule] = {"tf.data": datasets.refused("tf.data", _KEPT)}

_METHODS: dict[tuple[str, str], Rule] = {
    **{(DATASET, name): Rewrite(convert) for name, convert in STEPS.items()},
    **{(DATASET, name): datasets.refused(f"{DATASET}.{name}", _KEPT) for name in (*_WITHOUT.split(), "reduce")},
    (DATASET, "element_spec"): datasets.refused(f"{DATASET}.element_spec", "Grain has none: look at `dataset[0]`."),
    (DATASET, "as_numpy_iterator"): Rewrite(datasets.iterator),
    (DATASET, "make_one_shot_iterator"): Rewrite(datasets.iterator),
    (DATASET, "cardinality"): Rewrite(datasets.cardinality),
    (DATASET, "get_single_element"): Rewrite(datasets.single),
    (DATASET, "rejection_resample"): datasets.refused(f"{DATASET}.rejection_resample", _RESAMPLED),
    **{(DATASET, name): rows.into_records(name) for name in ("interleave", "flat_map")},
    ("tf.data.Iterator", "get_next"): Rewrite(datasets.next_of),
}
#: Methods of names of files, of batches of their rows, and of the rows.
_OF_FILES = {
    "shuffle": Rewrite(rows.shuffle_files),
    **{name: _METHODS[DATASET, name] for name in ("interleave", "flat_map")},
}
_OF_BATCHES = {
    "map": datasets.map_,
    "repeat": rows.repeat,
    **{name: STEPS[name] for name in ("prefetch", "cache", "with_options")},
}
_OF_ROWS = {
    **_OF_BATCHES,
    "filter": rows.filter_,
    "shuffle": rows.shuffle,
    "batch": rows.batch,
    "padded_batch": rows.padded_batch,
    "bucket_by_sequence_length": rows.bucket_by_sequence_length,
}
METHODS: dict[tuple[str, str], Rule] = {
    **_METHODS,
    # All others have no counterpart.
    **{
        (kind, name): datasets.refused(f"{DATASET}.{name}", _RESAMPLED if name == "rejection_resample" else _NO_ROWS)
        for kind in (FILES, ROWS, BATCHES)
        for of, name in _METHODS
        if of == DATASET
    },
    **{(FILES, name): rule for name, rule in _OF_FILES.items()},
    **{(ROWS, name): Rewrite(convert) for name, convert in _OF_ROWS.items()},
    **{(BATCHES, name): Rewrite(convert) for name, convert in _OF_BATCHES.items()},
    (BATCHES, "as_numpy_iterator"): Rewrite(rows.iterator),
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
    **{f"{DATASET}.{name}": DATASET for name in ("sample_from_datasets", "random", "load")},
    f"{DATASET}.list_files": FILES,
    "tf.data.Options": "tf.data.Options",
    READER: ROWS,
    **{f"tf.io.{name}": PARSED for name in ("parse_single_example", "parse_single_sequence_example")},
    "tf.data.TextLineDataset": DATASET,
}
MEMBERS = {
    **{(DATASET, name): DATASET for name in (*STEPS, *_WITHOUT.split())},
    **{(kind, name): ROWS for kind in (DATASET, FILES) for name in ("interleave", "flat_map")},
    (FILES, "shuffle"): FILES,
    **{(ROWS, name): ROWS for name in _OF_ROWS},
    **{(ROWS, name): BATCHES for name in ("batch", "padded_batch", "bucket_by_sequence_length")},
    **{(BATCHES, name): BATCHES for name in _OF_BATCHES},
    (DATASET, "__iter__"): "tf.data.Iterator",
    (DATASET, "as_numpy_iterator"): "tf.data.Iterator",
}
BASES = dict.fromkeys((FILES, ROWS, BATCHES), DATASET)
