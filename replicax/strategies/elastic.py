"""Elastic training: a strategy whose workers may be lost and come again while it trains."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from replicax.checks import is_int
from replicax.checks.environment_names import ELASTIC
from replicax.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Elastic:
    """Lets workers be lost, and others join, while the rest go on in the same processes.

    Args:
        min_workers: With how few workers the training goes on. With fewer it ends, to be started again.
        max_workers: How many workers there may be; None for as many as the cluster has at the start.

    Raises:
        ArgumentError: They are no numbers of workers.

    Example:
        >>> Elastic(min_workers=2, max_workers=8)
        Elastic(min_workers=2, max_workers=8)
    """

    min_workers: int = 1
    max_workers: int | None = None

    def __post_init__(self) -> None:
        if not is_int(self.min_workers) or self.min_workers < 1:
            raise ArgumentError(f"min_workers must be a number of workers, at least 1, got {self.min_workers!r}.")
        if self.max_workers is not None and (not is_int(self.max_workers) or self.max_workers < self.min_workers):
            raise ArgumentError(
                f"max_workers must be a number of workers, at least min_workers={self.min_workers}, got "
                f"{self.max_workers!r}."
            )


def elastic_from(given: Elastic | None, environ: Mapping[str, str] = os.environ) -> Elastic | None:
    """Returns the user's setting; if there is none, that of the environment; None for neither."""
    if given is not None:
        if not isinstance(given, Elastic):
            raise ArgumentError(f"`elastic` must be an rx.Elastic, got {given!r:.100}.")
        return given
    if not environ.get(ELASTIC, "").strip():
        return None
    from replicax.group.membership.launcher_news import elastic_range

    told = elastic_range(environ)
    return None if told is None else Elastic(told.fewest, told.most)
