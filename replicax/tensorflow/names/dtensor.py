"""TensorFlow's names: `tf.experimental.dtensor`."""

from __future__ import annotations

from replicax.tensorflow.names.rows import (
    Row,
    Rows,
    absent,
    absent_members,
    differing,
    differs,
    members,
    refused,
    renamed,
    same,
    to,
    unused,
)
from replicax.tensorflow.names.variables import VARIABLES

_T = "tf.experimental.dtensor"
_MESH = "tf.experimental.dtensor.Mesh"
_LAYOUT = "tf.experimental.dtensor.Layout"
_DATASET = "tf.experimental.dtensor.DTensorDataset"
_GRAPH_LABEL = unused("A label in TensorFlow's graph.")
_XLA_SPMD = refused("XLA's partitioner is the only one here, on every platform.", False, None)
_NO_PROTO = "Use `to_string` and `from_string`, or `pickle`."
_MAKE = "Make a mesh with `rx.dtensor.create_mesh`, or give `Mesh` an array of devices."
_TRANSFORM = "It is no `tf.data.Dataset`: transform what you give to `rx.dtensor.DTensorDataset`."
_OF_VARIABLES = ("validate_shape", "caching_device", "variable_def", "import_scope", "shape")
_DIRECTORY = to("directory")


def _started(note: str = "") -> Row:
    return renamed(
        "dtensor.initialize_accelerator_system",
        note,
        enable_coordination_service=refused("Clients always meet at JAX's coordination service.", True),
        experimental_reset_context=refused("JAX cannot start its devices again in one process.", False),
        experimental_enable_megcore=refused("XLA decides about it; see its flags.", False),
    ).ordered(
        "device_type enable_coordination_service num_logical_cpu_devices experimental_reset_context "
        "experimental_enable_megcore"
    )


