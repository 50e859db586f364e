"""The two ways to combine values of several replicas."""

from __future__ import annotations

import enum

from replicax.errors import ReduceError


class ReduceOp(enum.Enum):
    """How to combine one value per replica: `SUM` or `MEAN`.

    Wherever an op is expected its name works too, in any case: `"sum"`, `"MEAN"`.
    """

    SUM = "sum"
    MEAN = "mean"

    @classmethod
    def of(cls, op: ReduceOp | str) -> ReduceOp:
        """Returns the op that `op` names.

        Raises:
            ReduceError: `op` is neither a `ReduceOp` nor the name of one.

        Example:
            >>> ReduceOp.of("Mean")
            <ReduceOp.MEAN: 'mean'>
        """
        if isinstance(op, cls):
            return op
        try:
            return cls(op.lower())  # type: ignore[union-attr]
        except (AttributeError, ValueError):
            raise ReduceError(
                f"A reduce op is rx.ReduceOp.SUM ('sum') or rx.ReduceOp.MEAN ('mean'), got {op!r}."
            ) from None
