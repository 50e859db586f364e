"""Tapes become loss functions."""

import pytest

from tests.tensorflow.codemod.converted import converted, reasons

HEAD = """import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
"""


def step(body: str) -> str:
    lines = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").split("\n"))
    return f"{HEAD}def step(x, y):\n{lines}\n"


def of_step(text: str) -> str:
    """Returns the converted lines of the step."""
    lines = converted(step(text)).split("\n")
    return "\n".join(line[4:] for line in lines[lines.index("def step(x, y):") + 1 :])


def test_the_loss_and_what_is_used_afterwards():
    assert (
        of_step(
            """
with tf.GradientTape() as tape:
    predictions = model(x)
    hidden = predictions * 2
    loss = loss_of(y, hidden)
# The gradients.
gradients = tape.gradient(loss, model.trainable_variables)  # all
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
accuracy.update_state(y, predictions)
return loss
"""
        )
        == """def loss_fn():
    predictions = model(x)
    hidden = predictions * 2
    loss = loss_of(y, hidden)
    return loss, predictions

# The gradients.
(loss, predictions), gradients = rx.value_and_grad(
    loss_fn, model.trainable_variables, has_aux=True
)()  # all
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
accuracy.update_state(y, predictions)
return loss
"""
    )


def test_a_loss_that_nobody_uses_and_a_gradient_inside_of_an_expression():
    assert (
        of_step(
            """
with tf.GradientTape() as tape:
    loss = loss_of(y, model(x))
optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
"""
        )
        == """def loss_fn():
    loss = loss_of(y, model(x))
    return loss

gradients = rx.grad(loss_fn, weights)()
optimizer.apply_gradients(zip(gradients, weights))
"""
    )


def test_minimize_with_a_tape():
    assert (
        of_step(
            """
with tf.GradientTape() as tape:
    loss = loss_of(y, model(x))
optimizer.minimize(loss, model.trainable_variables, tape=tape)
return loss
"""
        )
        == """def loss_fn():
    loss = loss_of(y, model(x))
    return loss

loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
return loss
"""
    )


def test_results_that_are_used_before_the_gradient_is_taken():
    assert (
        of_step(
            """
with tf.GradientTape() as tape:
    loss = loss_of(y, model(x))
mean.update_state(loss)
dw, db = tape.gradient(loss, [w, b])
return dw, db
"""
        )
        == """def loss_fn():
    loss = loss_of(y, model(x))
    return loss

loss, (dw, db) = rx.value_and_grad(loss_fn, [w, b], aggregation=None)()
mean.update_state(loss)
return dw, db
"""
    )


def test_gradients_that_are_changed_are_summed_where_they_were_summed():
    assert (
        of_step(
            """
with tf.GradientTape() as tape:
    loss = loss_of(y, model(x))
grads = tape.gradient(loss, weights)
grads = [clip(g) for g in grads]
optimizer.apply_gradients(zip(grads, weights))
"""
        )
        == """def loss_fn():
    loss = loss_of(y, model(x))
    return loss

grads = rx.grad(loss_fn, weights, aggregation=None)()
grads = [clip(g) for g in grads]
optimizer.apply_gradients(
    zip(rx.get_replica_context().all_reduce("sum", grads), weights)
)
"""
    )


def test_gradients_that_the_script_sums():
    assert of_step(
        """
with tf.GradientTape() as tape:
    loss = loss_of(y, model(x))
grads = tape.gradient(loss, weights)
grads = tf.distribute.get_replica_context().all_reduce("sum", grads)
optimizer.apply_gradients(zip(grads, weights), experimental_aggregate_gradients=False)
"""
    ).split("\n")[-4:-1] == [
        "grads = rx.grad(loss_fn, weights, aggregation=None)()",
        'grads = rx.get_replica_context().all_reduce("sum", grads)',
        "optimizer.apply_gradients(zip(grads, weights))",
    ]


def test_a_value_from_before_the_block():
    assert of_step(
        """
total = 0.0
with tf.GradientTape() as tape:
    total += loss_of(y, model(x))
grads = tape.gradient(total, weights)
return total, grads
"""
    ).startswith("total = 0.0\n\ndef loss_fn(total=total):\n    total += loss_of(y, model(x))\n    return total\n")


def test_two_blocks_one_behind_the_other():
    found = of_step(
        """
with tf.GradientTape() as tape:
    loss = loss_of(y, model(x))
grads = tape.gradient(loss, weights)
with tf.GradientTape() as tape:
    other = loss_of(x, model(y))
others = tape.gradient(other, weights)
return grads, others
"""
    )
    assert found.count("rx.grad(loss_fn, weights, aggregation=None)()") == 2
    assert "tape" not in found


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("with tf.GradientTape() as tape:\n    return model(x)", "The block is left by `return`"),
        (
            "with tf.GradientTape() as tape:\n    tape.watch(x)\n    z = x * x\nreturn tape.gradient(z, x)",
            "It watches a tensor",
        ),
        (
            "with tf.GradientTape(persistent=True) as tape:\n    a = f(x)\n    b = a * a\n"
            "return tape.gradient(a, w), tape.gradient(b, w)",
            "It takes 2 gradients",
        ),
        (
            "with tf.GradientTape() as g, tf.GradientTape() as d:\n    a = f(x)\nreturn g.gradient(a, w)",
            "Several tapes",
        ),
        (
            "with tf.GradientTape() as tape:\n    a = f(x)\nreturn tape.gradient(y, w)",
            "`y` is not computed",
        ),
        ("with tf.GradientTape() as tape:\n    a = f(x)\nkeep(tape)", "The tape is used otherwise"),
        (
            "with tf.GradientTape() as tape:\n    a = f(x)\nreturn tape.gradient(a, w, output_gradients=y)",
            "`output_gradients` has no counterpart",
        ),
    ],
)
def test_tapes_that_stay(body, reason):
    found = reasons(step(body))
    assert any(each.startswith(f"4 tf.GradientTape: {reason}") for each in found), found
