"""All that is known of a step before it runs: the value that `rx.plan` returns, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from replicax.contracts.shown import Shown, html_table, in_columns, joined
from replicax.errors import PlanError
from replicax.planning.buffers import Buffer
from replicax.planning.topologies import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXACT, ESTIMATED = "exact", "estimated"
PARAMETERS, OPTIMIZER, OTHER = "parameters", "optimizer state", "other state"
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_MOST_COLLECTIVES = 12


@dataclasses.dataclass(frozen=True)
class Held:
    """A variable, or an array of the state that a step is given.

    Attributes:
        name: Its name.
        kind: `"parameters"`, `"optimizer state"` or `"other state"`.
        shape: Its shape, of all devices together.
        dtype: Its dtype.
        where: How it is laid out, in words.
        bytes: On each device; 0 for what lives in the memory of the host.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    where: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Sent:
    """Collectives of one kind over the same devices.

    Attributes:
        kind: Such as `"all-reduce"`.
        axis: The axes of the mesh, such as `"replica"`.
        count: How many run in a step; those in a loop as often as it runs.
        bytes: Of all of them, on each device.
        at_least: Whether some are in a loop of unknown length, and counted once.
    """

    kind: str
    axis: str
    count: int
    bytes: int
    at_least: bool = False


@dataclasses.dataclass(frozen=True)
class Memory:
    """The compiler's figures for the memory of a device, in bytes.

    Attributes:
        arguments: State and batch, with what the device adds to arrange them.
        outputs: Results.
        aliased: Those results that take the place of arguments, as a variable's new value does: they count once.
        temporaries: What the step needs meanwhile.
        code: The program itself; None where it was not waited for.
        peak: The most at any time as the compiler reports it; None where it reports none.
        by: Who says it, such as `"libtpu 0.0.52"`.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int | None
    peak: int | None
    by: str

    @property
    def needed(self) -> int:
        """Bytes that the device must have: a result in an argument's place is not counted again."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + (self.code or 0)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A step on devices that need not exist: will it fit, what will it send, how long will it take.

    Attributes:
        step: The name of the function.
        kind: `"train"`, or `"predict"` for a step that changes no state.
        on: The devices.
        hosts: How many hosts they belong to.
        strategy: The strategy, as it shows itself.
        state: The variables and arrays of state, exact.
        batch: Bytes of the arguments that are no state, on each device, exact.
        memory: What the compiler says; None if it refused the program, or was not asked.
        refused: Why not, in the compiler's words, where it refused the program for lack of memory.
        largest: The ten largest arrays where the program needs the most memory: estimated from its order, or by the
            compiler that refused it.
        over_time: The bytes that it has in the course of the program, estimated from its order; empty if not compiled.
        collectives: What is sent, as the compiled program has it.
        flops: Floating-point operations on all devices together, counted in the traced program.
        not_counted: Operations without a number of them; loops of unknown length count once.
        seconds: From a step that keeps all limits of the devices busy at once to one that keeps them busy one after the
            other, at less than their limits; None where nothing is known about the devices.
        seconds_by: Where the limits come from: published figures, or a machine that was measured.
        compile_seconds: How long it took to compile.
        note: What could not be planned, and why; empty mostly.
    """

    step: str
    kind: str
    on: Topology
    hosts: int
    strategy: str
    state: tuple[Held, ...]
    batch: int
    memory: Memory | None
    refused: str
    largest: tuple[Buffer, ...]
    over_time: tuple[int, ...]
    collectives: tuple[Sent, ...]
    flops: int
    not_counted: tuple[str, ...]
    seconds: tuple[float, float] | None
    seconds_by: str
    compile_seconds: float
    note: str = ""

    def bytes_of(self, kind: str) -> int:
        """Returns the bytes on each device of the state of a kind, such as `"parameters"`."""
        return sum(each.bytes for each in self.state if each.kind == kind)

    @property
    def state_bytes(self) -> int:
        """Bytes of all state on each device, exact."""
        return sum(each.bytes for each in self.state)

    @property
    def needed(self) -> int:
        """Bytes that each device must have; without a compiler's word, those of state and batch."""
        return self.memory.needed if self.memory is not None else self.state_bytes + self.batch

    @property
    def fits(self) -> bool:
        """Whether the devices have as much memory; True where that is not known."""
        return not self.refused and (self.on.memory is None or self.needed <= self.on.memory)

    @property
    def verdict(self) -> str:
        """One sentence: whether it fits, and if not, what takes most of the memory."""
        if self.on.memory is None:
            name = self.on.name
            return (
                f"It needs {size(self.needed)} on each device. The memory of {name} is unknown: --on {name}x4GiB, for "
                "example, says whether it fits."
            )
        has = f"{size(self.on.memory)} of a device of {self.on.name}"
        if self.fits:
            code = " and the code" * (self.memory is not None and self.memory.code is None)
            return f"It fits: {size(self.needed)}{code} of the {has}, {size(self.on.memory - self.needed)} are left."
        parts = {kind: self.bytes_of(kind) for kind in (PARAMETERS, OPTIMIZER, OTHER)} | {"the batch": self.batch}
        if self.memory is not None:
            parts["temporaries"] = self.memory.temporaries
        elif self.refused and self.state_bytes + self.batch < self.on.memory:
            return f"It does not fit the {has}: {self.refused}"
        most = max(parts, key=lambda name: parts[name])
        verb = "take" if most in (PARAMETERS, "temporaries") else "takes"
        return f"It does not fit: {size(self.needed)} of the {has}; {most} {verb} {size(parts[most])} of it."

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as JSON has it."""
        return {
            **dataclasses.asdict(self),
            "bytes": {kind: self.bytes_of(kind) for kind in (PARAMETERS, OPTIMIZER, OTHER)} | {"batch": self.batch},
            "needed": self.needed,
            "fits": self.fits,
            "verdict": self.verdict,
            "grades": self._grades(),
        }

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Plan:
        """Returns the plan that `as_dict` has told."""
        own = {field.name: told[field.name] for field in dataclasses.fields(cls)}
        own["on"] = Topology(**{**told["on"], "shape": tuple(told["on"]["shape"])})
        own["state"] = tuple(Held(**{**each, "shape": tuple(each["shape"])}) for each in told["state"])
        own["largest"] = tuple(Buffer(**each) for each in told["largest"])
        own["over_time"] = tuple(told["over_time"])
        own["collectives"] = tuple(Sent(**each) for each in told["collectives"])
        own["memory"] = None if told["memory"] is None else Memory(**told["memory"])
        own["not_counted"] = tuple(told["not_counted"])
        own["seconds"] = None if told["seconds"] is None else tuple(told["seconds"])
        return cls(**own)

    def _grades(self) -> dict[str, str]:
        by = ESTIMATED if self.memory is None else self.memory.by
        counted = EXACT if not self.not_counted else f"{ESTIMATED}: without {', '.join(self.not_counted)}"
        return {
            "state": EXACT,
            "batch": EXACT,
            "memory": by,
            "room": by if self.memory is not None else f"{EXACT}: before temporaries",
            "largest": self._listed_by,
            "over_time": f"{ESTIMATED} from the order of the program",
            "collectives": by,
            "flops": counted,
            "seconds": f"{ESTIMATED} by {self.seconds_by}" if self.seconds_by else ESTIMATED,
        }

    @property
    def _listed_by(self) -> str:
        return "by the compiler that refused it" if self.refused else f"{ESTIMATED} from the order of the program"

    def table(self) -> Shown:
        """Returns it as tables, for a terminal and for a notebook."""
        grades = self._grades()
        rows = [(kind, size(self.bytes_of(kind)), grades["state"]) for kind in (PARAMETERS, OPTIMIZER, OTHER)]
        rows.append(("batch", size(self.batch), grades["batch"]))
        if self.memory is not None:
            by = f"by {self.memory.by}"
            rows.append(("temporaries", size(self.memory.temporaries), by))
            rows.append(("in all", size(self.memory.needed), by))
            if self.memory.peak is not None:
                rows.append(("most at a time", size(self.memory.peak), by))
        if self.on.memory is not None:
            room = f"by {self.memory.by}" if self.memory is not None else grades["room"]
            rows.append(("room left", size(self.on.memory - self.needed), f"{room}, of {size(self.on.memory)}"))
        hosts = f"{self.hosts} host{'s' * (self.hosts != 1)}"
        devices = f"{self.on.size} device{'s' * (self.on.size != 1)}"
        title = f"{self.step} under {self.strategy} on {devices} of {self.on.name}, {hosts}"
        head = Shown(f"{title}\n\n{in_columns(rows)}", html_table(("on each device", "", "grade"), rows, title))
        return joined(
            head, *self._largest(), self._sent(grades), self._work(grades), Shown(self.verdict), *self._notes()
        )

    def _notes(self) -> list[Shown]:
        return [Shown(self.note)] if self.note else []

    def _largest(self) -> list[Shown]:
        """Returns the largest arrays as a table."""
        if not self.largest:
            return []
        title = f"largest arrays at the time of most memory ({self._listed_by})"
        rows = [(size(each.bytes), each.shape, each.kind, each.name, each.line) for each in self.largest]
        headings = ("on each device", "", "kind", "made by", "line")
        return [Shown(f"{title}\n{in_columns(rows)}", html_table(headings, rows, title))]

    def _sent(self, grades: dict[str, str]) -> Shown:
        title = "collectives of a step, with the bytes that each device has of them"
        if self.memory is None:
            return Shown(f"{title}: not known, since the program was not compiled")
        if not self.collectives:
            return Shown(f"{title}: none")
        rows = [
            (
                each.kind,
                f"over {each.axis}",
                f"{'at least ' * each.at_least}{each.count}",
                size(each.bytes),
                f"by {grades['collectives']}",
            )
            for each in self.collectives[:_MOST_COLLECTIVES]
        ]
        return Shown(f"{title}\n{in_columns(rows)}", html_table(("collective", "over", "number", "", ""), rows, title))

    def _work(self, grades: dict[str, str]) -> Shown:
        rows = [("floating-point operations", number(self.flops), grades["flops"])]
        if self.seconds is not None:
            rows.append(("seconds of a step", span(self.seconds), grades["seconds"]))
        else:
            why = "the program was not compiled" if self.memory is None else self._unknown
            rows.append(("seconds of a step", "not known", why))
        return Shown(in_columns(rows), html_table(("a step", "", "grade"), rows))

    @property
    def _unknown(self) -> str:
        more = ": replicax plan --calibrate measures this machine" if self.on.platform == "cpu" else ""
        return f"nothing is published about these devices{more}"

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, dark: bool = False, axes: Axes | None = None
    ) -> Figure:
        """Draws the memory of each device in the course of the step, estimated from the order of the program.

        Args:
            path: The file to write, PNG, SVG or PDF; None to write none.
            dark: Whether the ground is dark.
            axes: Axes of matplotlib to draw on instead of a new figure.

        Raises:
            ArgumentError: Matplotlib is not installed; `path` cannot be written.
            PlanError: The step was not compiled.
        """
        from replicax.tools.plots.style import Palette, drawn, with_unit

        if not self.over_time:
            raise PlanError(f"There is nothing to draw, since the program was not compiled: {self.verdict}")

        def draw(axes: Axes, colors: Palette) -> None:
            from matplotlib.ticker import FuncFormatter

            at = range(len(self.over_time))
            axes.fill_between(at, self.over_time, step="mid", color=colors.series[0], alpha=0.3, linewidth=0)
            axes.step(at, self.over_time, where="mid", color=colors.series[0])
            held = self.state_bytes + self.batch
            axes.axhline(held, color=colors.text, linewidth=0.8, linestyle=":")
            axes.annotate(
                "state and batch", (0, held), (2, 3), textcoords="offset points", color=colors.text, fontsize=8.5
            )
            if self.on.memory is not None and self.on.memory < 3 * max(self.over_time):
                axes.axhline(self.on.memory, color=colors.series[1], linewidth=1)
                axes.annotate(
                    f"memory of {self.on.name}", (0, self.on.memory), (2, 3), textcoords="offset points",
                    color=colors.text, fontsize=8.5,
                )  # fmt: skip
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: with_unit(count)))
            axes.set_xticks([])
            axes.set_xlabel("in the course of the step")

        return drawn(draw, title=f"Memory of a device: {self.step}", path=path, dark=dark, axes=axes)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().html


def size(count: int) -> str:
    """Returns a number of bytes in words.

    >>> size(3 * 2**30 // 2), size(100), size(-(2**21))
    ('1.50 GiB', '100 bytes', '-2.00 MiB')
    """
    for unit, name in _UNITS:
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"


def number(count: float) -> str:
    """Returns a large number in words.

    >>> number(1_230_000_000), number(12)
    ('1.23e+09', '12')
    """
    return f"{count:.3g}" if count >= 10_000 else f"{count:g}"


def span(seconds: tuple[float, float]) -> str:
    """Returns a range of seconds in words.

    >>> span((0.0123, 2.5))
    '12.3 ms to 2.50 s'
    """
    return " to ".join(map(_seconds, seconds))


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
