import warnings

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, DeviceError, LayoutError


def mesh(names=("batch", "model"), shape=(4, 2)):
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(shape), names)


def model_under(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(16, name="up"), keras.layers.Dense(4, name="down")]
        )
        model.compile("adam", "mse")
    return model


def fitted(strategy):
    model = model_under(strategy)
    model.fit(np.ones((16, 8), "float32"), np.ones((16, 4), "float32"), verbose=0)
    return model


def shard_shapes(variable):
    return {shard.data.shape for shard in variable.value.addressable_shards}


def test_variables_and_their_optimizer_state_get_the_layout_of_the_first_pattern_that_matches():
    strategy = rx.LayoutStrategy(mesh(), {"up/kernel": (None, "model"), "kernel": ("model", None)})
    model = fitted(strategy)
    up, _, down, _ = model.trainable_variables
    assert shard_shapes(up) == {(8, 8)}
    assert shard_shapes(down) == {(8, 4)}
    momentum = next(v for v in model.optimizer.variables if "up_kernel_momentum" in v.path)
    assert shard_shapes(momentum) == {(8, 8)}


def test_replicas_are_the_positions_along_the_first_axis():
    assert rx.LayoutStrategy(mesh(), {}).num_replicas_in_sync == 4
    assert rx.LayoutStrategy(mesh(shape=(2, 4)), {}).num_replicas_in_sync == 2


def test_a_layout_may_cut_over_the_first_axis_too():
    strategy = rx.LayoutStrategy(mesh(), {"up/kernel": ("batch", "model")})
    assert shard_shapes(fitted(strategy).trainable_variables[0]) == {(2, 8)}


def test_keras_meshes_and_layout_maps_are_taken():
    device_mesh = keras.distribution.DeviceMesh((4, 2), ["batch", "model"])
    layout_map = keras.distribution.LayoutMap(device_mesh)
    layout_map["up/kernel"] = (None, "model")
    assert shard_shapes(fitted(rx.LayoutStrategy(device_mesh, layout_map)).trainable_variables[0]) == {(8, 8)}


@pytest.mark.parametrize(
    ("layout_map", "message"),
    [
        ({"up(": (None, "model")}, "no regular expression"),
        ({"up/kernel": (None, "expert")}, "expert"),
        ({"up/kernel": ("model", "model")}, "at most once"),
    ],
)
def test_a_bad_layout_map_is_refused_at_once(layout_map, message):
    with pytest.raises(LayoutError, match=message):
        rx.LayoutStrategy(mesh(), layout_map)


@pytest.mark.parametrize(
    ("layout_map", "message"),
    [
        ({"upp/kernel": (None, "model")}, "match no variable"),
        ({"up/kernel": ("model",)}, "one entry for each dimension"),
        ({"down/kernel": (None, "batch"), "up/bias": ("batch",), "up/kernel": ("batch", None), "x": ()}, "match no"),
    ],
)
def test_a_layout_that_does_not_fit_the_model_is_refused_before_training(layout_map, message):
    strategy = rx.LayoutStrategy(mesh(), layout_map)
    with pytest.raises(LayoutError, match=message):
        fitted(strategy)


def test_no_mesh_is_refused():
    with pytest.raises(ArgumentError, match="DeviceMesh"):
        rx.LayoutStrategy("cpu:0", {})


def test_an_unused_pattern_is_named_with_paths_that_are_near():
    strategy = rx.LayoutStrategy(mesh(), {"denze_up/kernel": (None, "model")})
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, name="dense_up")])
    says = r"Near 'denze_up/kernel': \S*dense_up/kernel, .*The variables are: \S*dense_up/k"
    with pytest.raises(LayoutError, match=says):
        strategy.check_layouts(model.trainable_variables)


def test_a_custom_loop_with_an_unused_pattern_is_refused_before_its_first_step():
    strategy = rx.LayoutStrategy(mesh(), {"up/kernel": (None, "model"), "upp/bias": ("model",)})
    with strategy.scope():
        layer = keras.layers.Dense(4, use_bias=False, name="up")
        layer.build((None, 2))
    before = np.asarray(layer.kernel)
    step = rx.function(lambda: strategy.run(lambda: layer.kernel.assign(layer.kernel.value * 2)))
    for call in (step, lambda: strategy.run(lambda: layer.kernel.assign(layer.kernel.value * 2))):
        with pytest.raises(LayoutError, match=r"patterns \['upp/bias'\] match no variable.*are: up/kernel\."):
            call()
    np.testing.assert_array_equal(layer.kernel, before)


