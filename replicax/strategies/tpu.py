"""Synchronous data parallelism over the cores of TPUs."""

from __future__ import annotations

from replicax.cluster import ClusterResolver
from replicax.collectives import CommunicationOptions
from replicax.contracts.called_as import called_as
from replicax.errors import DeviceError
from replicax.strategies.multi_worker import MultiWorkerMirroredStrategy


class TPUStrategy(MultiWorkerMirroredStrategy):
    """Trains on all cores of a TPU host, or of a pod slice of several hosts.

    It is `MultiWorkerMirroredStrategy` on TPU devices; XLA's collectives go over the chips' own network. (It has been
    run on virtual CPU devices only, with `platform="cpu"`; for real slices its steps have been compiled, by libtpu.)

    Args:
        tpu_cluster_resolver: Says which host of the slice this is; by default the environment does.
        communication_options: How gradients are packed and compressed on the way.
        precision: What Keras's layers made in the scope compute in; see `MirroredStrategy`.
        platform: The kind of device to ask for.

    Raises:
        DeviceError: JAX has found devices of another kind.
        ClusterError, ClusterTimeoutError, ContextError: As for `MultiWorkerMirroredStrategy`.

    Example:
        >>> strategy = rx.TPUStrategy(platform="cpu")
        >>> strategy.num_replicas_in_sync
        8
    """

    @called_as("tf.distribute.TPUStrategy", "tf.distribute.experimental.TPUStrategy")
    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        *,
        communication_options: CommunicationOptions | None = None,
        precision: str | None = None,
        platform: str = "tpu",
    ):
        super().__init__(tpu_cluster_resolver, communication_options, precision=precision)
        found = sorted({device.platform for device in self.devices})
        if found != [platform]:
            raise DeviceError(
                f"TPUStrategy needs devices of the platform {platform!r}, JAX has found {found}. Install jax[tpu] on a "
                "TPU VM, or use MultiWorkerMirroredStrategy for other devices."
            )
