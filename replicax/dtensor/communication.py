"""The communication of a function between devices, read from its compiled program."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import jax

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
    num_devices = _num_devices(hlo)
    instructions = list(_instructions(hlo))
    types = {(each.computation, each.name): each.type for each in instructions}
    in_loops = _computations_in_loops(instructions)
    collectives = []
    for each in instructions:
        # An asynchronous collective is a pair, `-start` and `-done`. If it is written as `async-start(...), calls=%c`,
        # it is found in the computation `c`.
        kind = each.opcode.removesuffix("-start")
        if kind in _SENT:
            payload = sum(_bytes_of(types.get((each.computation, name), "")) for name in each.operand_names())
            group = _group_size(kind, each.attributes, num_devices)
            collectives.append(Collective(kind, payload, group, each.computation in in_loops))
    return CommunicationReport(tuple(collectives), num_devices)


# Reading HLO: a module is a list of computations, a computation is a list of lines
#   %name = type opcode(%operand, ...), attribute=..., attribute=...


@dataclasses.dataclass(frozen=True)
class _Instruction:
    computation: str
    name: str
    type: str
    opcode: str
    operands: str
    attributes: str

    def operand_names(self) -> list[str]:
        # After its type, where there is one; the % may be missing: "f32[2]{0} %a, /*index=1*/b".
        operands = re.sub(r"/\*.*?\*/", "", self.operands)
        return [operand.split()[-1].lstrip("%") for operand in _split(operands)]


_HEADER = re.compile(r"(?:ENTRY )?%?(?P<name>[\w.-]+) (?:\(.*)?\{")
_LINE = re.compile(r"\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)")
_OPERATION = re.compile(r" (?P<opcode>[\w-]+)(?=\()")
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]+\d\w*|pred)\[(?P<shape>[\d,<=]*)\]")
_CALLED = re.compile(r"\b(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_CALLED_LIST = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_GROUPS = re.compile(
    r"replica_groups=(?:"
    r"\[\d+,(?P<iota>\d+)\]<="  # [groups,size]<=[devices]: the devices' numbers, reshaped
    r"|mesh\[(?P<mesh>[^\]]*)\][^{]*\{(?P<axes>[^}]*)\}"  # mesh['x'=4,'y'=2] {'x'}: along axes of a mesh
    r"|\{(?P<lists>(?:\{[^}]*\},?)*)\})"  # {{0,1},{2,3}}: as they are; {} for all devices
)


def _num_devices(hlo: str) -> int:
    header = hlo.split("\n", 1)[0]
    return math.prod(int(number) for number in re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", header))


def _instructions(hlo: str) -> Iterator[_Instruction]:
    computation = ""
    for line in hlo.splitlines():
        header, found = _HEADER.fullmatch(line), _LINE.fullmatch(line)
        if header is not None:
            computation = header["name"]
        elif found is not None:
            rest = re.sub(r'"[^"]*"', '""', found["rest"])  # names of operations in metadata look like code
            type_end = _closing(rest) if rest.startswith("(") else rest.find(" ")
            operation = _OPERATION.match(rest, type_end)
            if operation is not None:
                end = _closing(rest, operation.end())
                operands = rest[operation.end() + 1 : end - 1]
                yield _Instruction(
                    computation, found["name"], rest[:type_end], operation["opcode"], operands, rest[end:]
                )


def _closing(text: str, start: int = 0) -> int:
    """Returns the position after the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    return len(text)


def _split(text: str) -> list[str]:
    """Splits at the commas that no bracket encloses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in map(str.strip, parts) if part]


def _bytes_of(type_: str) -> int:
    """Returns the bytes of a type: those of its arrays together."""
    return sum(
        math.ceil(math.prod(int(length.lstrip("<=")) for length in shape.split(",") if length) * _bits(dtype) / 8)
        for dtype, shape in _ARRAY.findall(type_)
    )


def _bits(dtype: str) -> int:
    digits = re.match(r"[a-z]+(\d+)", dtype)  # f32, bf16, s4, f8e4m3fn, c64
    return int(digits[1]) if digits is not None else 8  # pred


def _group_size(kind: str, attributes: str, num_devices: int) -> int:
    """Returns the number of devices that communicate with each other."""
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
        return len(set(re.findall(r"\d+", pairs[1]))) if pairs is not None else num_devices
    groups = _GROUPS.search(attributes)
    if groups is None:
        return num_devices
    if groups["iota"]:
        return int(groups["iota"])
    if groups["mesh"] is not None:
        return _axes_size(groups["mesh"], groups["axes"])
    sizes = [len(group.split(",")) for group in re.findall(r"\{([^}]+)\}", groups["lists"])]
    return max(sizes, default=num_devices)


def _axes_size(mesh: str, axes: str) -> int:
    """Returns the product of the axes' lengths; `'x':(2)4` is a part of an axis, of length 4."""
    lengths = dict(re.findall(r"([^,'\"=]+)['\"]?=(\d+)", mesh))
    found = re.findall(r"([^,'\":]+)['\"]?(?::\(\d+\)(\d+))?(?:,|$)", axes)
    return math.prod(int(part or lengths[axis]) for axis, part in found)


def _computations_in_loops(instructions: Iterable[_Instruction]) -> set[str]:
    """Returns the computations that a `while` loop calls, directly or not."""
    called: dict[str, set[str]] = {}
    waiting: list[str] = []
    for each in instructions:
        names = _CALLED.findall(each.attributes)
        for some in _CALLED_LIST.findall(each.attributes):
            names += [name.strip().lstrip("%") for name in some.split(",")]
        called.setdefault(each.computation, set()).update(names)
        if each.opcode == "while":
            waiting += names
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += called.get(name, ())
    return found
