"""The collectives of a compiled program, and how many bytes they move, counted from its HLO."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BITS = {"pred": 8, "token": 0}
_KINDS = "all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute|collective-broadcast"
# `%name = f32[4,8]{1,0} all-reduce(...)`, or a tuple of such types; the `-done` of a pair repeats its `-start`.
_DEFINED = re.compile(r"^\s*(?:ROOT )?(?P<name>%?[\w.\-]+) = (?P<types>\(.*?\)|\S+) (?P<kind>[\w\-]+)\(")
_TYPE = re.compile(r"\b(?P<dtype>[a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[(?P<dims>[0-9,]*)\]")
_NAME = re.compile(r"%[\w.\-]+")
# Groups of devices: `{{0,1},{2,3}}`, or `[2,2]<=[4]` and `[2,2]<=[2,2]T(1,0)`: numbers in order, moved and split.
_GROUPS = re.compile(r"replica_groups=(?:\{(?P<listed>(?:\{[\d,]*\},?)*)\}|\[(?P<shape>[\d,]+)\]<=(?P<order>\S+))")
_ORDER = re.compile(r"\[(?P<dims>[\d,]+)\](?:T\((?P<moved>[\d,]+)\))?")
# Or axes of a mesh, whose devices may be in another order: `mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}`.
_AXES = re.compile(
    r"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\((?P<order>\S+)\))? \{(?P<axes>(?:'\w+',? ?)*)\}"
)


class Collective(NamedTuple):
    """A collective of a program."""

    kind: str  # such as `"all-reduce"`
    num_bytes: int  # of its larger side on each device: what is reduced, scattered or gathered
    # The devices that take part together, by their positions in the program's mesh; empty if the program does not say.
    groups: tuple[tuple[int, ...], ...] = ()


def collectives(hlo_text: str) -> list[Collective]:
    """Returns the collectives in the text of a program (`compiled.as_text()`), in its order; one in a loop counts once.

    Example:
        >>> collectives("%sum = f32[4,8]{1,0} all-reduce(%x), replica_groups={{0,1}}")
        [Collective(kind='all-reduce', num_bytes=128, groups=((0, 1),))]
    """
    sizes: dict[str, int] = {}
    found = []
    for line in hlo_text.splitlines():
        match = _DEFINED.match(line)
        if match is None:
            continue
        results = [_bytes_of(each) for each in _TYPE.finditer(match["types"])]
        sizes[match["name"]] = sum(results)
        kind = match["kind"].removesuffix("-start")
        if kind not in _KINDS.split("|"):
            continue
        if match["kind"] != kind and kind != "all-reduce":
            results = results[len(results) // 2 :]  # A pair's first half names its operands again.
        operands = line[match.end() :].partition(")")[0]
        given = sum(sizes.get(name, 0) for name in _NAME.findall(operands))
        found.append(Collective(kind, max(sum(results), given), _groups_of(line)))
    return found


def collective_bytes(hlo_text: str, kind: str = "") -> int:
    """Returns how many bytes the collectives of a program move, those of `kind` if it is given.

    Example:
        >>> collective_bytes("%sum = bf16[10]{0} all-reduce(%x), to_apply=%add")
        20
    """
    return sum(each.num_bytes for each in collectives(hlo_text) if kind in ("", each.kind))


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


def _groups_of(line: str) -> tuple[tuple[int, ...], ...]:
    match = _GROUPS.search(line)
    if match is None:
        along = _AXES.search(line)
        return _groups_along(along) if along is not None else ()
    if match["shape"] is None:
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,]*)\}", match["listed"]))
    return _rows(_in_order(match["order"]).reshape(_numbers(match["shape"])))


def _groups_along(match: re.Match[str]) -> tuple[tuple[int, ...], ...]:
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match["mesh"])}
    taking_part = re.findall(r"'(\w+)'", match["axes"])
    shape = tuple(sizes.values())
    numbers = _in_order(match["order"] or f"[{math.prod(shape)}]").reshape(shape)
    last = [list(sizes).index(name) for name in taking_part]
    moved = np.moveaxis(numbers, last, range(-len(last), 0)) if last else numbers
    return _rows(moved.reshape(-1, math.prod(sizes[name] for name in taking_part)))


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


def _bytes_of(match: re.Match[str]) -> int:
    digits = re.search(r"\d+", match["dtype"])
    if digits is None and match["dtype"] not in _BITS:
        raise ValueError(f"The HLO has a dtype of unknown size: {match['dtype']!r}.")
    bits = int(digits[0]) if digits else _BITS[match["dtype"]]
    return -(-math.prod(int(dim) for dim in match["dims"].split(",") if dim) * bits // 8)
