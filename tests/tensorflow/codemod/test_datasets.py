"""Pipelines of tf.data become Grain's: their elements are the same, in the same order."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import replicax as rx
from replicax.cli.app import app
from replicax.tensorflow.codemod.conversion import convert
from tests.tensorflow.codemod.converted import conversion, converted, reasons

HEAD = "import tensorflow as tf\n\nx = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]\ny = [0, 1, 2]\n"


def elements(code: str) -> list[object]:
    """Returns the elements of `dataset` in a converted script; tf.data's were looked up by hand."""
    found = conversion(HEAD + code)
    assert not found.edits
    names: dict[str, object] = {}
    exec(compile(found.after, "<converted>", "exec"), names)
    return list(names["dataset"])


def shown(element: object) -> object:
    return [shown(each) for each in element] if isinstance(element, tuple) else np.asarray(element).tolist()


SLICES = "tf.data.Dataset.from_tensor_slices"


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (f"dataset = {SLICES}(y)", [0, 1, 2]),
        (f"dataset = {SLICES}((x, y)).batch(2)", [[[[1, 2], [3, 4]], [0, 1]], [[[5, 6]], [2]]]),
        (f"dataset = {SLICES}(y).batch(2, True)", [[0, 1]]),
        (f"dataset = {SLICES}(y).batch(2, drop_remainder=False)", [[0, 1], [2]]),
        (f"dataset = {SLICES}(y).repeat(2).batch(4)", [[0, 1, 2, 0], [1, 2]]),
        (f"dataset = {SLICES}(y).repeat().take(4)", [0, 1, 2, 0]),
        (f"dataset = {SLICES}(y).repeat(-1).take(count=2)", [0, 1]),
        (f"dataset = {SLICES}(y).skip(1)", [1, 2]),
        (f"dataset = {SLICES}(y).shard(2, 0).take(-1)", [0, 2]),
        (f"dataset = {SLICES}(y).shard(num_shards=2, index=1)", [1]),
        (f"dataset = {SLICES}((x, y)).map(lambda a, b: (b, a[0] * 2.0))", [[0, 2], [1, 6], [2, 10]]),
        (f"dataset = {SLICES}(y).map(lambda a: a + 1, num_parallel_calls=tf.data.AUTOTUNE)", [1, 2, 3]),
        (f"dataset = {SLICES}(y).cache().prefetch(tf.data.experimental.AUTOTUNE)", [0, 1, 2]),
        (f"dataset = {SLICES}(y).enumerate()", [[0, 0], [1, 1], [2, 2]]),
        (f"dataset = {SLICES}(y).concatenate({SLICES}(y).take(1))", [0, 1, 2, 0]),
        ("dataset = tf.data.Dataset.from_tensors((x, 1.0)).repeat(2)", [[[[1, 2], [3, 4], [5, 6]], 1]] * 2),
        ("dataset = tf.data.Dataset.range(5).batch(2)", [[0, 1], [2, 3], [4]]),
        (
            f"ds = {SLICES}(y)\nds = ds.batch(1)\nds = ds.repeat(2)\ndataset = ds.as_numpy_iterator()",
            [[0], [1], [2]] * 2,
        ),
    ],
)
def test_elements_and_their_order(code, expected):
    assert [shown(each) for each in elements(code)] == expected


def test_lists_become_arrays_of_tensorflows_dtypes():
    ((a, b), *_) = elements(f"dataset = {SLICES}((x, y)).batch(1)")
    assert (a.dtype, b.dtype) == ("float32", "int32")


def test_a_shuffled_dataset_has_all_elements_and_a_note_says_that_the_order_differs():
    assert sorted(shown(each) for each in elements(f"dataset = {SLICES}(y).shuffle(3, seed=1)")) == [0, 1, 2]
    found = conversion(f"{HEAD}dataset = {SLICES}(y).repeat().shuffle(10)\n")
    assert "shuffle(seed=0).repeat()" in found.after
    assert [each.reason.partition(":")[0] for each in found.findings] == [
        "Grain shuffles all rows by a seed, and TensorFlow within a buffer"
    ]


def test_a_function_of_two_parts_gets_the_parts():
    after = converted(
        f"""
        import tensorflow as tf
        def scale(image, label):
            return tf.cast(image, tf.float32) / 255, label
        dataset = {SLICES}(data).map(scale)
        """
    )
    assert "lambda element: scale(*element)" in after
    assert 'keras.ops.cast(image, "float32")' in after


def test_a_pipeline_with_a_step_that_grain_lacks_stays_and_so_do_its_functions():
    text = f"""
        import tensorflow as tf
        def scale(image):
            return tf.cast(image, tf.float32)
        dataset = {SLICES}(data).map(scale)
        windows = dataset.window(3)
        y = tf.cast(x, tf.int32)
        """
    after = conversion(text).after
    assert f"dataset = {SLICES}(data).map(scale)" in after
    assert "return tf.cast(image, tf.float32)" in after
    assert 'y = keras.ops.cast(x, "int32")' in after
    (reason,) = reasons(text)
    assert reason.startswith("5 tf.data.Dataset.window: Grain has no such step")


def test_pipelines_stay_if_they_are_to():
    text = f"import tensorflow as tf\n\ndataset = {SLICES}(x).window(3).map(lambda a: tf.cast(a, tf.int32))\n"
    found = convert(text, tf_data="keep")
    assert found.after == text
    assert found.findings == ()


