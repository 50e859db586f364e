"""The original form is what stood there before the edits, and each edit counts once."""

from __future__ import annotations

from tests.outside.forms import edited_lines, original

SCRIPT = """\
import keras

import replicax as rx  # +

strategy = rx.MirroredStrategy()  # +
with strategy.scope():  # +
    model = build()
    model.compile()
# - for batch in batches:
for batch in strategy.distribute_dataset(batches):  # +
    # - loss = step(batch)
    loss = strategy.run(step, args=(batch,))  # +

@rx.function  # +
def wrapped(batch):  # +
    return strategy.run(step)  # +

loss, grads = rx.value_and_grad(loss_fn, variables)()  # tf
# A comment - of the author.
"""

ORIGINAL = """\
import keras




if True:
    model = build()
    model.compile()
for batch in batches:

    loss = step(batch)






loss, grads = rx.value_and_grad(loss_fn, variables)()  # tf
# A comment - of the author.
"""


def test_the_original_is_restored_line_for_line():
    assert [line.rstrip() for line in original(SCRIPT).split("\n")] == ORIGINAL.split("\n")


def test_edited_lines():
    imported, strategy, scope, loop, run, wrapper, tape = 1, 1, 1, 1, 1, 3, 1
    assert edited_lines(SCRIPT) == imported + strategy + scope + loop + run + wrapper + tape


def test_without_marks_nothing_is_edited():
    assert edited_lines("import keras\nmodel = build()\n") == 0
