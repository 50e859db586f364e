"""The largest arrays that a compiled program has at a time, and the user's lines that made them.

The text of a compiled program is in the order in which it runs. An array lives from the instruction that makes it to
the last that reads it; the body of a loop runs while what is around it lives. Compilers place arrays into memory with
more knowledge than that, so the figures are estimates, and those of `memory_analysis` stand beside them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicax.collectives.hlo import Instruction, bits, called_by, instructions_of, split

_MOST = 10
_POINTS = 200
TEMPORARY, BATCH = "temporary", "batch"
_ENTRY = re.compile(r"^ENTRY %?(?P<name>[\w.-]+) ", re.MULTILINE)
_ALIASED = re.compile(r"\{(?P<result>[\d, ]*)\}: \((?P<argument>\d+), ")
_LEAF = re.compile(r"(?P<dtype>[a-z]+(?:\d\w*)?)\[(?P<shape>[\d,<=]*)\](?:\{(?P<layout>[^}]*)\})?")
# The space of memory of an array: none is that of the device; TPUs have small ones, 1 say, and 5 is the host's.
_SPACE = re.compile(r"S\((\d+)\)")
_TILE = re.compile(r"T\(([\d,]+)\)")
_TRANSFORMED = re.compile(r"\b(?:jvp|transpose|vmap|rematted_computation|remat|checkpoint)\(([^()]*)\)")
_SAME = ("bitcast", "optimization-barrier", "while", "domain")
_NEVER_IN_PLACE = (
    "dot",
    "convolution",
    "reduce",
    "gather",
    "sort",
    "transpose",
    "custom-call",
    "copy",
    "pad",
    "concatenate",
)
_BODIES = ("while", "conditional", "call")
_NO_WORK = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "optimization-barrier", "domain", "iota")


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array that a program has where it needs the most memory.

    Attributes:
        name: The variable or argument that it is; for a temporary the operation that makes it, under the names of the
            layers around it.
        kind: `"temporary"`, or the kind of state: `"parameters"`, `"optimizer state"`, `"other state"`, or `"batch"`.
        shape: Its dtype and shape on each device, such as `"f32[128,512]"`.
        bytes: On each device, with what the device adds to arrange it.
        line: The user's line that made it, such as `"train.py:24"`; empty where there is none.
    """

    name: str
    kind: str
    shape: str
    bytes: int
    line: str


@dataclasses.dataclass(frozen=True)
class Buffers:
    """The arrays that a program has at a time."""

    largest: tuple[Buffer, ...]  # the ten largest where the program needs the most, the largest first
    most: int  # the bytes of all of them there
    over_time: tuple[int, ...]  # bytes in the course of the program, the most of each of up to 200 parts


def buffers_of(hlo: str, arguments: Mapping[str, tuple[str, str]]) -> Buffers:
    """Returns what a program has at a time; `arguments` has names and kinds by JAX's names, such as `"updated[0]"`."""
    program = _Program(hlo)
    entry = program.entry
    extra = program.run(entry, program.in_place())
    inputs = [(each, program.bytes_of(each)) for each in program.code[entry] if each.opcode == "parameter"]
    base = sum(count for _, count in inputs)
    lines = _Lines(hlo)
    found = [
        Buffer(_scope(each.scope), TEMPORARY, each.shape, each.bytes, lines.of(each.frame)) for each in extra.alive
    ]
    for given, count in inputs:
        name, kind = arguments.get(given.scope, (given.scope, BATCH))
        found.append(Buffer(name, kind, _shape(given.type), count, ""))
    found.sort(key=lambda each: -each.bytes)
    return Buffers(tuple(found[:_MOST]), base + extra.most, _parts([base + count for count in extra.over_time]))


def bytes_accessed(hlo: str) -> int:
    """Returns how many bytes of a device's memory a program reads and writes: each operand and result, loops once.

    XLA's own figure (`cost_analysis`) counts the inner memory of a TPU, too, and is there for compiled programs only.
    """
    program = _Program(hlo)
    return program.accessed(program.entry)


def refused_buffers(said: str) -> tuple[Buffer, ...]:
    """Returns the largest arrays of a program that libtpu has refused, as its message lists them."""
    found = []
    for part in re.split(r"\n\s*\d+\. Size: ", said)[1:]:
        amount = re.match(r"([\d.]+)([KMGT]?)", part)
        if amount is None:
            continue
        scope, shape = re.search(r'op_name="([^"]*)"', part), re.search(r"Shape: (\w+\[[\d,]*\])", part)
        file, line = re.search(r'source_file="([^"]*)"', part), re.search(r"source_line=(\d+)", part)
        found.append(
            Buffer(
                _scope(scope[1]) if scope is not None else "",
                TEMPORARY,
                shape[1] if shape is not None else "",
                bytes_said(amount[1], amount[2]),
                f"{os.path.basename(file[1])}:{line[1]}" if file and line and _is_users(file[1]) else "",
            )
        )
    return tuple(found[:_MOST])


def bytes_said(number: str, unit: str) -> int:
    """Returns the bytes that a message of XLA's names by a number and a unit: `K`, `M`, `G`, `T`, or none."""
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


