"""The range that an elastic job was started with, and the news by which its launcher learns of its worlds."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from replicax.checks.environment_names import ELASTIC, LOG_DIR
from replicax.contracts.group import Incarnation
from replicax.errors import ClusterError
from replicax.group.launcher_messages import tell_launcher
from replicax.group.membership.membership_log import MembershipLog


class ElasticRange(NamedTuple):
    """The numbers of workers that an elastic job may have."""

    fewest: int  # with which it goes on
    most: int  # that may take part; their indices are below this

    def __str__(self) -> str:
        return f"{self.fewest}:{self.most}"


def parse_range(text: str) -> ElasticRange:
    """Returns the range in `"2:8"`, or raises a `ValueError`.

    >>> parse_range("2:8")
    ElasticRange(fewest=2, most=8)
    """
    fewest, colon, most = (part.strip() for part in text.partition(":"))
    if not colon or not fewest.isdecimal() or not most.isdecimal() or not 1 <= int(fewest) <= int(most):
        raise ValueError(f"must be a range of at least 1 such as 2:8, the smaller number first, got {text!r}")
    return ElasticRange(int(fewest), int(most))


def elastic_range(environ: Mapping[str, str] = os.environ) -> ElasticRange | None:
    """Returns the range of the elastic job that this process belongs to; None if its job is not elastic."""
    text = environ.get(ELASTIC, "").strip()
    if not text:
        return None
    try:
        return parse_range(text)
    except ValueError as error:
        raise ClusterError(ELASTIC, text, "is no range of numbers of workers", f"It {error}.") from None


def tell_of_world(number: int, incarnations: Sequence[Incarnation], index: int) -> None:
    """Tells the launcher of a new world; without one, its first member writes it to the membership log."""
    atexit.unregister(_tell_of_end)
    atexit.register(_tell_of_end)
    told = {"world": number, "lives": [[incarnation.index, incarnation.number] for incarnation in incarnations]}
    if tell_launcher(told) or index:
        return
    folder = os.environ.get(LOG_DIR)
    if folder:
        MembershipLog(Path(folder)).world(number, incarnations, "", time.time())


def _tell_of_end() -> None:
    tell_launcher({"leaves": True})


def tell_of_leaving(incarnation: Incarnation, reason: str) -> None:
    """Tells the launcher that this process leaves the others, who go on."""
    folder = os.environ.get(LOG_DIR)
    if not tell_launcher({"leaving": reason}) and folder:
        MembershipLog(Path(folder)).end(incarnation, os.getpid(), None, reason, time.time())
