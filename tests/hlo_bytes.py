"""How many bytes the collectives of a compiled program move, counted from its HLO."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_BITS = {"pred": 8, "token": 0}
_KINDS = "all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute|collective-broadcast"
# `%name = f32[4,8]{1,0} all-reduce(...)`, or a tuple of such types; the `-done` of a pair repeats its `-start`.
_DEFINED = re.compile(r"^\s*(?:ROOT )?(?P<name>%?[\w.\-]+) = (?P<types>\(.*?\)|\S+) (?P<kind>[\w\-]+)\(")
_TYPE = re.compile(r"\b(?P<dtype>[a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[(?P<dims>[0-9,]*)\]")
_NAME = re.compile(r"%[\w.\-]+")


class Collective(NamedTuple):
    """A collective of a program.

    Attributes:
        kind: Its operation, such as `"all-reduce"`.
        num_bytes: The bytes of its larger side on each device: what is reduced, scattered or gathered.
    """

    kind: str
    num_bytes: int


def collectives(hlo_text: str) -> list[Collective]:
    """Returns the collectives in the text of a program (`compiled.as_text()`), in its order.

    One in the body of a loop counts once.

    Example:
        >>> collectives("%sum = f32[4,8]{1,0} all-reduce(%x), replica_groups={}")
        [Collective(kind='all-reduce', num_bytes=128)]
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
        found.append(Collective(kind, max(sum(results), given)))
    return found


def collective_bytes(hlo_text: str, kind: str = "") -> int:
    """Returns how many bytes the collectives of a program move, those of `kind` if it is given.

    Example:
        >>> collective_bytes("%sum = bf16[10]{0} all-reduce(%x), to_apply=%add")
        20
    """
    return sum(each.num_bytes for each in collectives(hlo_text) if kind in ("", each.kind))


def _bytes_of(match: re.Match[str]) -> int:
    digits = re.search(r"\d+", match["dtype"])
    if digits is None and match["dtype"] not in _BITS:
        raise ValueError(f"The HLO has a dtype of unknown size: {match['dtype']!r}.")
    bits = int(digits[0]) if digits else _BITS[match["dtype"]]
    return -(-math.prod(int(dim) for dim in match["dims"].split(",") if dim) * bits // 8)