def _parts(course: Sequence[int]) -> tuple[int, ...]:
    """Returns the most of each of a number of parts of a course."""
    count = min(_POINTS, len(course))
    edges = [len(course) * i // count for i in range(count + 1)] if count else [0]
    return tuple(max(course[begin:end]) for begin, end in itertools.pairwise(edges))


def _shape(type_: str) -> str:
    return type_.partition("{")[0]


def _scope(scope: str) -> str:
    """Returns an operation under the names of the layers around it, without the transformations of JAX's."""
    inner = re.sub(r"^jit\([^)]*\)/|\bjit\((\w+)\)/", "", scope)
    for _ in range(2):  # the innermost first
        inner = _TRANSFORMED.sub(r"\1", inner)
    inner = re.sub(r"\bshard_map/|\bclosed_call/|\bbody/|\bjit\(\w*\)/?", "", inner)
    return "/".join(part for part in inner.split("/") if part) or scope


@dataclasses.dataclass
class _Extra:
    """The memory of a computation beside its arguments: the most, with what that is, and its course."""

    most: int
    alive: list[_Array]
    over_time: list[int]


class _Array:
    """An array in the program: a leaf in the tree of a value."""

    __slots__ = ("bytes", "frame", "last", "scope", "shape")

    def __init__(self, source: Instruction, shape: str, count: int):
        self.shape, self.bytes, self.last = shape, count, -1
        self.scope, self.frame = source.scope, source.frame

    def read_by(self, i: int, reader: Instruction) -> None:
        self.last = i
        if self.frame is None:  # XLA's own copies have no line; their first reader has.
            self.scope, self.frame = reader.scope or self.scope, reader.frame


class _Program:
    def __init__(self, hlo: str):
        self.code: dict[str, list[Instruction]] = {}
        for each in instructions_of(hlo):
            self.code.setdefault(each.computation, []).append(each)
        found = _ENTRY.search(hlo)
        self.entry = found["name"] if found is not None else ""
        self.code.setdefault(self.entry, [])
        self._head = hlo.partition("\n")[0]

    def bytes_of(self, each: Instruction) -> int:
        return sum(leaf.bytes for leaf in _leaves(self._made(each, each.type)))

    def in_place(self) -> set[tuple[int, ...]]:
        """Returns which results are written where arguments are."""
        told = self._head.partition("input_output_alias={")[2].partition("entry_computation_layout")[0]
        return {tuple(map(int, re.findall(r"\d+", found["result"]))) for found in _ALIASED.finditer(told)}

    def _made(self, source: Instruction, type_: str) -> Any:
        if type_.startswith("("):
            return [self._made(source, re.sub(r"^/\*.*?\*/", "", part)) for part in split(type_[1:-1])]
        found = _LEAF.match(type_)
        return [] if found is None else _Array(source, _shape(type_), _bytes(found))

    def run(self, name: str, in_place: set[tuple[int, ...]] | None) -> _Extra:
        """Returns what a computation needs; `in_place` says which results are not its own, None that none are."""
        code = self.code.get(name, [])
        values: dict[str, Any] = {}
        order: list[list[_Array]] = []  # what each instruction makes
        read: list[list[_Array]] = []
        for i, each in enumerate(code):
            names = each.operand_names() if each.opcode not in ("parameter", "constant") else []
            operands = [values.get(operand, []) for operand in names]
            value, own = self._value(each, operands)
            values[each.name] = value
            leaves = [leaf for operand in operands for leaf in _leaves(operand)]
            for leaf in leaves:
                leaf.read_by(i, each)
            order.append(list(_leaves(value)) if own is True else own)
            read.append(leaves)
        result = values.get(code[-1].name, []) if code else []
        for path, leaf in _with_paths(result):
            leaf.last = len(code)
            if in_place is None or path in in_place:
                leaf.bytes = 0
        return self._sweep(code, order, read)

    def accessed(self, name: str) -> int:
        """Returns how many bytes a computation reads and writes."""
        code, total = self.code.get(name, []), 0
        sizes = {each.name: self.bytes_of(each) for each in code}
        for each in code:
            if each.opcode in _NO_WORK or each.opcode.endswith(("-done", "-update")):
                continue
            if each.opcode in _BODIES:
                total += sum(map(self.accessed, called_by(each)))
                continue
            made, read = sizes[each.name], [sizes.get(operand, 0) for operand in each.operand_names()]
            if each.opcode in ("dynamic-slice", "slice", "gather"):
                read = [made]  # of an array that may be much larger
            elif each.opcode == "dynamic-update-slice":
                made, read = read[1], read[1:2]
            elif each.opcode.endswith("-start"):
                read = []  # Its result names the operands again.
            total += made + sum(read)
        return total

    def _value(self, each: Instruction, operands: list[Any]) -> tuple[Any, Any]:
        """Returns the value of an instruction, and which arrays of it are its own (True: all)."""
        if each.opcode == "parameter":
            return self._made(each, each.type), []  # Whoever gives it counts it.
        if each.opcode == "tuple":
            return operands, []
        if each.opcode == "get-tuple-element":
            index = re.search(r"index=(\d+)", each.attributes)
            value = operands[0] if operands else []
            place = int(index[1]) if index is not None else 0
            return (value[place] if isinstance(value, list) and place < len(value) else []), []
        if each.opcode in _SAME and operands:
            return operands[0], []
        if each.opcode.endswith(("-done", "-update")) and operands:
            value = operands[0]
            if each.opcode.endswith("-update") or not isinstance(value, list) or len(value) < 2:
                return value, []
            return value[0 if each.opcode == "copy-done" else 1], []
        made = self._made(each, each.type)
        if each.opcode.endswith("-start") and isinstance(made, list) and len(made) > 1 and operands:
            # One element of the pair names the operands again.
            again = 1 if each.opcode == "copy-start" else 0
            made[again] = operands[0] if len(operands) == 1 and not isinstance(made[again], list) else operands
            return made, [leaf for i, part in enumerate(made) if i != again for leaf in _leaves(part)]
        return made, True

    def _inside(self, each: Instruction) -> _Extra | None:
        """Returns what the computations need that an instruction runs."""
        if each.opcode not in _BODIES:
            return None
        return max((self.run(name, None) for name in called_by(each)), key=lambda extra: extra.most, default=None)

    def _sweep(self, code: Sequence[Instruction], order: list[list[_Array]], read: list[list[_Array]]) -> _Extra:
        alive: dict[int, _Array] = {}
        ends: dict[int, list[_Array]] = {}
        now, found = 0, _Extra(0, [], [])
        for i, each in enumerate(code):
            for leaf in order[i]:
                if not leaf.bytes:
                    continue
                if each.opcode not in _NEVER_IN_PLACE:
                    other = next((o for o in read[i] if o.last == i and id(o) in alive and o.bytes == leaf.bytes), None)
                    if other is not None:
                        del alive[id(other)]
                        now -= other.bytes
                alive[id(leaf)] = leaf
                ends.setdefault(max(leaf.last, i), []).append(leaf)
                now += leaf.bytes
            inside = self._inside(each)
            total = now + (inside.most if inside is not None else 0)
            found.over_time.append(total)
            if total > found.most:
                found.most = total
                found.alive = [*alive.values(), *(inside.alive if inside is not None else [])]
            for leaf in ends.pop(i, ()):
                if alive.pop(id(leaf), None) is not None:
                    now -= leaf.bytes
        return found


def _leaves(value: Any) -> Iterator[_Array]:
    if isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _with_paths(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], _Array]]:
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from _with_paths(each, (*path, i))
    else:
        yield path, value


