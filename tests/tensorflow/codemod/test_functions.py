"""Compiled functions, and those that run in Python."""

from tests.tensorflow.codemod.converted import conversion, converted, reasons

HEAD = """
import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
data = strategy.experimental_distribute_dataset(batches)
"""


def test_a_step_is_compiled_and_hints_for_the_compiler_go():
    after = converted(HEAD + "@tf.function(jit_compile=True, reduce_retracing=True)\ndef step(x):\n    return x\n")
    assert "@rx.function\ndef step(x):" in after


def test_a_function_that_reads_batches_runs_in_python():
    text = HEAD + (
        "@tf.function\ndef epoch(dataset):\n    for x in dataset:\n        strategy.run(step, args=(x,))\nepoch(data)\n"
    )
    assert "function" not in converted(text)
    assert [each.name for each in conversion(text).findings] == ["tf.function"]


def test_so_does_a_function_that_calls_one():
    text = HEAD + (
        "@tf.function\ndef step(iterator):\n    return strategy.run(inner, args=(next(iterator),))\n"
        "@tf.function\ndef steps(iterator):\n    for _ in range(3):\n        step(iterator)\n"
        "@tf.function\ndef other(x):\n    return x\n"
    )
    after = converted(text)
    assert after.count("@rx.function") == 1
    assert "@rx.function\ndef other(x):" in after


def test_a_function_that_a_coordinator_schedules_reads_batches_in_the_program():
    text = HEAD + (
        "coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)\n"
        "@tf.function\ndef step(iterator):\n    return strategy.run(inner, args=(next(iterator),))\n"
        "coordinator.schedule(step, args=(per_worker,))\n"
    )
    assert "@rx.function\ndef step(iterator):" in converted(text)


def test_a_function_wrapped_in_a_call():
    text = HEAD + "def step(x):\n    return x\ncompiled = tf.function(step)\n"
    assert "compiled = rx.function(step)\n" in converted(text)


def test_a_decision_by_a_tensor_is_refused_in_compiled_functions_only():
    text = HEAD + (
        "def step(x):\n    total = strategy.reduce('sum', x, axis=None)\n    if total > 3:\n        return 1\n"
        "    return 2\n"
    )
    assert reasons(text) == []
    found = reasons(text.replace("def step", "@tf.function\ndef step"))
    assert len(found) == 1
    assert found[0].startswith("7 AutoGraph: A tensor decides here")