DTENSOR: Rows = {
    "tf.experimental": absent("`tf.experimental.dtensor` is `rx.dtensor`."),
    _T: renamed("dtensor"),
    **members(
        "dtensor",
        "MATCH UNSHARDED barrier call_with_layout check_layout client_id default_mesh device_name enable_save_as_bf16 "
        "fetch_layout full_job_name get_default_mesh heartbeat_enabled is_dtensor job_name jobs "
        "num_clients num_global_devices num_local_devices run_on unpack",
        _T,
    ),
    f"{_T}.local_devices": differs("dtensor.local_devices", "`jax.Device`s, not TensorFlow's."),
    f"{_T}.preferred_device_type": differs("dtensor.preferred_device_type", "In small letters."),
    f"{_T}.pack": same("dtensor.pack", "`check_replicas=True` also looks at parts that should be equal."),
    f"{_T}.relayout": same("dtensor.relayout", "", name=_GRAPH_LABEL).ordered("tensor layout name"),
    f"{_T}.relayout_like": same("dtensor.relayout_like", "", name=_GRAPH_LABEL).ordered("tensor layout_tensor name"),
    f"{_T}.copy_to_mesh": same("dtensor.copy_to_mesh", "", source_layout=unused("TensorFlow ignores it too.")).ordered(
        "tensor layout source_layout"
    ),
    f"{_T}.create_mesh": differs(
        "dtensor.create_mesh", "Names of dimensions must differ.", use_xla_spmd=_XLA_SPMD
    ).ordered("mesh_dims mesh_name devices device_type use_xla_spmd"),
    f"{_T}.create_distributed_mesh": same("dtensor.create_distributed_mesh", "", use_xla_spmd=_XLA_SPMD).ordered(
        "mesh_dims mesh_name local_devices device_type use_xla_spmd"
    ),
    f"{_T}.create_tpu_mesh": absent(
        "`rx.dtensor.create_mesh` orders the devices as JAX does; give it `devices=` in another order."
    ),
    f"{_T}.initialize_accelerator_system": _started("It may be called again; it waits at most `timeout_s`.")._replace(
        kind="differs"
    ),
    f"{_T}.initialize_multi_client": _started(),
    f"{_T}.initialize_tpu_system": _started(),
    f"{_T}.shutdown_accelerator_system": same("dtensor.shutdown_accelerator_system", "With several clients too."),
    f"{_T}.shutdown_tpu_system": renamed("dtensor.shutdown_accelerator_system"),
    f"{_T}.name_based_save": same("dtensor.name_based_save", "", checkpoint_prefix=_DIRECTORY),
    f"{_T}.name_based_restore": same("dtensor.name_based_restore", "", checkpoint_prefix=_DIRECTORY),
    f"{_T}.sharded_save": differs(
        "dtensor.sharded_save",
        "Each process writes what its devices hold; there are no slices to name.",
        file_prefix=_DIRECTORY,
        shape_and_slices=refused("Whole tensors are saved: leave it out.", None),
    ).ordered("mesh file_prefix tensor_names shape_and_slices tensors"),
    # Mesh.
    _MESH: differs(
        "dtensor.Mesh",
        _MAKE + " Its name is a label: meshes that differ in it alone are equal.",
        global_device_ids=refused(_MAKE),
        local_device_ids=refused(_MAKE),
        local_devices=refused(_MAKE),
        mesh_name=to("name"),
        global_devices=refused(_MAKE, None),
        use_xla_spmd=_XLA_SPMD,
    ).ordered("dim_names global_device_ids local_device_ids local_devices mesh_name global_devices use_xla_spmd"),
    **members(
        "dtensor.Mesh",
        "contains_dim dim_names dim_size host_mesh is_remote local_device_ids local_device_locations "
        "min_global_device_id num_local_devices shape size strides global_device_ids name",
        _MESH,
    ),
    f"{_MESH}.coords": differs(
        "dtensor.Mesh.coords", "A number that is no device of the mesh is an error.", device_idx=to("device_id")
    ),
    f"{_MESH}.device_location": differs(
        "dtensor.Mesh.device_location", "A dict by dimension, as in `local_device_locations`; `coords` gives numbers."
    ),
    f"{_MESH}.device_type": differs("dtensor.Mesh.device_type", 'In small letters: `"cpu"`, `"gpu"`, `"tpu"`.'),
    **differing("dtensor.Mesh", "global_devices local_devices", _MESH, "`jax.Device`s, not names."),
    f"{_MESH}.is_single_device": differs("dtensor.Mesh.is_single_device", "True of every mesh of one device."),
    f"{_MESH}.single_device": differs("dtensor.Mesh.single_device", "A `jax.Device`, not a name."),
    f"{_MESH}.to_string": differs("dtensor.Mesh.to_string", "Devices are called as JAX calls them: `cpu:0`."),
    f"{_MESH}.unravel_index": differs("dtensor.Mesh.unravel_index", "A list, by number of the device."),
    f"{_MESH}.from_string": same("dtensor.Mesh.from_string", "", mesh_str=to("text")),
    f"{_MESH}.from_device": same("dtensor.Mesh.from_device"),
    f"{_MESH}.as_proto": absent(_NO_PROTO),
    f"{_MESH}.from_proto": absent(_NO_PROTO),
    f"{_MESH}.use_xla_spmd": absent("XLA's partitioner is the only one here."),
    # Layout.
    _LAYOUT: same("dtensor.Layout"),
    **members(
        "dtensor.Layout",
        "batch_sharded inner_sharded is_batch_parallel is_fully_replicated num_shards offset_to_shard rank replicated "
        "shape mesh sharding_specs",
        _LAYOUT,
    ),
    f"{_LAYOUT}.delete": differs(
        "dtensor.Layout.delete", "Negative positions count from the end; those that do not exist are an error."
    ),
    f"{_LAYOUT}.is_single_device": differs("dtensor.Layout.is_single_device", "True on every mesh of one device."),
    f"{_LAYOUT}.to_string": differs("dtensor.Layout.to_string", "Devices are called as JAX calls them: `cpu:0`."),
    f"{_LAYOUT}.offset_tuple_to_global_index": differs(
        "dtensor.Layout.offset_tuple_to_global_index",
        "A part that there is not is an error.",
        offset_tuple=to("offset"),
    ),
    f"{_LAYOUT}.from_string": same("dtensor.Layout.from_string", "", layout_str=to("text")),
    f"{_LAYOUT}.global_shape_from_local_shape": renamed("dtensor.Layout.global_shape"),
    f"{_LAYOUT}.local_shape_from_global_shape": renamed("dtensor.Layout.local_shape"),
    f"{_LAYOUT}.from_device": differs("dtensor.Layout.from_device", "Give the `rank`: a layout is for tensors of one."),
    f"{_LAYOUT}.from_single_device_mesh": differs(
        "dtensor.Layout.from_single_device_mesh", "Give the `rank`: a layout is for tensors of one."
    ),
    f"{_LAYOUT}.to_parted": differs("dtensor.Layout.to_parted", "The layout itself: parts are of equal size."),
    f"{_LAYOUT}.type": differs("dtensor.Layout.type", 'A string, `"static"` or `"single_device"`.'),
    f"{_LAYOUT}.as_proto": absent(_NO_PROTO),
    f"{_LAYOUT}.from_proto": absent(_NO_PROTO),
    # Variables, checkpoints, datasets.
    f"{_T}.DVariable": differs(
        "dtensor.DVariable",
        "It belongs to no strategy.",
        synchronization=refused("There is one value over the mesh: nothing to synchronize.", None),
        aggregation=refused("There is one value over the mesh: nothing to combine.", None),
        constraint=refused("Set `variable.constraint`: Keras's optimizers apply it.", None),
        **{name: VARIABLES["tf.Variable"].keywords[name] for name in _OF_VARIABLES},
    ),
    f"{_T}.DVariable.layout": same("dtensor.DVariable.layout"),
    f"{_T}.DVariable.save_as_bf16": same("dtensor.DVariable.save_as_bf16"),
    f"{_T}.DVariable.numpy": differs("dtensor.DVariable.numpy", "Also of a sharded one, if it is all here."),
    f"{_T}.DTensorCheckpoint": renamed("dtensor.Checkpoint"),
    _DATASET: differs(
        "dtensor.DTensorDataset",
        "It takes any iterable of elements; a last batch with fewer rows is not lost; batches that are there already "
        "are global ones.",
        tf_data_service_config=refused("There is no tf.data service.", None),
    ),
    f"{_DATASET}.element_spec": same("dtensor.DTensorDataset.element_spec"),
    f"{_DATASET}.cardinality": renamed("dtensor.DTensorDataset.__len__", "`len(dataset)`: the number of batches."),
    **absent_members(
        "apply as_numpy_iterator batch bucket_by_sequence_length cache choose_from_datasets concatenate counter "
        "enumerate filter fingerprint flat_map from_generator from_tensor_slices from_tensors get_single_element "
        "group_by_window ignore_errors interleave list_files load map options padded_batch prefetch ragged_batch "
        "random range rebatch reduce rejection_resample repeat sample_from_datasets save scan shard shuffle skip "
        "snapshot sparse_batch take take_while unbatch unique window with_options zip",
        _DATASET,
        _TRANSFORM,
    ),
}
