import keras
import numpy as np
import pytest

import replicax as rx
from replicax.strategies.sharded_update import largest_divisible_cut


@pytest.mark.parametrize(
    ("shape", "parts", "cut"),
    [
        ((8, 16), 8, (None, "replica")),
        ((16, 8), 8, ("replica",)),
        ((7, 9), 8, ()),
        ((), 2, ()),
        ((8, 8), 8, ("replica",)),
    ],
)
def test_the_longest_dimension_that_divides_is_cut(shape, parts, cut):
    assert tuple(largest_divisible_cut(shape, parts)) == cut


def test_large_variables_are_cut_and_small_ones_mirrored():
    strategy = rx.FullyShardedStrategy(min_size=64)
    with strategy.scope():
        large, small, odd = rx.Variable(np.ones((16, 16))), rx.Variable(np.ones(8)), rx.Variable(np.ones((9, 9)))
    strategy.run(lambda: [variable.assign_add(1.0) for variable in (large, small, odd)] and None)
    assert {shard.data.shape for shard in large._value.addressable_shards} == {(2, 16)}
    assert isinstance(small._value, rx.Mirrored)
    assert isinstance(odd._value, rx.Mirrored)
    np.testing.assert_array_equal(large.numpy(), np.full((16, 16), 2.0))


def test_parameters_and_optimizer_state_take_their_share_of_memory_after_fit():
    strategy = rx.FullyShardedStrategy(min_size=64)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(8)])
        model.compile("adam", "mse")
    model.fit(np.ones((16, 64), "float32"), np.ones((16, 8), "float32"), verbose=0)
    variables = [*model.trainable_variables, *model.optimizer.variables]
    on_first = sum(variable.value.addressable_shards[0].data.nbytes for variable in variables)
    whole = sum(variable.value.nbytes for variable in variables)
    mirrored = sum(variable.value.nbytes for variable in variables if np.prod(variable.shape) < 64)
    assert on_first == (whole - mirrored) // 8 + mirrored


def test_explain_tells_the_layout_of_each_variable():
    strategy = rx.FullyShardedStrategy(min_size=64)
    with strategy.scope():
        large, small = rx.Variable(np.ones((16, 8)), name="large"), rx.Variable(np.ones(8), name="small")
    lines = strategy.explain([large, small]).splitlines()
    assert lines == [
        "large  (16, 8)      ('replica',)    64 bytes  (longest dimension that 8 devices divide)",
        "small  (8,)         mirrored        32 bytes  (8 elements, fewer than min_size=64)",
        "total  2 variables  on each device  96 bytes  (of 544 bytes in all)",
    ]


def test_explain_says_why_a_large_variable_is_not_cut():
    strategy = rx.FullyShardedStrategy(min_size=1)
    with strategy.scope():
        odd = rx.Variable(np.ones((9, 7)), name="odd")
    assert strategy.explain([odd]) == "odd  (9, 7)  mirrored  252 bytes  (8 devices divide none of its dimensions)"
    alone = rx.FullyShardedStrategy(["cpu:0"], min_size=1)
    with alone.scope():
        one = rx.Variable(np.ones(8), name="one")
    assert alone.explain([one]) == "one  (8,)  mirrored  32 bytes  (there is one device)"


def test_a_notebook_shows_a_table():
    strategy = rx.FullyShardedStrategy(min_size=64)
    with strategy.scope():
        variables = [rx.Variable(np.ones((64, 64)), name="<large>"), rx.Variable(1.0, name="small")]
    html = strategy.explain(variables)._repr_html_()
    for part in ("<th>rule</th>", "&lt;large&gt;", ">2,048</td>"):
        assert part in html
    assert "<th>rule" not in rx.MirroredStrategy(["cpu:0"]).explain(())._repr_html_()


@pytest.mark.parametrize("min_size", [-1, 1.5, True, None])
def test_a_bad_min_size_is_refused(min_size):
    with pytest.raises(rx.errors.ArgumentError, match="min_size"):
        rx.FullyShardedStrategy(min_size=min_size)
