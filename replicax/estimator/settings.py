"""The settings of a `RunConfig`, checked one by one and against each other."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping

from replicax.checks import checked_int, is_int, is_real
from replicax.errors import ArgumentError, ClusterError
from replicax.estimator.distribution import DistributeConfig, check_strategy

_SEEDS = 2**32


def checked(settings: Mapping[str, object]) -> dict[str, object]:
    """Returns settings of a `RunConfig` in their own types, with the strategies of a `DistributeConfig` among them."""
    done = {name: _CHECKS[name](name, value) if name in _CHECKS else value for name, value in settings.items()}
    steps, seconds = done["save_checkpoints_steps"], done["save_checkpoints_secs"]
    if steps is not None and seconds is not None:
        raise ArgumentError(
            f"`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set, got {steps!r} and {seconds!r}. "
            "Give one of them. None for both: no checkpoint before the end."
        )
    config = done["experimental_distribute"]
    if isinstance(config, DistributeConfig):
        for name in ("train_distribute", "eval_distribute"):
            done[name] = _one_of(name, done[name], getattr(config, name))
    return done


def with_told_model_dir(given: object, told: str | None) -> object:
    """Returns the folder that was given, or the one in TF_CONFIG; they must not differ."""
    path = _path("model_dir", given)
    if told is not None and path is not None and told != path:
        raise ClusterError(
            "TF_CONFIG model_dir",
            told,
            f"must be the same as `model_dir` of the RunConfig, which is {path!r}",
            "Give one of them.",
        )
    return path or told


def _one_of(name: str, here: object, there: object) -> object:
    if here is not None and there is not None and here is not there:
        raise ArgumentError(
            f"Either `{name}` or `experimental_distribute.{name}` can be set, got {here!r:.100} and {there!r:.100}."
        )
    return there if here is None else here


def _path(name: str, value: object) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(path, str) or not path:
        raise ArgumentError(f"`{name}` must be the path of a folder, not empty, or None, got {value!r:.100}.")
    return path


def _int_from(least: int) -> Callable[[str, object], int | None]:
    def check(name: str, value: object) -> int | None:
        return None if value is None else checked_int(name, value, least=least, note=", or None")

    return check


def _seed(name: str, value: object) -> int | None:
    if value is None:
        return None
    if not is_int(value) or not 0 <= value < _SEEDS:
        raise ArgumentError(
            f"`{name}` must be an int from 0 to {_SEEDS - 1} (NumPy's generators take no others), or None, got "
            f"{value!r:.100}."
        )
    return int(value)


def _number(zero: bool) -> Callable[[str, object], float | None]:
    def check(name: str, value: object) -> float | None:
        if value is None:
            return None
        if not is_real(value) or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            rule = "a number of at least 0" if zero else "a positive number"
            raise ArgumentError(f"`{name}` must be {rule}, or None, got {value!r:.100}.")
        return value

    return check


def _strategy(name: str, value: object) -> object:
    check_strategy(name, value)
    return value


def _distribute(name: str, value: object) -> DistributeConfig | None:
    if value is not None and not isinstance(value, DistributeConfig):
        raise ArgumentError(f"`{name}` must be an `rx.estimator.DistributeConfig` or None, got {value!r:.100}.")
    return value


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "model_dir": _path,
    "seed": _seed,
    "save_summary_steps": _int_from(0),
    "save_checkpoints_steps": _int_from(1),
    "save_checkpoints_secs": _number(zero=True),
    "keep_checkpoint_max": _int_from(0),
    "keep_checkpoint_every_n_hours": _number(zero=False),
    "log_step_count_steps": _int_from(1),
    "train_distribute": _strategy,
    "eval_distribute": _strategy,
    "experimental_distribute": _distribute,
}
