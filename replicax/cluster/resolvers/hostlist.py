"""Slurm's short notations: `n[1-3,7]x` for hosts and `2(x3),1` for the number of tasks on each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from replicax.errors import ClusterError

_MOST_HOSTS = 100_000  # A mistyped range must not fill the memory.
_PART = re.compile(r"\[(?P<ranges>[0-9,-]+)\]|(?P<text>[A-Za-z0-9_.-]+)")
_RANGE = re.compile(r"(?P<first>[0-9]{1,18})(-(?P<last>[0-9]{1,18}))?")
_TASKS = re.compile(r"(?P<tasks>[1-9][0-9]{0,5})(\(x(?P<times>[1-9][0-9]{0,5})\))?")
_HOSTS_CURE = "Such as 'node1,node[03-12,17]'; `scontrol show hostnames` expands what Slurm wrote."
_TASKS_CURE = "Such as '2(x3),1' for three nodes with two tasks and one with one."


def expand_hostlist(hostlist: str, field: str = "hostlist") -> list[str]:
    """Returns the hosts of a list in Slurm's notation, in their order.

    Example:
        >>> expand_hostlist("n[08-10]x,login")
        ['n08x', 'n09x', 'n10x', 'login']
    """
    hosts = [host for item in _items(hostlist, field) for host in _expand(item, hostlist, field)]
    if len(hosts) > _MOST_HOSTS:
        raise ClusterError(field, hostlist, f"names more than {_MOST_HOSTS} hosts", _HOSTS_CURE)
    return hosts


def expand_tasks_per_node(tasks_per_node: str, field: str = "tasks_per_node") -> list[int]:
    """Returns the number of tasks on each node of a list in Slurm's notation.

    Example:
        >>> expand_tasks_per_node("2(x3),1")
        [2, 2, 2, 1]
    """
    counts: list[int] = []
    for item in tasks_per_node.split(","):
        found = _TASKS.fullmatch(item.strip())
        if not found or len(counts) > _MOST_HOSTS:
            raise ClusterError(
                field, tasks_per_node, f"has an entry that is not a number of tasks: {item!r}", _TASKS_CURE
            )
        counts += [int(found["tasks"])] * int(found["times"] or 1)
    return counts


def _items(hostlist: str, field: str) -> Iterator[str]:
    """Splits at the commas outside of brackets."""
    for item in re.split(r",(?![^\[]*\])", hostlist):
        if not item.strip():
            raise ClusterError(field, hostlist, "has an empty entry", _HOSTS_CURE)
        yield item.strip()


def _expand(item: str, hostlist: str, field: str) -> Iterator[str]:
    choices, end = [], 0
    for part in _PART.finditer(item):
        if part.start() != end:
            break
        end = part.end()
        choices.append([part["text"]] if part["text"] else [*_numbers(part["ranges"], hostlist, field)])
    if end != len(item):
        raise ClusterError(field, hostlist, f"has an entry that is not a host: {item!r}", _HOSTS_CURE)
    return map("".join, itertools.islice(itertools.product(*choices), _MOST_HOSTS + 1))


def _numbers(ranges: str, hostlist: str, field: str) -> Iterator[str]:
    for text in ranges.split(","):
        found = _RANGE.fullmatch(text)
        if not found or int(found["last"] or found["first"]) - int(found["first"]) not in range(_MOST_HOSTS):
            raise ClusterError(field, hostlist, f"has brackets that are not ranges of numbers: [{ranges}]", _HOSTS_CURE)
        width = len(found["first"])
        for value in range(int(found["first"]), int(found["last"] or found["first"]) + 1):
            yield f"{value:0{width}d}"
