"""Pipelines of TFRecord files become `rx.data.Rows`, which read them without TensorFlow.

`tf.data.TFRecordDataset(files)`, or an `interleave` or `flat_map` of files into it, becomes
`rx.data.read_tfrecord(files)`; the steps that follow become its methods. A dataset of files' names (`FILES`) becomes
the names themselves: a pattern or a list. A thing that rows cannot do is refused, and then all pipelines of the script
stay TensorFlow's.
"""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod import datasets
from replicax.tensorflow.codemod.adapting import Unconvertible, is_literal, is_none, literal
from replicax.tensorflow.codemod.datasets import DATASET, applied, kept, step, written
from replicax.tensorflow.codemod.op_calls import bound, parameters
from replicax.tensorflow.codemod.rules import Rewrite, Rewriting

READER = "tf.data.TFRecordDataset"
FILES, ROWS, BATCHES = f"{DATASET} of files", f"{DATASET} of rows", f"{DATASET} of batches of rows"
ORDER = (
    "Rows are shuffled by a seed, with another order in each epoch: it is another order than TensorFlow's. `shuffle` "
    "draws from 16 files at a time, in a random order, so names of files need no shuffle."
)
IN_TURN = "Records of several files come one file after the other here, and not in turn: `shuffle` mixes them."
EPOCHS = "The last batch of an epoch has the rows that are left, and none of the next epoch."
PARSED = "the parsed features of a record"
_SIGNATURE = "TFRecordDataset(filenames, compression_type=None, buffer_size=None, num_parallel_reads=None)"
_INTERLEAVE = "interleave(map_func, cycle_length=None, block_length=None)"


