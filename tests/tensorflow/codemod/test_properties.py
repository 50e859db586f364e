"""Random programs: what they become can be parsed, stays the second time, and keeps what is not TensorFlow's."""

import ast

from hypothesis import Phase, given, settings, strategies as st

from replicax.tensorflow.codemod.conversion import convert

NAMES = st.sampled_from(["x", "y", "model", "strategy", "optimizer", "w"])
KNOWN = st.sampled_from(
    [
        "tf.distribute.get_strategy()",
        "tf.distribute.MirroredStrategy(devices=None)",
        "strategy.run(step, args=(x,))",
        "strategy.experimental_local_results(y)",
        "tf.reduce_sum(x)",
        "tf.something_new(x, tf.float32)",
        "tf.keras.layers.Dense(3)",
        "tf.Variable(1.0, trainable=False)",
    ]
)
# Statements that have nothing to do with TensorFlow, in layouts of their own.
FOREIGN = st.sampled_from(
    [
        "a = {'k':1,  'l' : [1,2 ]}   # kept",
        "b  =  a['k'] if  a else  None",
        "print( 'text' , end = '' )",
        "assert a , 'why'",
        "b = 1 ; c=2",
        "s = '''two\n  lines'''",
    ]
)


@st.composite
def lines(draw, depth=0):
    kind = draw(st.integers(0, 5 if depth < 2 else 2))
    if kind == 0:
        return draw(FOREIGN).split("\n") if depth == 0 else ["b = 1 ; c=2"]
    if kind in (1, 2):
        return [f"{draw(NAMES)} = {draw(KNOWN)}"]
    inner = [f"  {line}" for part in draw(st.lists(lines(depth=depth + 1), min_size=1, max_size=3)) for line in part]
    if kind == 3:
        return [draw(st.sampled_from(["@tf.function", "@other"])), f"def step_{depth}(x):", *inner]
    if kind == 4:
        return [f"for {draw(NAMES)} in {draw(st.sampled_from(['data', 'tf.range(3)', 'range(2)']))}:", *inner]
    assigned = [f"  loss = {draw(KNOWN)}"]
    return [
        "with tf.GradientTape() as tape:",
        *inner,
        *assigned,
        f"{draw(NAMES)} = tape.gradient(loss, {draw(NAMES)})",
    ]


PROGRAMS = st.lists(lines(), min_size=1, max_size=8).map(
    lambda parts: "import tensorflow as tf\n" + "\n".join(line for part in parts for line in part) + "\n"
)


@settings(max_examples=8, database=None, phases=[Phase.generate])
@given(PROGRAMS)
def test_any_program(text):
    found = convert(text)
    ast.parse(found.after)
    assert convert(found.after).after == found.after
    for line in text.splitlines():
        if line.startswith(("a = ", "b  = ", "print(", "assert ", "b = 1", "s = ")):
            assert f"\n{line}\n" in f"\n{found.after}"
    if not found.edits:
        assert "tensorflow" not in found.after


def test_a_statement_between_changed_ones_stays_as_it_is_written():
    # Lines that are there several times: what compares the two texts takes the one in the middle for a new one.
    text = """import tensorflow as tf
for optimizer in data:
  b = 1 ; c=2
  b = 1 ; c=2
model = tf.distribute.MirroredStrategy(devices=None)
@other
def step_0(x):
  b = 1 ; c=2
  with tf.GradientTape() as tape:
    b = 1 ; c=2
    loss = strategy.experimental_local_results(y)
  strategy = tape.gradient(loss, x)
x = tf.distribute.MirroredStrategy(devices=None)
y = tf.reduce_sum(x)
print( 'text' , end = '' )
for x in tf.range(3):
  y = tf.distribute.MirroredStrategy(devices=None)
  for w in tf.range(3):
    w = tf.reduce_sum(x)
  with tf.GradientTape() as tape:
    y = strategy.experimental_local_results(y)
    w = strategy.experimental_local_results(y)
    y = tf.something_new(x, tf.float32)
    loss = tf.reduce_sum(x)
  strategy = tape.gradient(loss, w)
"""
    assert "\nprint( 'text' , end = '' )\n" in convert(text).after
