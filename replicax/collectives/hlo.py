"""The collectives of a compiled program, and how many bytes they move, read from its HLO.

A module is a list of computations, a computation is a list of lines
`%name = type opcode(%operand, ...), attribute=..., attribute=...`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

_KINDS = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute", "collective-broadcast"]
_HEADER = re.compile(r"(?:ENTRY )?%?(?P<name>[\w.-]+) (?:\(.*)?\{")
_LINE = re.compile(r"\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)")
_OPERATION = re.compile(r" (?P<opcode>[\w-]+)(?=\()")
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]+(?:\d\w*)?)\[(?P<shape>[\d,<=]*)\]")
_BITS = {"pred": 8, "token": 0}
_CALLED = re.compile(r"\b(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_CALLED_LIST = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
# Groups of devices: `{{0,1},{2,3}}`, or `[2,2]<=[4]` and `[2,2]<=[2,2]T(1,0)`: numbers in order, moved and split.
_GROUPS = re.compile(r"replica_groups=(?:\{(?P<listed>(?:\{[\d,]*\},?)*)\}|\[(?P<shape>[\d,]+)\]<=(?P<order>\S+))")
_ORDER = re.compile(r"\[(?P<dims>[\d,]+)\](?:T\((?P<moved>[\d,]+)\))?")
# Or axes of a mesh, whose devices may be in another order: `mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}`. Or
# parts of axes: `'a':(2)4` has length 4, and 2 before it.
_AXES = re.compile(r"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\((?P<order>\S+)\))? \{(?P<axes>[^}]*)\}")
# How often a loop runs: as XLA has noted it on the loop, or the number that its condition compares a counter with.
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SCOPE = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")


class Collective(NamedTuple):
    """A collective of a program."""

    kind: str  # such as `"all-reduce"`
    num_bytes: int  # of its larger side on each device: what is reduced, scattered or gathered
    # The devices that take part together, by their positions in the program's mesh; empty if the program does not say.
    groups: tuple[tuple[int, ...], ...] = ()
    group_size: int | None = None  # of the largest group; None for all devices
    payload: int = 0  # bytes that each device puts in: those of all operands
    in_loop: bool = False  # of a `while`: then it may run any number of times
    times: int | None = 1  # how often it runs in a run of the program; None if a loop around it does not tell


class Instruction(NamedTuple):
    """A line of a program: `%name = type opcode(operands), attributes`."""

    computation: str
    name: str
    type: str
    opcode: str
    operands: str
    attributes: str  # without the words in quotes
    trips: int | None = None  # of a `while`, where XLA has noted how often it runs
    scope: str = ""  # what JAX calls it, such as `jit(step)/jvp(dense)/dot_general`
    frame: int | None = None  # the number of its stack frame in the tables at the head of the text

    def operand_names(self) -> list[str]:
        """Returns the names of what it is computed from."""
        # After its type, where there is one; the % may be missing: "f32[2]{0} %a, /*index=1*/b".
        operands = re.sub(r"/\*.*?\*/", "", self.operands)
        return [operand.split()[-1].lstrip("%") for operand in split(operands)]


def collectives(hlo_text: str, lengths: Collection[int] = ()) -> list[Collective]:
    """Returns the collectives in the text of a program (`compiled.as_text()`), in its order; one in a loop comes once.

    Args:
        hlo_text: The program.
        lengths: How often the loops of the traced program run, where it says so. On TPUs XLA notes it nowhere; there a
            loop whose condition compares with one of these numbers is taken for one of these loops.

    Example:
        >>> [each[:3] for each in collectives("%sum = f32[4,8]{1,0} all-reduce(%x), replica_groups={{0,1}}")]
        [('all-reduce', 128, ((0, 1),))]
    """
    instructions = list(instructions_of(hlo_text))
    types = {(each.computation, each.name): each.type for each in instructions}
    in_loops = _computations_in_loops(instructions)
    times = _times(instructions, lengths)
    found = []
    for each in instructions:
        # An asynchronous collective is a pair, `-start` and `-done`. If it is written as `async-start(...), calls=%c`,
        # it is found in the computation `c`.
        kind = each.opcode.removesuffix("-start")
        if kind not in _KINDS:
            continue
        results = _sizes(each.type)
        if each.opcode != kind and kind != "all-reduce":
            results = results[len(results) // 2 :]  # A pair's first half names its operands again.
        payload = sum(sum(_sizes(types.get((each.computation, name), ""))) for name in each.operand_names())
        groups = _groups_of(each.attributes)
        pairs = _PAIRS.search(each.attributes)
        size = max(map(len, groups), default=None) if pairs is None else len(set(re.findall(r"\d+", pairs[1])))
        larger = max(sum(results), payload)
        is_in_loop = each.computation in in_loops
        found.append(Collective(kind, larger, groups, size, payload, is_in_loop, times.get(each.computation, 1)))
    return found


def axes_of_groups(groups: Sequence[Sequence[int]], shape: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the axes of a mesh along which the devices of each group lie; None if they lie otherwise.

    Example:
        >>> axes_of_groups(((0, 2), (1, 3)), (2, 2)), axes_of_groups(((0, 1, 2, 3),), (2, 2))
        ((0,), (0, 1))
    """
    if not groups:
        return None
    places = np.array([np.unravel_index(list(group), shape) for group in groups])  # (groups, axes, devices)
    moving = (places != places[:, :, :1]).any(axis=(0, 2))
    axes = tuple(int(axis) for axis in np.flatnonzero(moving))
    fills = all(len(group) == math.prod(shape[axis] for axis in axes) for group in groups)
    return axes if fills else None


