"""TensorFlow's keywords of `tf.experimental.dtensor` do here what they do there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax import dtensor
from replicax.errors import ArgumentError
from tests.tensorflow.names.calls import tries

_T = "tf.experimental.dtensor"
_M = "tf.experimental.dtensor.Mesh"
_L = "tf.experimental.dtensor.Layout"


@pytest.fixture(scope="module")
def mesh():
    return dtensor.create_mesh([("x", 2), ("y", 4)])


def members(owner: str, names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names.split())


@tries(f"{_T}.create_mesh", f"{_T}.create_distributed_mesh", _M, *members(_M, "coords from_string"))
def test_making_meshes(call):
    made = call(
        f"{_T}.create_mesh",
        dtensor.create_mesh,
        mesh_dims={"x": 2, "y": 2},
        mesh_name="m",
        devices=["CPU:0", "CPU:1", "CPU:2", "CPU:3"],
        device_type="CPU",
        use_xla_spmd=False,
    )
    assert (made.name, made.shape(), made.global_devices()) == ("m", (2, 2), jax.devices()[:4])
    over_all = call(
        f"{_T}.create_distributed_mesh",
        dtensor.create_distributed_mesh,
        mesh_dims=[("x", 8)],
        mesh_name="all",
        local_devices=[f"CPU:{i}" for i in range(8)],
        device_type="CPU",
        use_xla_spmd=False,
    )
    assert (over_all.name, over_all.size) == ("all", 8)
    grid = np.array(jax.devices()[:2])
    by_hand = call(_M, lambda **given: dtensor.Mesh(["x"], grid, **given), mesh_name="n", use_xla_spmd=False)
    with pytest.raises(ArgumentError, match=r"`global_device_ids`.*create_mesh"):
        dtensor.Mesh(["x"], np.arange(2), [0, 1], ["CPU:0", "CPU:1"])  # As TensorFlow's is made.
    assert by_hand.name == "n"
    call(_M, lambda dim_names, global_devices: dtensor.Mesh(dim_names, grid), dim_names=["x"], global_devices=None)
    assert tuple(call(f"{_M}.coords", made.coords, device_idx=3)) == (1, 1)
    assert call(f"{_M}.from_string", dtensor.Mesh.from_string, mesh_str=made.to_string()) == made
    with pytest.raises(ArgumentError, match="use_xla_spmd"):
        dtensor.create_mesh([("x", 8)], "", None, "CPU", True)


@tries(f"{_M}.from_device")
def test_the_mesh_of_a_device(call):
    assert call(f"{_M}.from_device", dtensor.Mesh.from_device, device="cpu:1").single_device == jax.devices()[1]


@tries(
    *members(
        _M,
        "contains_dim device_location device_type dim_size global_device_ids global_devices host_mesh is_remote "
        "is_single_device local_device_ids local_device_locations local_devices min_global_device_id "
        "num_local_devices shape to_string unravel_index",
    )
)
def test_what_a_mesh_knows(call, mesh):
    def ask(member, *args):
        return call(f"{_M}.{member}", lambda: getattr(mesh, member)(*args))

    assert ask("contains_dim", "x") is True
    assert ask("device_location", 5) == {"x": 1, "y": 1}
    assert ask("device_type").lower() == "cpu"
    assert ask("dim_size", "y") == 4
    assert list(ask("local_device_ids")) == list(range(8)) == ask("global_device_ids").ravel().tolist()
    assert ask("global_devices") == ask("local_devices") == jax.devices()
    assert ask("host_mesh") == mesh
    assert (ask("is_remote"), ask("is_single_device")) == (False, False)
    assert ask("local_device_locations") == ask("unravel_index") == [{"x": i // 4, "y": i % 4} for i in range(8)]
    assert (ask("min_global_device_id"), ask("num_local_devices"), tuple(ask("shape"))) == (0, 8, (2, 4))
    assert ask("to_string").split("|")[1] == "x=2,y=4"


@tries(
    _L,
    *members(
        _L,
        "batch_sharded delete from_string global_shape_from_local_shape inner_sharded is_batch_parallel "
        "is_fully_replicated is_single_device local_shape_from_global_shape num_shards offset_to_shard "
        "offset_tuple_to_global_index replicated to_string from_device from_single_device_mesh to_parted",
    ),
)
def test_layouts(call, mesh):
    layout = call(_L, dtensor.Layout, sharding_specs=["x", dtensor.UNSHARDED], mesh=mesh)
    assert layout == call(f"{_L}.batch_sharded", dtensor.Layout.batch_sharded, mesh=mesh, batch_dim="x", rank=2, axis=0)
    inner = call(f"{_L}.inner_sharded", dtensor.Layout.inner_sharded, mesh=mesh, inner_dim="y", rank=2)
    assert inner.sharding_specs[-1] == "y"
    whole = call(f"{_L}.replicated", dtensor.Layout.replicated, mesh=mesh, rank=2)
    assert call(f"{_L}.is_fully_replicated", whole.is_fully_replicated)
    assert call(f"{_L}.delete", layout.delete, dims=[0]).sharding_specs[0] == dtensor.UNSHARDED
    written = call(f"{_L}.to_string", layout.to_string)
    assert call(f"{_L}.from_string", dtensor.Layout.from_string, layout_str=written) == layout
    assert call(f"{_L}.offset_tuple_to_global_index", layout.offset_tuple_to_global_index, offset_tuple=(1, 0)) == 1
    assert call(f"{_L}.offset_to_shard", layout.offset_to_shard)[4] == (1, 0)
    asked = {
        "global_shape_from_local_shape": layout.global_shape,
        "local_shape_from_global_shape": layout.local_shape,
    }
    for name, fn in asked.items():  # TensorFlow's have no names for their arguments.
        call(f"{_L}.{name}", lambda fn=fn: fn([4, 3]))
    assert (layout.global_shape([4, 3]), layout.local_shape([4, 3])) == ((8, 3), (2, 3))
    assert call(f"{_L}.num_shards", lambda: layout.num_shards(0)) == 2
    assert call(f"{_L}.is_batch_parallel", layout.is_batch_parallel) in (True, False)
    assert call(f"{_L}.is_single_device", layout.is_single_device) is False
    assert call(f"{_L}.to_parted", layout.to_parted) == layout
    alone = call(f"{_L}.from_device", dtensor.Layout.from_device, device="cpu:1")
    assert alone == call(f"{_L}.from_single_device_mesh", dtensor.Layout.from_single_device_mesh, mesh=alone.mesh)


@tries(
    *members(
        _T,
        "call_with_layout check_layout copy_to_mesh fetch_layout is_dtensor pack unpack relayout relayout_like "
        "default_mesh run_on get_default_mesh device_name",
    )
)
def test_tensors(call, mesh):
    layout = dtensor.Layout(["x"], mesh)
    whole = dtensor.Layout.replicated(mesh, 1)
    parts = [jnp.full(2, float(i // 4)) for i in range(8)]
    packed = call(f"{_T}.pack", dtensor.pack, tensors=parts, layout=layout)
    assert packed.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert [part.tolist() for part in call(f"{_T}.unpack", dtensor.unpack, tensor=packed)][::4] == [
        [0.0] * 2,
        [1.0] * 2,
    ]
    assert call(f"{_T}.fetch_layout", dtensor.fetch_layout, tensor=packed) == layout
    assert call(f"{_T}.is_dtensor", dtensor.is_dtensor, tensor=packed)
    call(f"{_T}.check_layout", dtensor.check_layout, tensor=packed, layout=layout)
    moved = call(f"{_T}.relayout", dtensor.relayout, tensor=packed, layout=whole, name="label")
    assert dtensor.fetch_layout(moved) == whole == dtensor.fetch_layout(dtensor.relayout(packed, whole, "label"))
    back = call(f"{_T}.relayout_like", dtensor.relayout_like, tensor=moved, layout_tensor=packed, name="label")
    assert dtensor.fetch_layout(back) == layout
    copied = call(f"{_T}.copy_to_mesh", dtensor.copy_to_mesh, tensor=np.ones(4), layout=layout, source_layout=whole)
    assert dtensor.fetch_layout(copied) == layout
    made = call(
        f"{_T}.call_with_layout",
        lambda fn, layout: dtensor.call_with_layout(fn, layout, (4,)),
        fn=jnp.ones,
        layout=layout,
    )
    assert dtensor.fetch_layout(made) == layout
    for name in ("default_mesh", "run_on"):
        with call(f"{_T}.{name}", getattr(dtensor, name), mesh=mesh):
            assert call(f"{_T}.get_default_mesh", dtensor.get_default_mesh) == mesh
            assert call(f"{_T}.device_name", dtensor.device_name)
    assert dtensor.get_default_mesh() is None


@tries(
    *members(
        _T,
        "DVariable DVariable.numpy enable_save_as_bf16 name_based_save name_based_restore sharded_save "
        "DTensorCheckpoint",
    )
)
def test_variables_and_checkpoints(call, mesh, tmp_path):
    layout = dtensor.Layout(["x"], mesh)
    variable = call(
        f"{_T}.DVariable",
        dtensor.DVariable,
        initial_value=np.arange(4.0),
        dtype="float32",
        layout=layout,
        trainable=False,
        name="w",
        validate_shape=True,
        **dict.fromkeys(
            ["caching_device", "variable_def", "import_scope", "constraint", "synchronization", "aggregation", "shape"]
        ),
    )
    assert (variable.layout, variable.trainable, variable.name) == (layout, False, "w")
    assert call(f"{_T}.DVariable.numpy", variable.numpy).tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ArgumentError, match=r"`aggregation`.*nothing to combine"):
        dtensor.DVariable(1.0, layout=dtensor.Layout.replicated(mesh, 0), aggregation="sum")
    call(f"{_T}.enable_save_as_bf16", dtensor.enable_save_as_bf16, variables=[variable])
    assert variable.save_as_bf16
    variable.save_as_bf16 = False
    tensors = {"w": variable}
    call(
        f"{_T}.name_based_save",
        dtensor.name_based_save,
        mesh=mesh,
        checkpoint_prefix=tmp_path / "by_name",
        name_tensor_dict=tensors,
    )
    read = call(
        f"{_T}.name_based_restore",
        dtensor.name_based_restore,
        mesh=mesh,
        checkpoint_prefix=tmp_path / "by_name",
        name_tensor_dict=tensors,
    )
    assert (list(read), dtensor.fetch_layout(read["w"])) == (["w"], layout)
    call(
        f"{_T}.sharded_save",
        dtensor.sharded_save,
        mesh=mesh,
        file_prefix=tmp_path / "sharded",
        tensor_names=["w"],
        shape_and_slices=None,
        tensors=[variable],
    )
    assert dtensor.saved_tensors(tmp_path / "sharded")["w"].shape == (4,)
    with pytest.raises(ArgumentError, match="Whole tensors are saved"):
        dtensor.sharded_save(mesh, tmp_path / "other", ["w"], ["slices"], [variable])
    name = f"{_T}.DTensorCheckpoint"
    checkpoint = call(name, dtensor.Checkpoint, mesh=mesh, root=None, w=variable)
    path = checkpoint.write(tmp_path / "whole")
    variable.assign(np.zeros(4))
    checkpoint.restore(path)
    assert variable.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]


@tries(f"{_T}.DTensorDataset")
def test_datasets(call, mesh):
    def dataset(source, *, batched):
        return call(
            f"{_T}.DTensorDataset",
            dtensor.DTensorDataset,
            dataset=source,
            mesh=mesh,
            layouts=dtensor.Layout(["x"], mesh),
            global_batch_size=4,
            dataset_already_batched=batched,
            batch_dim="x",
            prefetch=1,
            tf_data_service_config=None,
        )

    assert [batch.tolist() for batch in dataset(np.arange(8.0), batched=False)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(list(dataset([np.arange(4.0)], batched=True))) == 1


@tries(
    *members(
        _T,
        "barrier client_id full_job_name heartbeat_enabled initialize_accelerator_system job_name jobs local_devices "
        "num_clients num_global_devices num_local_devices preferred_device_type shutdown_accelerator_system",
    )
)
def test_clients(call, mesh):
    started = call(
        f"{_T}.initialize_accelerator_system",
        dtensor.initialize_accelerator_system,
        device_type="CPU",
        enable_coordination_service=True,
        num_logical_cpu_devices=8,
        experimental_reset_context=False,
        experimental_enable_megcore=False,
    )
    assert started == "cpu" == dtensor.initialize_accelerator_system("CPU", True, 8, False, False)
    with pytest.raises(ArgumentError, match=r"`enable_coordination_service`.*always meet"):
        dtensor.initialize_accelerator_system("CPU", False)
    call(f"{_T}.barrier", dtensor.barrier, mesh=mesh, barrier_name="here", timeout_in_ms=60_000)
    assert call(f"{_T}.client_id", dtensor.client_id) == 0
    assert call(f"{_T}.num_clients", dtensor.num_clients) == 1
    assert call(f"{_T}.jobs", dtensor.jobs) == []
    assert call(f"{_T}.job_name", dtensor.job_name) == "localhost"
    assert "localhost" in call(f"{_T}.full_job_name", dtensor.full_job_name, task_id=0)
    assert call(f"{_T}.heartbeat_enabled", dtensor.heartbeat_enabled) is True
    local = call(f"{_T}.local_devices", dtensor.local_devices, device_type="CPU", for_client_id=0)
    assert local == jax.devices()
    assert call(f"{_T}.num_local_devices", dtensor.num_local_devices, device_type="CPU") == 8
    assert call(f"{_T}.num_global_devices", dtensor.num_global_devices, device_type="CPU") == 8
    assert call(f"{_T}.preferred_device_type", dtensor.preferred_device_type).lower() == "cpu"
    call(f"{_T}.shutdown_accelerator_system", dtensor.shutdown_accelerator_system)
