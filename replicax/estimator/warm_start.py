"""First values from a checkpoint of another training."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Mapping, Sequence

from replicax.checkpoint import entries, latest_checkpoint, restore_variables
from replicax.errors import EstimatorError
from replicax.estimator.built_model import GLOBAL_STEP, BuiltModel

_log = logging.getLogger("replicax.estimator")


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """Which variables take their first values from a checkpoint.

    Attributes:
        ckpt_to_initialize_from: A checkpoint, or a folder of checkpoints, of which the newest counts.
        vars_to_warm_start: A regular expression that the names of those variables contain, or a list of such; None for
            none. The trainable ones of these are taken; with a list, any.
        var_name_to_prev_var_name: What variables of this model are called in the checkpoint, if it is another name.

    Raises:
        EstimatorError: There is no checkpoint given.

    Example:
        >>> settings = rx.estimator.WarmStartSettings("pretrained", vars_to_warm_start="encoder.*")
        >>> settings.vars_to_warm_start
        'encoder.*'
    """

    ckpt_to_initialize_from: str | os.PathLike[str]
    vars_to_warm_start: str | Sequence[str] | None = ".*"
    var_name_to_prev_var_name: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ckpt_to_initialize_from, (str, os.PathLike)) or not os.fspath(
            self.ckpt_to_initialize_from
        ):
            raise EstimatorError(
                f"`ckpt_to_initialize_from` is the path of a checkpoint, got {self.ckpt_to_initialize_from!r:.100}."
            )

    @classmethod
    def of(cls, given: str | os.PathLike[str] | WarmStartSettings | None) -> WarmStartSettings | None:
        """Returns what the argument `warm_start_from` of an estimator stands for."""
        if given is None or isinstance(given, WarmStartSettings):
            return given
        if not isinstance(given, (str, os.PathLike)):
            raise EstimatorError(f"`warm_start_from` is a path or WarmStartSettings, got {given!r:.100}.")
        return cls(given)


def warm_start(model: BuiltModel, settings: WarmStartSettings) -> None:
    """Assigns the values in a checkpoint to those of a model's variables that the settings choose."""
    path = latest_checkpoint(settings.ckpt_to_initialize_from) or os.fspath(settings.ckpt_to_initialize_from)
    found, renamed = entries(path), dict(settings.var_name_to_prev_var_name or {})
    patterns = settings.vars_to_warm_start
    if patterns is None:
        return
    by_list = not isinstance(patterns, str)
    wanted = [re.compile(each) for each in ([patterns] if isinstance(patterns, str) else patterns)]
    chosen = {
        renamed.get(name, name): variable
        for name, variable in model.variables.items()
        if name != GLOBAL_STEP
        and any(each.search(name) for each in wanted)
        and (by_list or getattr(variable, "trainable", False))
    }
    missing = [name for name in chosen if name not in found]
    if missing or not chosen:
        raise EstimatorError(
            f"The training cannot begin with the values of {path}: it lacks {', '.join(missing) or 'all variables'}. "
            f"It has: {', '.join(found)}. Name the variables to take: WarmStartSettings(path, vars_to_warm_start=...)."
        )
    restore_variables(path, chosen, partial=True)
    _log.info("Warm-started %d variables from %s.", len(chosen), path)