def _reader(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.data.TFRecordDataset(files)`."""
    given, _ = bound(READER, parameters(_SIGNATURE), updated.args)
    if "filenames" not in given:
        raise Unconvertible("the argument `filenames` is missing")
    if not is_none(given.get("num_parallel_reads")) and not rewriting.script.keeps_tf_data:
        rewriting.note(node, READER, IN_TURN)
    return _read(rewriting, given["filenames"], given.get("compression_type"))


def _read(
    rewriting: Rewriting, files: cst.BaseExpression, compression: cst.BaseExpression | None
) -> cst.BaseExpression:
    if compression is None or (is_literal(compression) and literal(compression) in (None, "")):
        return rewriting.code("rx.data.read_tfrecord({files})", files=files)
    return rewriting.code("rx.data.read_tfrecord({files}, compression={c})", files=files, c=compression)


def _mentioned(
    rewriting: Rewriting, node: cst.BaseExpression, updated: cst.BaseExpression
) -> cst.BaseExpression | None:
    """`tf.data.TFRecordDataset` without a call: an argument of `interleave`, which replaces it."""
    if rewriting.script.keeps_tf_data:
        return None
    rewriting.refuse(node, READER, "It is converted where it is called, and as an argument of `interleave`.")
    return node


reader = Rewrite(kept(_reader, READER), _mentioned)


def _listed(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`list_files(pattern)`: the pattern, whose files come in the order of their names."""
    signature = "list_files(file_pattern, shuffle=None, seed=None)"
    given, _ = bound("list_files", parameters(signature), updated.args)
    if "file_pattern" not in given or set(given) - {"file_pattern", "shuffle", "seed"}:
        raise Unconvertible("it is converted with a pattern, `shuffle` and `seed` only")
    if not rewriting.script.keeps_tf_data and not m.matches(given.get("shuffle", cst.Name("None")), m.Name("False")):
        rewriting.note(node, f"{DATASET}.list_files", "Files come in the order of their names. " + ORDER)
    return given["file_pattern"]


list_files = Rewrite(kept(_listed, f"{DATASET}.list_files"))


def into_records(name: str) -> Rewrite:
    """Returns the rule of `interleave` or `flat_map`, of names of files, into their records."""

    def convert(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        original, _ = bound(name, parameters(_INTERLEAVE), node.args)
        given, _ = bound(name, parameters(_INTERLEAVE), updated.args)
        files = _files(rewriting, node, updated)
        compression = _of_reader(rewriting, original.get("map_func"), given.get("map_func"))
        one = is_literal(given.get("cycle_length")) and literal(given["cycle_length"]) == 1
        if rewriting.script.keeps_tf_data:
            return None
        if name == "interleave" and not one:
            rewriting.note(node, f"{DATASET}.{name}", IN_TURN)
        rewriting.replaces(original["map_func"])
        return _read(rewriting, files, compression)

    return Rewrite(kept(convert, f"{DATASET}.{name}"))


def _files(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression:
    """Returns the names of the files of a dataset: those that it was made of in this expression, or a `list_files`."""
    before = _owner(node)
    if rewriting.script.kinds.of(before) == FILES:
        return _owner(updated)
    made = before
    if isinstance(made, cst.Call) and m.matches(made.func, m.Attribute(attr=m.Name("shuffle"))):
        rewriting.note(node, f"{DATASET}.shuffle", ORDER)
        made = _owner(made)
    slices = f"{DATASET}.from_tensor_slices"
    if isinstance(made, cst.Call) and rewriting.script.names.of(made.func) == slices and len(made.args) == 1:
        return made.args[0].value
    raise Unconvertible(
        "it is converted for `list_files(...)` and `from_tensor_slices(files)` in front of it, into records of "
        "TFRecord files"
    )


def _of_reader(
    rewriting: Rewriting, original: cst.BaseExpression | None, updated: cst.BaseExpression | None
) -> cst.BaseExpression | None:
    """Returns the compression that a function from a file's name to its records reads."""
    if original is not None and rewriting.script.names.of(original) == READER:
        return None
    function: cst.CSTNode | None = original
    if isinstance(original, cst.Name):
        function = rewriting.script.kinds.definition(original)
    call: cst.BaseExpression | None = None
    if isinstance(function, cst.Lambda):
        call = function.body
    elif isinstance(function, cst.FunctionDef):
        found = m.findall(function.body, m.Return())
        call = found[0].value if len(found) == 1 and isinstance(found[0], cst.Return) else None
    if isinstance(call, cst.Call) and rewriting.script.names.of(call.func) == READER:
        given, _ = bound(READER, parameters(_SIGNATURE), call.args)
        params = function.params.params if isinstance(function, (cst.Lambda, cst.FunctionDef)) else ()
        of_file = params and m.matches(given.get("filenames", cst.Name("None")), m.Name(params[0].name.value))
        if len(params) == 1 and of_file:
            return given.get("compression_type")
    raise Unconvertible("its function has to return `tf.data.TFRecordDataset(file)` of the one file that it gets")


@step("shuffle(buffer_size, seed=None, reshuffle_each_iteration=None)")
def shuffle(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`shuffle`: by a seed."""
    if not rewriting.script.keeps_tf_data:
        rewriting.note(node, f"{DATASET}.shuffle", ORDER)
    seed = cst.Integer("0") if is_none(given.get("seed")) else given["seed"]
    return rewriting.code("{ds}.shuffle(seed={seed}, buffer={n})", ds=dataset, seed=seed, n=given["buffer_size"])


@step("shuffle(buffer_size, seed=None, reshuffle_each_iteration=None)")
def shuffle_files(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`shuffle` of files' names."""
    if not rewriting.script.keeps_tf_data:
        rewriting.note(node, f"{DATASET}.shuffle", ORDER)
    return dataset


def repeat(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`repeat`: the same, with a note on what ends an epoch."""
    result = datasets.repeat(rewriting, node, updated)
    if result is not None and rewriting.script.kinds.of(_owner(node)) == ROWS:
        rewriting.note(node, f"{DATASET}.repeat", EPOCHS)
    return result


def _owner(call: cst.Call) -> cst.BaseExpression:
    """Returns the dataset whose method is called."""
    return cst.ensure_type(call.func, cst.Attribute).value


@step("batch(batch_size, drop_remainder=False)")
def batch(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`batch`."""
    return _batched(rewriting, "{ds}.batch({n}", dataset, given, n=given["batch_size"])


@step("padded_batch(batch_size, padded_shapes=None, padding_values=None, drop_remainder=False)")
def padded_batch(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`padded_batch`."""
    return _batched(rewriting, "{ds}.padded_batch({n}", dataset, given, n=given["batch_size"])


@step(
    "bucket_by_sequence_length(element_length_func, bucket_boundaries, bucket_batch_sizes, padded_shapes=None,"
    " padding_values=None, drop_remainder=False)"
)
def bucket_by_sequence_length(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`bucket_by_sequence_length`."""
    original = {arg.keyword.value: arg.value for arg in node.args if arg.keyword is not None}
    function = original.get("element_length_func") or node.args[0].value
    length = applied(rewriting, function, given["element_length_func"])
    return _batched(
        rewriting,
        "{ds}.bucketed_batch({f}, {b}, {s}",
        dataset,
        given,
        f=length,
        b=given["bucket_boundaries"],
        s=given["bucket_batch_sizes"],
    )


def _batched(
    rewriting: Rewriting,
    template: str,
    dataset: cst.BaseExpression,
    given: dict[str, cst.BaseExpression],
    **parts: cst.BaseExpression,
) -> cst.BaseExpression:
    for name, new in (("padded_shapes", "shapes"), ("padding_values", "values"), ("drop_remainder", "drop_remainder")):
        if name in given and not m.matches(given[name], m.Name("None") | m.Name("False")):
            template += f", {new}={{{new}}}"
            parts[new] = given[name]
    return rewriting.code(template + ")", ds=dataset, **parts)


@step("filter(predicate)")
def filter_(
    rewriting: Rewriting, node: cst.Call, dataset: cst.BaseExpression, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression | None:
    """`filter`."""
    original, _ = bound("filter", parameters("filter(predicate)"), node.args)
    return rewriting.code(
        "{ds}.filter({f})", ds=dataset, f=applied(rewriting, original["predicate"], given["predicate"])
    )


iterator = written("as_numpy_iterator()", "iter({ds})")


# Records, in the functions that a pipeline maps.


def of_record(signature: str, template: str) -> Rewrite:
    """Returns the rule of a function of a record; its arguments stand in the template by their names."""
    known = parameters(signature)
    name = "tf." + signature.partition("(")[0]

    def convert(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        given, _ = bound(name, known, updated.args)
        if unknown := set(given) - set(known.names):
            raise Unconvertible(f"the argument `{unknown.pop()}` has no counterpart")
        for each in known.names:
            if each not in given:
                if each not in known.defaults:
                    raise Unconvertible(f"the argument `{each}` is missing")
                given[each] = cst.parse_expression(known.defaults[each])
        return rewriting.code(template, **given)

    return Rewrite(kept(convert, name))


def feature(kind: str, signature: str) -> Rewrite:
    """Returns the rule of `tf.io.FixedLenFeature` and the like: its dtype becomes a word."""
    known = parameters(signature)

    def convert(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        original, _ = bound(kind, known, node.args)
        given, _ = bound(kind, known, updated.args)
        dtype = rewriting.script.names.of(original["dtype"]) if "dtype" in original else None
        word = (dtype or "").removeprefix("tf.").removeprefix("dtypes.")
        if word not in ("string", "int64", "float32"):
            raise Unconvertible("its dtype has to be tf.string, tf.int64 or tf.float32")
        if set(given) - set(known.names):
            raise Unconvertible("it has an argument without a counterpart")
        if rewriting.script.keeps_tf_data:
            return None
        rewriting.replaces(original["dtype"])
        parts = {name: given[name] for name in known.names if name in given and name != "dtype"}
        template = ", ".join(
            f'{name}="{word}"' if name == "dtype" else f"{name}={{{name}}}"
            for name in known.names
            if name == "dtype" or name in parts
        )
        plain = template.replace("shape=", "", 1).replace("dtype=", "", 1)
        return rewriting.code(f"rx.data.{kind}({plain})", **parts)

    return Rewrite(kept(convert, f"tf.io.{kind}"))


def _dense(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.sparse.to_dense` of a `VarLenFeature`, which is an array here."""
    given = node.args[0].value if node.args else None
    if isinstance(given, cst.Subscript) and rewriting.script.kinds.of(given.value) == PARSED:
        return updated.args[0].value
    raise Unconvertible("it works on sparse tensors: use jax.experimental.sparse, or dense tensors")


to_dense = Rewrite(kept(_dense, "tf.sparse.to_dense"))


def _raw(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.io.decode_raw(bytes, tf.uint8)`."""
    signature = "decode_raw(input_bytes, out_type, little_endian=True)"
    original, _ = bound("decode_raw", parameters(signature), node.args)
    given, _ = bound("decode_raw", parameters(signature), updated.args)
    dtype = (rewriting.script.names.of(original.get("out_type", cst.Name("None"))) or "").removeprefix("tf.")
    known = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
    if dtype not in known or "little_endian" in given or "input_bytes" not in given:
        raise Unconvertible("it is converted with a dtype of numbers, such as tf.uint8")
    if rewriting.script.keeps_tf_data:
        return None
    return rewriting.code(f"np.frombuffer({{b}}, '{dtype}')", b=given["input_bytes"])


decode_raw = Rewrite(kept(_raw, "tf.io.decode_raw"))