def test_a_custom_loop_without_layers_is_warned_of_an_unused_pattern_once():
    strategy = rx.LayoutStrategy(mesh(), {"w": (None, "model"), "v": (None, "model")})
    with strategy.scope():
        w = rx.Variable(np.ones((4, 2), "float32"), name="w")
    with pytest.warns(UserWarning, match=r"patterns \['v'\] match no variable.*are: w\."):
        strategy.run(lambda: w.value.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy.run(lambda: w.value.sum() * 2)
    assert strategy.explain([w]) == "w  (4, 2)  (None, 'model')  16 bytes  (pattern 'w')"
    with strategy.scope():
        other = rx.Variable(1.0, name="x")
    assert strategy.explain([other]).endswith("(no pattern matches its path)")


@pytest.mark.parametrize("layout_map", [5, None, [("kernel", (None,))]])
def test_a_layout_map_is_a_mapping(layout_map):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    with pytest.raises(ArgumentError, match="maps patterns to layouts"):
        rx.LayoutStrategy(mesh, layout_map)


def test_a_mesh_shape_makes_the_mesh():
    for shape, sizes in [
        ((2, 4), {"batch": 2, "model": 4}),
        ((2, -1), {"batch": 2, "model": 4}),
        ({"data": 2, "seq": 2, "model": 2}, {"data": 2, "seq": 2, "model": 2}),
        ((2, 2), {"batch": 2, "model": 2}),
        (4, {"batch": 4}),
        (None, {"batch": 8}),
    ]:
        strategy = rx.LayoutStrategy(mesh_shape=shape)
        assert repr(strategy) == f"LayoutStrategy({sizes})"
        assert strategy.num_replicas_in_sync == next(iter(sizes.values()))
    assert repr(rx.LayoutStrategy(layout="tensor")) == "LayoutStrategy({'batch': 1, 'model': 8})"


@pytest.mark.parametrize("shape", [(2, 2, 2), "24", (0, 8), {}, {"batch": 2.0}, (), {1: 8}])
def test_what_is_no_mesh_shape_is_refused(shape):
    with pytest.raises(ArgumentError, match=r"mesh"):
        rx.LayoutStrategy(mesh_shape=shape)


@pytest.mark.parametrize(("shape", "devices"), [((4, 4), None), ((3, -1), None), ((2, 2), 8), ((-1, -1), None)])
def test_a_mesh_shape_that_the_devices_do_not_fill_is_refused(shape, devices):
    with pytest.raises(DeviceError, match="A mesh of shape"):
        rx.LayoutStrategy(mesh_shape=shape, devices=devices)


def test_arguments_that_contradict_each_other_are_refused():
    with pytest.raises(ArgumentError, match="leave out `mesh_shape`"):
        rx.LayoutStrategy(mesh(), mesh_shape=(2, 4))
    with pytest.raises(ArgumentError, match="`layout` is one of"):
        rx.LayoutStrategy(mesh(), "zero")
    with pytest.raises(ArgumentError, match="`min_size`"):
        rx.LayoutStrategy(mesh(), min_size=-1)
    with pytest.raises(ArgumentError, match="a function that returns one, got None"):
        rx.LayoutStrategy(mesh(), lambda device_mesh: None)


def test_the_former_name_of_the_layout_works_and_says_so():
    with pytest.warns(DeprecationWarning, match="is now layout="):
        strategy = rx.LayoutStrategy(mesh(), layout_map={"up/kernel": (None, "model")})
    assert shard_shapes(fitted(strategy).trainable_variables[0]) == {(8, 8)}


def test_a_layout_map_brings_its_mesh():
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((2, 4), ["batch", "model"]))
    layout_map["up/kernel"] = (None, "model")
    assert repr(rx.LayoutStrategy(layout=layout_map)) == "LayoutStrategy({'batch': 2, 'model': 4})"


def test_a_large_variable_that_every_device_holds_is_told_once_when_training_begins():
    strategy = rx.LayoutStrategy(mesh(), {"up/kernel": (None, "model")}, min_size=32)
    model = model_under(strategy)
    says = r"leaves a large variable whole.*down/kernel \(16, 4\) float32, 64 of 212 elements \(no pattern matches"
    data = np.ones((16, 8), "float32"), np.ones((16, 4), "float32")
    with pytest.warns(UserWarning, match=says):
        model.fit(*data, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(*data, verbose=0)
        fitted(rx.LayoutStrategy(mesh(), {"up/kernel": (None, "model"), "kernel": (None, None)}, min_size=32))


def test_a_custom_loop_is_told_of_a_large_variable_too():
    strategy = rx.LayoutStrategy(mesh(), {"up/kernel": (None, "model")}, min_size=32)
    model = model_under(strategy)
    with pytest.warns(UserWarning, match=r"leaves a large variable whole.*down/kernel"):
        strategy.run(lambda: model(np.ones((2, 8), "float32")))


def test_a_dimension_that_does_not_divide_is_told_with_what_was_cut_instead():
    strategy = rx.LayoutStrategy(mesh_shape=(2, 4), layout="tensor", min_size=1)
    with strategy.scope():
        table = keras.layers.Embedding(30, 8)
        table.build()
        odd = keras.layers.Embedding(5, 7)
        odd.build()
    assert strategy.explain(table.variables).endswith(
        "(table of Embedding: features over 'model'; 30 rows of the vocabulary are not divisible by 'model'=4)"
    )
    assert strategy.explain(odd.variables).endswith(
        "(table of Embedding; 5 rows of the vocabulary are not divisible by 'model'=4, nor is any other dimension)"
    )
    model = keras.Sequential([odd])
    with pytest.warns(UserWarning, match="nor is any other dimension"):
        strategy.check_layouts(model.variables)