def instructions_of(hlo: str) -> Iterator[Instruction]:
    """Yields the lines of a program, computation by computation."""
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
                trips = _TRIPS.search(line) if operation["opcode"] == "while" else None
                scope, frame = _SCOPE.search(line), _FRAME.search(line)
                yield Instruction(
                    computation,
                    found["name"],
                    rest[:type_end],
                    operation["opcode"],
                    operands,
                    rest[end:],
                    None if trips is None else int(trips[1]),
                    "" if scope is None else scope[1].replace("\\", ""),
                    None if frame is None else int(frame[1]),
                )


def _closing(text: str, start: int = 0) -> int:
    """Returns the position after the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    return len(text)


def split(text: str) -> list[str]:
    """Splits at the commas that no bracket encloses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in map(str.strip, parts) if part]


def _sizes(type_: str) -> list[int]:
    """Returns the bytes of each array of a type."""
    return [
        -(-math.prod(int(length.lstrip("<=")) for length in shape.split(",") if length) * bits(dtype) // 8)
        for dtype, shape in _ARRAY.findall(type_)
    ]


def bits(dtype: str) -> int:
    """Returns how many bits a number has."""
    digits = re.match(r"[a-z]+(\d+)", dtype)  # f32, bf16, s4, f8e4m3fn, c64
    if digits is None and dtype not in _BITS:
        raise ValueError(f"The HLO has a dtype of unknown size: {dtype!r}.")
    return int(digits[1]) if digits is not None else _BITS[dtype]


def called_by(instruction: Instruction) -> list[str]:
    """Returns the computations that an instruction calls."""
    names = _CALLED.findall(instruction.attributes)
    for some in _CALLED_LIST.findall(instruction.attributes):
        names += [name.strip().lstrip("%") for name in some.split(",")]
    return names


def _computations_in_loops(instructions: Iterable[Instruction]) -> set[str]:
    """Returns the computations that a `while` loop calls, directly or not."""
    called: dict[str, set[str]] = {}
    waiting: list[str] = []
    for each in instructions:
        names = called_by(each)
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


def _times(instructions: Sequence[Instruction], lengths: Collection[int]) -> dict[str, int | None]:
    """Returns how often each computation that is called runs in a run of the program; None: nothing tells."""
    compared: dict[str, set[int]] = {}
    for each in instructions:
        if each.opcode == "constant" and each.operands.isdecimal():
            compared.setdefault(each.computation, set()).add(int(each.operands))
    calls: dict[str, list[tuple[str, int | None]]] = {}
    for each in instructions:
        trips: int | None = 1
        if each.opcode == "while":
            condition = re.search(r"condition=%?([\w.-]+)", each.attributes)
            fitting = compared.get(condition[1], set()) & set(lengths) if condition is not None else set()
            trips = each.trips if each.trips is not None else fitting.pop() if len(fitting) == 1 else None
        for name in called_by(each):
            calls.setdefault(name, []).append((each.computation, trips))
    found: dict[str, int | None] = {}

    def times(name: str) -> int | None:
        if name not in found:
            counts = [(times(caller), trips) for caller, trips in calls.get(name, ())]
            known = [outer * trips for outer, trips in counts if outer is not None and trips is not None]
            found[name] = 1 if not counts else sum(known) if len(known) == len(counts) else None
        return found[name]

    for name in calls:
        times(name)
    return found


def _groups_of(attributes: str) -> tuple[tuple[int, ...], ...]:
    match = _GROUPS.search(attributes)
    if match is None:
        along = _AXES.search(attributes)
        return _groups_along(along) if along is not None else ()
    if match["shape"] is None:
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,]*)\}", match["listed"]))
    return _rows(_in_order(match["order"]).reshape(_numbers(match["shape"])))


def _groups_along(match: re.Match[str]) -> tuple[tuple[int, ...], ...]:
    taking_part = re.findall(r"(\w+)'?(?::\((\d+)\)(\d+))?(?:,|$)", match["axes"])
    shape: list[int] = []
    last: list[int] = []
    for name, size in re.findall(r"(\w+)'?=(\d+)", match["mesh"]):
        done = 1
        for before, part in sorted((int(a or 1), int(b or size)) for axis, a, b in taking_part if axis == name):
            shape += [before // done, part]
            last.append(len(shape) - 1)
            done = before * part
        shape.append(int(size) // done)
    numbers = _in_order(match["order"] or f"[{math.prod(shape)}]").reshape(shape)
    moved = np.moveaxis(numbers, last, range(-len(last), 0)) if last else numbers
    return _rows(moved.reshape(-1, math.prod(shape[axis] for axis in last)))


def _in_order(text: str) -> np.ndarray:
    """Returns the numbers of devices in the order that a text such as `[2,4]T(1,0)` gives them."""
    match = _ORDER.match(text)
    assert match is not None, text
    dims = _numbers(match["dims"])
    numbers = np.arange(math.prod(dims)).reshape(dims)
    return numbers.transpose(_numbers(match["moved"])) if match["moved"] else numbers


def _rows(groups: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, group)) for group in groups)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)