def _bytes(found: re.Match[str]) -> int:
    """Returns the bytes of an array in the memory of the device, with its tiles filled up; 0 for other memory."""
    layout = found["layout"] or ""
    space = _SPACE.search(layout)
    if space is not None and space[1] != "0":
        return 0
    shape = [int(length.lstrip("<=")) for length in found["shape"].split(",") if length]
    tile = _TILE.search(layout)
    if tile is not None and shape:
        order = [int(each) for each in layout.partition(":")[0].split(",") if each]  # the fastest first
        for length, axis in zip(reversed(tile[1].split(",")), order, strict=False):
            shape[axis] = -(-shape[axis] // int(length)) * int(length)
    return -(-math.prod(shape) * bits(found["dtype"]) // 8)


# Lines.

_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
_OTHERS = tuple(
    {
        *(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in _PATHS),
        str(Path(__file__).resolve().parent.parent) + os.sep,
    }
)


def _is_users(file: str) -> bool:
    """Returns whether a file is neither of a library nor of Python itself."""
    is_library = f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file
    return not (is_library or file.startswith("<") or os.path.realpath(file).startswith(_OTHERS))


class _Lines:
    """The stack frames of a program, as the tables at the head of its text have them."""

    def __init__(self, hlo: str):
        head = hlo[: max(hlo.find("\n%"), 0)]
        self._files = {int(n): name for n, name in re.findall(r'^(\d+) "(.*)"$', self._table(head, "FileNames"), re.M)}
        self._places = {
            int(n): (int(file), int(line))
            for n, file, line in re.findall(
                r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", self._table(head, "FileLocations"), re.M
            )
        }
        rows = re.findall(
            r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", self._table(head, "StackFrames"), re.M
        )
        # XLA writes the number of a parent, or one more, so that the first has itself as its parent.
        more = int(bool(rows) and rows[0][2] == rows[0][0])
        self._frames = {int(n): (int(place), int(parent or 0) - more) for n, place, parent in rows}

    @staticmethod
    def _table(head: str, title: str) -> str:
        return head.partition(f"\n{title}\n")[2].partition("\n\n")[0]

    def of(self, frame: int | None) -> str:
        """Returns the innermost line of a stack that is the user's."""
        while frame in self._frames:
            place, parent = self._frames[frame]
            file, line = self._places.get(place, (0, 0))
            name = self._files.get(file, "<>")
            if _is_users(name):
                return f"{os.path.basename(name)}:{line}"
            frame = parent if parent < frame else None
        return ""