def test_what_is_given_to_a_pipeline_that_stays_stays_too():
    code = "tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([3], tf.float32))"
    text = f"import tensorflow as tf\n\ndataset = {code}.padded_batch(2, padded_shapes=tf.TensorShape([3]))\n"
    assert text.splitlines()[-1] in conversion(text).after
    assert len(reasons(text)) == 2


def test_functions_that_a_kept_lambda_calls_stay():
    text = """
        import tensorflow as tf
        def scale(x):
            return tf.cast(x, tf.float32)
        dataset = tf.data.Dataset.from_tensor_slices(x).map(lambda x: scale(x)).window(3)
        """
    assert "return tf.cast(x, tf.float32)" in conversion(text).after


def test_options_go_with_the_pipeline():
    policy = "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy."
    head = f"import tensorflow as tf\n\noptions = tf.data.Options()\n{policy}"
    tail = f"\ndataset = {SLICES}(x).with_options(options)\nfor x in dataset: pass\n"
    assert converted(f"{head}DATA{tail}").startswith("dataset = grain.MapDataset.source(rx.data.ArraySource(x))\n")
    (reason,) = reasons(f"{head}OFF{tail}")
    assert "OFF" in reason


def test_an_array_source_wants_rows():
    with pytest.raises(rx.errors.ArgumentError, match="same number of rows"):
        rx.data.ArraySource((np.zeros(3), np.zeros(2)))
    assert repr(rx.data.ArraySource(np.zeros((3, 2), "int8"))) == "ArraySource(int8[3, 2])"


def test_the_command_keeps_pipelines_if_it_is_told_to(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"import tensorflow as tf\n\ndataset = {SLICES}(x).batch(2)\ny = tf.cast(x, tf.int32)\n")
    result = CliRunner().invoke(app, ["migrate", "--write", "--keep-tf-data", str(script)])
    assert result.exit_code == 0, result.output
    assert f"dataset = {SLICES}(x).batch(2)\ny = keras.ops.cast" in script.read_text()


# Files of TFRecords.

PARSE = """
def parse(record):
    features = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([2], tf.float32)})
    return features["x"], tf.reduce_sum(features["x"])
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("dataset = tf.data.TFRecordDataset(FILES).map(parse).batch(2)", [2, 2, 1]),
        ("dataset = tf.data.Dataset.list_files(PATTERN, shuffle=False)\n"
         "dataset = dataset.interleave(tf.data.TFRecordDataset, cycle_length=1)\n"
         "dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)\n"
         "dataset = dataset.batch(4, drop_remainder=True)\n"
         "dataset = dataset.cache().repeat(2).prefetch(buffer_size=1)", [4, 4]),
        ("dataset = tf.data.Dataset.from_tensor_slices(FILES).flat_map(lambda f: tf.data.TFRecordDataset(f))"
         ".map(parse).filter(lambda x, y: y > 1).batch(3)", [3, 1]),
        ("dataset = tf.data.TFRecordDataset(FILES).map(parse).padded_batch(3, ([4], []))", [3, 2]),
        ("dataset = tf.data.TFRecordDataset(FILES).map(parse).map(lambda x, y: x)\n"
         "dataset = dataset.bucket_by_sequence_length(lambda x: tf.shape(x)[0], [3], [2, 2])", [2, 2, 1]),
    ],
)  # fmt: skip
def test_files_are_read_without_tensorflow(code, expected, tmp_path):
    for part, rows in enumerate(([0, 1, 2], [3, 4])):
        rx.data.write_tfrecord(str(tmp_path / f"{part}.tfrecord"), [{"x": np.float32([row, 1])} for row in rows])
    files = f"FILES = {[str(tmp_path / f'{part}.tfrecord') for part in range(2)]}\nPATTERN = '{tmp_path}/*'\n"
    text = f"import tensorflow as tf\n{PARSE}\n{files}{code}\n"
    found = conversion(text)
    assert not found.edits
    assert "import tensorflow" not in found.after
    names: dict[str, object] = {}
    exec(compile(found.after, "<converted>", "exec"), names)
    batches = list(names["dataset"])
    sizes = [len(batch[0] if isinstance(batch, tuple) else batch) for batch in batches]
    assert sizes == expected
    x = batches[0][0] if isinstance(batches[0], tuple) else batches[0]
    assert x[:, 0].tolist() == sorted(x[:, 0].tolist())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("dataset.rejection_resample(lambda x: x, [0.5, 0.5])", "It drops and repeats rows at random"),
        ("dataset.take(3)", "Rows of files have no such step"),
        ("dataset.cache('file')", "There is no cache in files"),
        ("tf.data.Dataset.from_tensor_slices(x).interleave(lambda n: tf.data.Dataset.range(n))", "it gets"),
    ],
)
def test_steps_that_rows_lack_keep_the_pipelines(code, words):
    text = f"""
        import tensorflow as tf
        SPEC = dict(x=tf.io.FixedLenFeature([], tf.int64))
        dataset = tf.data.TFRecordDataset(files).map(lambda r: tf.io.parse_single_example(r, SPEC))
        dataset = {code}
        """
    assert any(words in reason for reason in reasons(text))
    after = conversion(text).after
    assert "SPEC = dict(x=tf.io.FixedLenFeature([], tf.int64))" in after
    assert "tf.data.TFRecordDataset(files).map(lambda r: tf.io.parse_single_example(r, SPEC))" in after
