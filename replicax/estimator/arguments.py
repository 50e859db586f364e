"""Arguments of an estimator, checked."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping

from replicax.checks import checked_int
from replicax.errors import ArgumentError, EstimatorError
from replicax.estimator.roles import EVALUATOR, SERVER
from replicax.estimator.run_config import RunConfig

_log = logging.getLogger("replicax.estimator")


def with_model_dir(config: RunConfig | None, model_dir: str | os.PathLike[str] | None) -> RunConfig:
    """Returns the settings of an estimator, with the folder that it was given, or a temporary one."""
    if config is not None and not isinstance(config, RunConfig):
        raise EstimatorError(f"`config` is an rx.estimator.RunConfig, got {config!r:.100}.")
    config = config or RunConfig()
    for given in (model_dir, config.model_dir):
        if isinstance(given, (str, os.PathLike)):
            _check_can_be_folder(os.fspath(given))
    if model_dir is not None:
        if not isinstance(model_dir, (str, os.PathLike)) or not os.fspath(model_dir):
            raise ArgumentError(f"`model_dir` is the path of a folder, got {model_dir!r:.100}.")
        if config.model_dir is not None and os.fspath(model_dir) != config.model_dir:
            raise EstimatorError(
                f"`model_dir` is given twice and differs: {os.fspath(model_dir)!r}, and {config.model_dir!r} in the "
                "RunConfig. Give one."
            )
        return config.replace(model_dir=os.fspath(model_dir))
    if config.model_dir is None:
        folder = tempfile.mkdtemp(prefix="replicax-estimator-")
        _log.warning("The estimator has no `model_dir`: it writes to the temporary folder %s.", folder)
        return config.replace(model_dir=folder)
    return config


def _check_can_be_folder(path: str) -> None:
    """Checks that the folder is there or can be made: that no file is in its place, or in that of one above it."""
    found = os.path.abspath(path)
    while not os.path.lexists(found):
        found = os.path.dirname(found)
    if not os.path.isdir(found):
        raise ArgumentError(
            f"`model_dir` is the path of a folder, got {path!r}, but {found!r} is a file. Give a folder, which is made "
            "if it does not exist."
        )


def as_list(name: str, given: Iterable[object] | None) -> list[object]:
    """Returns hooks as a list; None is an empty one."""
    if given is None:
        return []
    if not isinstance(given, Iterable) or isinstance(given, (str, Mapping)):
        raise EstimatorError(f"`{name}` is a list, got {given!r:.100}.")
    return list(given)


def check_steps(steps: int | None, max_steps: int | None = None) -> None:
    """Checks that at most one of `steps` and `max_steps` is given, and that it is a positive int."""
    if steps is not None and max_steps is not None:
        raise EstimatorError(f"Either `steps` or `max_steps` can be given, got {steps!r} and {max_steps!r}.")
    for name, number in (("steps", steps), ("max_steps", max_steps)):
        if number is not None:
            checked_int(name, number, least=1)


def check_trains(config: RunConfig) -> None:
    """Checks that the role of this process is one that trains."""
    if config.role in (EVALUATOR, SERVER):
        raise EstimatorError(
            f"`train` was called in a process whose role is {config.role!r}: it does not train. "
            "rx.estimator.train_and_evaluate does what the role says."
        )
