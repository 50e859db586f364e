"""The communication of a function between devices, read from its compiled program."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from replicax.collectives.hlo import collectives
from replicax.contracts.shown import html_table
from replicax.errors import ArgumentError, ProgramError
from replicax.program.function import Function, function
from replicax.typing import PyTree, PyTreeFunction

if TYPE_CHECKING:
    from rich.table import Table

# The bytes that a device sends when n of them use the standard ring algorithm, and each starts with `payload` bytes.
_SENT: dict[str, Callable[[int, int], float]] = {
    "all-reduce": lambda payload, n: 2 * payload * (n - 1) / n,
    "all-gather": lambda payload, n: payload * (n - 1),
    "reduce-scatter": lambda payload, n: payload * (n - 1) / n,
    "all-to-all": lambda payload, n: payload * (n - 1) / n,
    "collective-permute": lambda payload, n: payload if n > 1 else 0,
    "collective-broadcast": lambda payload, n: payload if n > 1 else 0,
}


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation of a compiled program."""

    kind: str  # its name in XLA, such as "all-reduce"
    payload_bytes: int  # that each device puts in: those of all operands
    group_size: int  # number of devices that communicate with each other
    in_loop: bool = False  # of a `while`: then it may run any number of times

    @property
    def sent_bytes(self) -> int:
        """Bytes that a device sends each time it runs; see `CommunicationReport`."""
        return round(_SENT[self.kind](self.payload_bytes, self.group_size))


@dataclasses.dataclass(frozen=True)
class CommunicationReport:
    """The collectives of a compiled program; `print` shows them as a table.

    A collective in a loop counts once: the number of rounds is unknown. All branches of a conditional count.

    *Payload* is what a device puts in: the bytes of the operands, which are its shard of the tensor. *Sent* is what a
    device sends in a group of `n` devices if the ring algorithms are used: 2(n-1)/n of the payload for an all-reduce,
    (n-1)/n for a reduce-scatter and an all-to-all, n-1 times the payload for an all-gather (which is (n-1)/n of what
    comes out), the payload itself for a collective-permute and a collective-broadcast. The backend may use other
    algorithms.

    Attributes:
        collectives: The collectives, as the compiled program lists them. One that joins several arrays counts once.
        num_devices: Number of devices that the program is for.

    Example:
        >>> import jax.numpy as jnp
        >>> mesh = rx.dtensor.create_mesh([("x", 8)])
        >>> x = rx.dtensor.call_with_layout(jnp.ones, rx.dtensor.Layout.batch_sharded(mesh, "x", rank=1), (8,))
        >>> report = rx.dtensor.communication(jnp.sum, x)
        >>> [collective.kind for collective in report.collectives]
        ['all-reduce']
    """

    collectives: tuple[Collective, ...]
    num_devices: int

    @property
    def counts(self) -> dict[str, int]:
        """Number of collectives by kind; kinds that do not occur are absent."""
        return self._by_kind(lambda collective: 1)

    @property
    def in_loops(self) -> dict[str, int]:
        """How many of `counts` are in loops."""
        return self._by_kind(lambda collective: int(collective.in_loop))

    @property
    def payload_bytes(self) -> dict[str, int]:
        """Bytes of the operands on one device, by kind."""
        return self._by_kind(lambda collective: collective.payload_bytes)

    @property
    def sent_bytes(self) -> dict[str, int]:
        """Bytes that one device sends, by kind."""
        return self._by_kind(lambda collective: collective.sent_bytes)

    @property
    def total_sent_bytes(self) -> int:
        """Bytes that one device sends in all."""
        return sum(self.sent_bytes.values())

    def _by_kind(self, measure: Callable[[Collective], int]) -> dict[str, int]:
        return {
            kind: sum(measure(collective) for collective in self.collectives if collective.kind == kind)
            for kind in _SENT
            if any(collective.kind == kind for collective in self.collectives)
        }

    def _table(self) -> list[list[str]]:
        """Returns the headings and a row for each kind; a column for loops only where there is something in one."""
        columns = {"count": self.counts, "in loops": self.in_loops}
        columns |= {"payload bytes": self.payload_bytes, "sent bytes": self.sent_bytes}
        if not any(self.in_loops.values()):
            del columns["in loops"]
        rows = [[kind, *(f"{column[kind]:,}" for column in columns.values())] for kind in self.counts]
        return [["collective", *columns], *rows]

    def __str__(self) -> str:
        if not self.collectives:
            return f"no collectives on {self.num_devices} device{'s' * (self.num_devices != 1)}"
        rows = self._table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
        )

    def _repr_html_(self) -> str:
        headings, *rows = self._table()
        return html_table(headings, rows, caption=f"one of {self.num_devices} devices")

    def __rich__(self) -> Table:
        from rich.table import Table

        headings, *rows = self._table()
        table = Table(title=f"one of {self.num_devices} devices")
        for i, heading in enumerate(headings):
            table.add_column(heading, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        return table


def communication(fn: PyTreeFunction, *args: PyTree, **kwargs: PyTree) -> CommunicationReport:
    """Compiles a function for some arguments, without running it, and reports what it sends between devices.

    The report shows what XLA made of the layouts, for instance an `all-gather` that nobody asked for.

    Args:
        fn: An `rx.function`, a function that `jax.jit` has made, or any other function that `rx.function` can wrap.
        *args: Its arguments, as in a call; their layouts matter.
        **kwargs: Its keyword arguments.

    Raises:
        ArgumentError: `fn` is not callable.
        ProgramError: The backend does not show its programs.

    Example:
        >>> from replicax.dtensor import Layout, create_mesh, relayout
        >>> x = relayout(jax.numpy.arange(16.0), Layout(["x"], create_mesh([("x", 8)])))
        >>> print(communication(jax.numpy.sum, x))
        collective  count  payload bytes  sent bytes
        all-reduce      1              4           7
    """
    if not callable(fn):
        raise ArgumentError(f"communication takes a function, got {type(fn).__name__}: {fn!r:.100}.")
    compiler = fn if isinstance(fn, (Function, jax.stages.Wrapped)) else function(fn)
    text = compiler.lower(*args, **kwargs).compile().as_text()
    if text is None:
        raise ProgramError(f"The {jax.default_backend()!r} backend does not show its compiled programs.")
    return report_of(text)


def report_of(hlo: str) -> CommunicationReport:
    """Returns the report on a compiled program from the text of its optimised HLO."""
    header = hlo.split("\n", 1)[0]
    num_devices = math.prod(int(number) for number in re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", header))
    found = collectives(hlo)
    return CommunicationReport(
        tuple(Collective(each.kind, each.payload, each.group_size or num_devices, each.in_loop) for each in found),
        num_devices,
    )
