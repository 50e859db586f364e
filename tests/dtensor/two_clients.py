"""What each of two clients runs in `test_clients.py`: `python two_clients.py SCENARIO`. Prints its findings as JSON."""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax import dtensor
from replicax.errors import BarrierTimeoutError, ClusterTimeoutError, ContextError, MeshError

ROWS, COLUMNS, BATCH = 22, 4, 8
X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
Y = X @ np.arange(1.0, COLUMNS + 1, dtype=np.float32)


def batches(mesh, **options):
    layouts = {"x": dtensor.Layout(["batch", "unsharded"], mesh), "y": dtensor.Layout(["batch"], mesh)}
    return dtensor.DTensorDataset(
        {"x": X, "y": Y}, mesh=mesh, layouts=layouts, global_batch_size=BATCH, batch_dim="batch", **options
    )


def train(mesh):
    """Three passes of gradient descent on a linear model: the weight is cut over the mesh, the offset is not."""
    weight = dtensor.DVariable(np.zeros(COLUMNS, np.float32), layout=dtensor.Layout(["batch"], mesh))
    offset = dtensor.DVariable(lambda: jnp.ones(()), layout=dtensor.Layout([], mesh))

    @rx.function
    def step(batch):
        def loss():
            return jnp.mean((batch["x"] @ weight.value + offset.value - batch["y"]) ** 2)

        value, gradients = rx.value_and_grad(loss, [weight, offset])()
        for variable, gradient in zip([weight, offset], gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return value

    losses = [float(whole(step(batch))) for _ in range(3) for batch in batches(mesh)]
    assert weight.value.sharding == weight.layout.to_sharding()
    everywhere = dtensor.relayout(weight.value, dtensor.Layout.replicated(mesh, 1))
    return {"losses": losses, "weight": whole(everywhere).tolist(), "offset": float(whole(offset.value))}


def whole(array):
    """The numbers of an array that every device holds whole."""
    return np.asarray(array.addressable_data(0))


def error_of(error_class, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except error_class as error:
        return error
    raise AssertionError(f"{function.__name__} raised nothing")


def together():
    """Both clients come."""
    dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=2, timeout_s=60)
    me = dtensor.client_id()
    found = {"again": str(error_of(ContextError, dtensor.initialize_accelerator_system))}
    mesh = dtensor.create_distributed_mesh([("batch", 4)])
    found["mesh"] = [mesh.to_string(), [device.process_index for device in mesh.global_devices()]]
    swapped = dtensor.create_distributed_mesh({"x": 2, "y": 2}, local_devices=["cpu:1", "cpu:0"])
    found["swapped"] = [mesh.global_devices().index(device) for device in swapped.global_devices()]
    found["who"] = [dtensor.num_clients(), dtensor.full_job_name()]
    found["positions"] = [mesh.local_device_ids(), mesh.min_global_device_id()]
    found["devices"] = [
        dtensor.num_local_devices("cpu"),
        dtensor.num_global_devices("CPU"),
        [device.process_index for device in dtensor.local_devices("cpu", 1 - me)],
    ]

    total = jax.jit(jnp.sum, out_shardings=dtensor.Layout([], mesh).to_sharding())
    found["rows"], found["sums"] = [], []
    for batch in batches(mesh):
        found["rows"].append([part.tolist() for part in dtensor.unpack(batch["y"])])
        found["sums"].append([float(whole(total(batch["x"]))), float(whole(total(batch["y"])))])
    parts = dtensor.unpack(dtensor.pack([np.full(2, me), np.full(2, 10 + me)], dtensor.Layout(["batch"], mesh)))
    found["parts"] = [[part.tolist(), part.devices() == {mesh.local_devices()[i]}] for i, part in enumerate(parts)]
    found["spec"] = str(batches(mesh).element_spec["x"].sharding.spec)
    found["training"] = train(mesh)

    dtensor.barrier(mesh)
    dtensor.barrier(mesh, "named", timeout_in_ms=30_000)
    dtensor.barrier(mesh, "named", timeout_in_ms=30_000)
    mine = dtensor.create_mesh([("x", 2)])
    if me == 0:
        dtensor.barrier(mine, "nobody else's", timeout_in_ms=1)
        before = time.monotonic()
        error = error_of(BarrierTimeoutError, dtensor.barrier, mesh, "alone", timeout_in_ms=300)
        found["waited"] = time.monotonic() - before
        theirs = dtensor.Mesh(["x"], dtensor.local_devices("cpu", 1))
        found["theirs"] = str(error_of(MeshError, dtensor.barrier, theirs))
        dtensor.barrier(mesh, "after", timeout_in_ms=30_000)
    else:
        dtensor.barrier(mesh, "after", timeout_in_ms=30_000)
        error = error_of(BarrierTimeoutError, dtensor.barrier, mesh, "alone", timeout_in_ms=300)
    found["alone"] = [error.barrier, error.timeout_ms, error.client, list(error.missing), error.late, str(error)]
    dtensor.barrier(mesh, timeout_in_ms=30_000)

    dtensor.shutdown_accelerator_system()
    found["connected"] = jax.distributed.is_initialized()
    found["shut down twice"] = str(error_of(ContextError, dtensor.shutdown_accelerator_system))
    found["connect again"] = str(error_of(ContextError, dtensor.initialize_accelerator_system))
    return found


def alone():
    """The other client does not come."""
    before = time.monotonic()
    unconnected = str(error_of(ContextError, dtensor.create_distributed_mesh, [("x", 2)]))
    error = error_of(ClusterTimeoutError, dtensor.initialize_accelerator_system, timeout_s=0.5)
    return {
        "unconnected": unconnected,
        "error": [error.timeout_s, [name.partition(" at ")[0] for name in error.missing], str(error)],
        "waited": time.monotonic() - before,
    }


if __name__ == "__main__":
    print(json.dumps({"together": together, "alone": alone}[sys.argv[1]]()))
