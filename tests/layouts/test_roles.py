"""The role of a variable, by the type of the layers that made it: names are chosen to say nothing."""

import keras
import pytest

import replicax as rx
from replicax.layouts import role_of


def built(make, *shapes):
    with rx.MirroredStrategy(["cpu:0"]).scope():
        layer = make()
        layer.build(*shapes)
    return layer


def cuts(layer):
    return {
        variable.path.split("/", 1)[1]: [cut.dimension for cut in role_of(variable).cuts]
        for variable in layer.variables
    }


class Holder(keras.layers.Layer):
    """A layer that builds another one, as `b`."""

    def __init__(self, inner):
        super().__init__(name="a")
        self.b = inner

    def build(self, shape):
        self.b.build(shape)


class MyAttention(Holder):
    """A layer of attention of a user's own."""


@pytest.mark.parametrize("kind", [keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention])
def test_attention_is_cut_along_heads(kind):
    arguments = (
        {"num_heads": 4}
        if kind is keras.layers.MultiHeadAttention
        else {"num_query_heads": 4, "num_key_value_heads": 2}
    )
    size = {"key_dim": 8} if kind is keras.layers.MultiHeadAttention else {"head_dim": 8}
    layer = built(lambda: kind(**arguments, **size, name="a"), (2, 5, 16), (2, 5, 16))
    roles = {variable.path: role_of(variable) for variable in layer.variables}
    for part in ("query", "key", "value"):
        role = roles[f"a/{part}/kernel"]
        assert role.name == f"{part} kernel of {kind.__name__}"
        assert [cut.entries for cut in role.cuts] == ["heads", "input features", "features of a head"]
        assert [cut.dimension for cut in role.cuts] == [1, 0, 2]
        bias = roles[f"a/{part}/bias"]
        assert (bias.kernel.path, bias.kernel_dimensions) == (f"a/{part}/kernel", (1, 2))
    output = roles["a/attention_output/kernel"]
    assert output.name == f"output kernel of {kind.__name__}"
    assert [cut.dimension for cut in output.cuts] == [0, 2, 1]
    assert roles["a/attention_output/bias"].kernel_dimensions == (2,)


def test_an_equation_says_which_dimensions_are_heads():
    dense = keras.layers.EinsumDense("btd,ndh->btnh", (None, 4, 8), name="x")
    layer = built(lambda: MyAttention(dense), (2, 5, 16))
    assert cuts(layer) == {"x/kernel": [0, 1, 2]}
    dense = keras.layers.EinsumDense("btnh,nhd->btd", (None, 16), name="x")
    assert cuts(built(lambda: MyAttention(dense), (2, 5, 4, 8))) == {"x/kernel": [0, 2, 1]}


def test_layers_that_widen_are_cut_along_their_output_and_others_along_their_input():
    up = built(lambda: Holder(keras.layers.Dense(64, name="x")), (2, 16))
    assert cuts(up)["x/kernel"] == [1, 0]
    assert role_of(up.variables[0]).name == "up kernel of Dense in Holder"
    down = built(lambda: Holder(keras.layers.Dense(8, name="x")), (2, 16))
    assert cuts(down)["x/kernel"] == [0, 1]
    assert [role_of(each).kernel_dimensions for each in down.variables] == [(), (1,)]
    names = {
        name: cuts(built(lambda name=name: keras.layers.Dense(16, name=name), (2, 16))) for name in ("x", "out_proj")
    }
    assert names == {"x": {"kernel": [1, 0], "bias": []}, "out_proj": {"kernel": [0, 1], "bias": []}}


@pytest.mark.parametrize(
    ("make", "shape", "expected"),
    [
        (lambda: keras.layers.Embedding(30, 8), None, {"embeddings": [0, 1]}),
        (lambda: keras.layers.Conv2D(8, 3), (1, 9, 9, 4), {"kernel": [3, 2], "bias": []}),
        (lambda: keras.layers.Conv1DTranspose(8, 3), (1, 9, 4), {"kernel": [1, 2], "bias": []}),
        (lambda: keras.layers.DepthwiseConv2D(3), (1, 9, 9, 4), {"kernel": [2, 3], "bias": []}),
        (lambda: keras.layers.LayerNormalization(), (1, 8), {"gamma": [], "beta": []}),
    ],
)
def test_other_layers(make, shape, expected):
    assert cuts(built(make, shape)) == expected


def test_a_variable_without_a_known_layer_goes_by_its_shape():
    assert [cut.dimension for cut in role_of(rx.Variable([[1.0, 2.0, 3.0]], name="w")).cuts] == [1, 0]

    class Own(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(3, 5), name="w")

    assert role_of(built(Own, (1, 1)).w).name == "by shape (w of Own)"


@pytest.mark.parametrize("make", [lambda: keras.layers.Dense(16), lambda: keras.layers.EinsumDense("ab,bc->ac", 16)])
def test_the_factors_of_lora_follow_the_kernel(make):
    layer = built(make, (2, 16))
    with rx.MirroredStrategy(["cpu:0"]).scope():
        layer.enable_lora(2)
    roles = {variable.name: role_of(variable) for variable in layer.variables}
    assert roles["lora_kernel_a"].kernel_dimensions == (0, None)
    assert roles["lora_kernel_b"].kernel_dimensions == (None, 1)
    assert (
        roles["lora_kernel_a"].kernel
        is roles["lora_kernel_b"].kernel
        is next(variable for variable in layer.variables if variable.name == "kernel")
    )


def test_a_variable_whose_value_comes_later_is_known_too():
    """Keras makes it inside a stateless scope, and gives it its value when that ends, outside of its layer."""
    strategy = rx.LayoutStrategy(mesh_shape=(1, 8), layout="tensor", min_size=1)
    with strategy.scope():
        layer = Holder(keras.layers.Dense(64, name="x"))
        with keras.StatelessScope():
            layer.build((2, 16))
    assert strategy.explain(layer.variables).count("up kernel of Dense in Holder: output features") == 1
