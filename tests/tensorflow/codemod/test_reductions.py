"""What scripts reduce themselves before they differentiate, or before `apply_gradients`, is a finding."""

import pytest

from tests.tensorflow.codemod.converted import conversion, converted, reasons

HEAD = """import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
context = tf.distribute.get_replica_context()
"""


def step(loss: str, update: str = "optimizer.apply_gradients(zip(g, model.trainable_variables))", helpers="") -> str:
    inner = "\n".join(f"        {line}" for line in loss.split("\n"))
    after = "\n".join(f"    {line}" for line in update.split("\n"))
    return (
        f"{HEAD}{helpers}def step(x):\n    with tf.GradientTape() as tape:\n{inner}\n"
        f"    g = tape.gradient(loss, model.trainable_variables)\n{after}\n"
    )


HELPER = "def total(l):\n    return context.all_reduce('SUM', l)\n"


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "loss",
    [
        "l = model(x)\nloss = context.all_reduce('SUM', l) / 2",
        "l = tf.distribute.get_replica_context().all_reduce('SUM', model(x))\nloss = l * 2",
        "loss = total(model(x))",
        "loss = model(x)\nif True:\n    loss = total(loss)",
        "loss = context.all_gather(model(x), 0)",
    ],
)
def test_a_loss_that_replicas_reduce_together_stays(loss):
    (reason,) = reasons(step(loss, helpers=HELPER))
    assert "`loss` comes from what the replicas reduce together" in reason


def test_of_several_reductions_the_first_one_is_named():
    (reason,) = reasons(step("l = context.all_gather(model(x), 0)\nloss = context.all_reduce('SUM', l)"))
    assert "reduce together with `all_gather`" in reason


@pytest.mark.parametrize(
    "loss",
    [
        "loss = model(x)\nshown = context.all_reduce('SUM', loss)",
        "loss = model(x) / tf.stop_gradient(context.all_reduce('SUM', model(x)))",
    ],
)
def test_a_reduction_beside_the_loss_is_converted(loss):
    assert "rx." in converted(step(loss))


REDUCED = "g = context.all_reduce('MEAN', g)\n"
UPDATE = "optimizer.apply_gradients(zip(g, model.trainable_variables){})"


@pytest.mark.parametrize(
    "update",
    [
        REDUCED + UPDATE.format(""),
        REDUCED + "g = [tf.clip_by_value(t, -1., 1.) for t in g]\n" + UPDATE.format(""),
        "optimizer.apply_gradients(zip(context.all_reduce('SUM', g), model.trainable_variables))",
        "if True:\n    g = [total(each) for each in g]\n" + UPDATE.format(""),
    ],
)
def test_gradients_that_would_be_summed_twice_are_a_finding(update):
    (reason,) = reasons(step("loss = model(x)", update, HELPER))
    assert "`apply_gradients` sums the results once more" in reason


def test_gradients_that_the_script_alone_sums_are_converted():
    update = REDUCED + UPDATE.format(", skip_gradients_aggregation=True")
    assert "aggregation=None" in converted(step("loss = model(x)", update))


def test_a_loss_that_is_reduced_behind_the_gradient_does_not_matter():
    update = "loss = context.all_reduce('SUM', loss)\n" + UPDATE.format("")
    assert not conversion(step("loss = model(x)", update)).edits
