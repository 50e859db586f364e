"""Hints for how values travel between devices: `CommunicationOptions`."""

from __future__ import annotations

import dataclasses

from replicax.checks import checked_int, checked_seconds
from replicax.checks.named import Named, member_of
from replicax.collectives.compression import Compression, compression_of
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError


class CommunicationImplementation(Named):
    """Which algorithm moves the data, where a strategy is free to choose.

    `NCCL` means XLA's own all-reduce (NCCL on GPUs, ICI on TPUs, Gloo between CPU processes), `RING` means
    `RingAllReduce`. `AUTO` chooses by what was measured: XLA's own all-reduce, except for values of up to 256 KiB (of
    all replicas together) between CPU processes, which are gathered and added up on each replica. Wherever an
    implementation is expected its name works too, in any case: `"ring"`, `"NCCL"`.

    Example:
        >>> options = rx.CommunicationOptions(implementation=rx.CommunicationImplementation.RING)
        >>> options.implementation.name
        'RING'
    """

    AUTO = "auto"
    RING = "ring"
    NCCL = "nccl"

    @classmethod
    def of(cls, implementation: CommunicationImplementation | str) -> CommunicationImplementation:
        """Returns the implementation that `implementation` names.

        Raises:
            ArgumentError: It is neither a `CommunicationImplementation` nor the name of one.

        Example:
            >>> CommunicationImplementation.of("Ring")
            <CommunicationImplementation.RING: 'ring'>
        """
        return member_of(cls, implementation, "A communication implementation", ArgumentError)


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Hints for reductions: how values are grouped, how they look on the wire, which algorithm carries them.

    Attributes:
        bytes_per_pack: Values of one dtype are joined into packs of up to this many bytes, one transfer a pack; a value
            that is larger travels alone. 0 (the default) leaves the packing to the cross-device ops.
        timeout_seconds: For how many seconds workers may wait for one that makes no progress until all end with a
            report: the `stall_timeout` of `MultiWorkerMirroredStrategy`, as tf.distribute spells it. It is for the
            whole job, since XLA's collectives have no limit of their own: other strategies, which wait for nobody, and
            single calls refuse it.
        implementation: The algorithm, where the strategy was not given cross-device ops of its own.
        compression: How floats travel; the result has the value's own dtype. `"bfloat16"` halves (at least) what
            float32 and wider floats take, at 8 bits of precision, in every sum. `"int8"` (`rx.collectives.Int8`) takes
            a quarter, and `"powersgd"` (`rx.collectives.PowerSGD`) sends products of thin matrices. These two are for
            gradients of `rx.value_and_grad` in `run`: what a step leaves out is kept in the strategy's
            `gradient_memory`, and sent with the next. `None` compresses nothing. In `Model.fit`, where XLA makes the
            sums, none has an effect.

    Raises:
        ArgumentError: A field has a wrong type or value.

    Example:
        >>> CommunicationOptions(bytes_per_pack=1 << 20).merge(CommunicationOptions(implementation="ring"))
        CommunicationOptions(bytes_per_pack=1048576, timeout_seconds=None,
            implementation=<CommunicationImplementation.RING: 'ring'>, compression=None)
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO
    compression: Compression | str | None = None

    def __post_init__(self) -> None:
        checked_int("bytes_per_pack", self.bytes_per_pack, note=" (0: no packs)")
        if self.timeout_seconds is not None:
            checked_seconds("timeout_seconds", self.timeout_seconds, note=", or None for no limit of its own")
        object.__setattr__(self, "compression", compression_of(self.compression))
        object.__setattr__(self, "implementation", CommunicationImplementation.of(self.implementation))

    @called_as("tf.distribute.experimental.CommunicationOptions.merge")
    def merge(self, other: CommunicationOptions | None) -> CommunicationOptions:
        """Returns these options with every field of `other` that is not at its default put over them.

        Args:
            other: The options that win, such as those of one call over those of the strategy; `None` changes nothing.

        Raises:
            ArgumentError: `other` is not a `CommunicationOptions`.
        """
        if other is None:
            return self
        if not isinstance(other, CommunicationOptions):
            raise ArgumentError(f"Only rx.CommunicationOptions can be merged into these, got {other!r}.")
        changes = {
            field.name: getattr(other, field.name)
            for field in dataclasses.fields(other)
            if getattr(other, field.name) != field.default
        }
        return dataclasses.replace(self, **changes)
