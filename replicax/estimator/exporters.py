"""Exporters: which of the evaluated models are written for serving, and how many of them are kept."""

from __future__ import annotations

import abc
import inspect
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from replicax.checkpoint.places import absolute, replace
from replicax.checks import checked_int
from replicax.contracts.advice import AdvisedContract
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError
from replicax.estimator.journal import Metrics, plain
from replicax.typing import PyTree

if TYPE_CHECKING:
    from replicax.estimator.estimator import Estimator

Compare = Callable[..., bool]


class Exporter(AdvisedContract):
    """Writes models of evaluated checkpoints: `train_and_evaluate` calls it after each. Users may derive their own.

    Attributes:
        only_at_the_end: Whether it has nothing to do before the training has ended.

    Example:
        >>> import jax
        >>> exporter = rx.estimator.FinalExporter("final", jax.ShapeDtypeStruct((1, 2), "float32"))
        >>> isinstance(exporter, rx.estimator.Exporter)
        True
    """

    only_at_the_end = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The folder below `model_dir/export` in which its exports stand."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> str | None:
        """Exports the model of a checkpoint, if it is worth it.

        Args:
            estimator: The estimator.
            export_path: The folder for its exports.
            checkpoint_path: The checkpoint that was evaluated.
            eval_result: Its losses and metrics, and `global_step`.
            is_the_final_export: Whether the training has ended with this checkpoint.

        Returns:
            The folder of the export; None if it has exported nothing.
        """


class _ModelExporter(Exporter):
    """The part that is common: what is written and how."""

    def __init__(
        self,
        name: str,
        serving_input: PyTree,
        assets_extra: Mapping[str, str | os.PathLike[str]] | None,
        exports_to_keep: int | None,
    ):
        if not isinstance(name, str) or not name or os.sep in name:
            raise ArgumentError(f"An exporter's `name` must be a string that can name a folder, got {name!r:.100}.")
        if serving_input is None:
            raise ArgumentError(
                f"Exporter {name!r} needs `serving_input`: arrays or `rx.TensorSpec`s that look like the features, or "
                "a function that returns them."
            )
        if assets_extra is not None and not isinstance(assets_extra, Mapping):
            raise ArgumentError(f"`assets_extra` must be a dict from names to paths, got {assets_extra!r:.100}.")
        if exports_to_keep is not None:
            checked_int("exports_to_keep", exports_to_keep, least=1, note=", or None to keep all")
        self._name, self._serving_input = name, serving_input
        self._assets, self._keep = dict(assets_extra or {}), exports_to_keep

    @property
    def name(self) -> str:
        return self._name

    def _write(self, estimator: Estimator, export_path: str, checkpoint_path: str) -> str:
        folder = ExportFolder(export_path)
        path = folder.add(
            lambda base: estimator.export(base, self._serving_input, checkpoint_path=checkpoint_path), self._assets
        )
        folder.keep_newest(self._keep)
        return path


class LatestExporter(_ModelExporter):
    """Exports each evaluated model, and keeps the newest exports.

    Args:
        name: The folder for its exports below `model_dir/export`.
        serving_input: How the features look: a pytree of arrays or of `rx.TensorSpec`s, or a function that returns it.
        assets_extra: Files to copy into the folder `assets.extra` of an export: from the name there to the path.
        exports_to_keep: How many exports are kept; None for all.

    Raises:
        ArgumentError: One of them has the wrong type or value.

    Example:
        >>> import jax
        >>> exporter = rx.estimator.LatestExporter("latest", jax.ShapeDtypeStruct((1, 2), "float32"), exports_to_keep=3)
        >>> exporter.name
        'latest'
    """

    @called_as("tf.estimator.LatestExporter")
    def __init__(
        self,
        name: str,
        serving_input: PyTree,
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
        *,
        exports_to_keep: int | None = 5,
    ):
        super().__init__(name, serving_input, assets_extra, exports_to_keep)

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> str | None:
        return self._write(estimator, export_path, checkpoint_path)


class FinalExporter(_ModelExporter):
    """Exports the model once, when the training has ended: at `max_steps`, or where the data ends.

    Args:
        name: The folder for its export below `model_dir/export`.
        serving_input: How the features look: a pytree of arrays or of `rx.TensorSpec`s, or a function that returns it.
        assets_extra: Files that are copied into the folder `assets.extra` of the export: from the name there to the
            path.

    Raises:
        ArgumentError: One of them has the wrong type or value.

    Example:
        >>> import jax
        >>> exporter = rx.estimator.FinalExporter("final", jax.ShapeDtypeStruct((1, 2), "float32"))
        >>> exporter.name
        'final'
    """

    only_at_the_end = True

    @called_as("tf.estimator.FinalExporter")
    def __init__(
        self,
        name: str,
        serving_input: PyTree,
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
    ):
        super().__init__(name, serving_input, assets_extra, None)

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> str | None:
        return self._write(estimator, export_path, checkpoint_path) if is_the_final_export else None


def loss_is_smaller(best_eval_result: Metrics, current_eval_result: Metrics) -> bool:
    """Returns whether the current loss is smaller; any number is better than NaN."""
    for name, result in (("best_eval_result", best_eval_result), ("current_eval_result", current_eval_result)):
        if not result or "loss" not in result:
            raise ArgumentError(f"`{name}` has no 'loss', got {result!r:.100}. Give BestExporter `compare_fn`.")
    best, current = best_eval_result["loss"], current_eval_result["loss"]
    return current < best or (math.isnan(best) and not math.isnan(current))


class BestExporter(_ModelExporter):
    """Exports a model that is better than all before it. The best result stands beside the exports: a restart keeps it.

    Args:
        name: The folder for its exports below `model_dir/export`.
        serving_input: How the features look: a pytree of arrays or of `rx.TensorSpec`s, or a function that returns it.
        compare_fn: A function of `best_eval_result` and `current_eval_result`, dicts of losses and metrics: whether the
            current one is better. By default a smaller loss is.
        assets_extra: Files to copy into the folder `assets.extra` of an export: from the name there to the path.
        exports_to_keep: How many exports are kept; None for all.

    Raises:
        ArgumentError: One of them has the wrong type or value.

    Example:
        >>> def more_accurate(best_eval_result, current_eval_result):
        ...     return current_eval_result["accuracy"] > best_eval_result["accuracy"]
        >>> BestExporter(serving_input=lambda: TensorSpec((None, 64), "float32"), compare_fn=more_accurate).name
        'best_exporter'
    """

    @called_as("tf.estimator.BestExporter")
    def __init__(
        self,
        name: str = "best_exporter",
        serving_input: PyTree = None,
        *,
        compare_fn: Compare = loss_is_smaller,
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
        exports_to_keep: int | None = 5,
    ):
        super().__init__(name, serving_input, assets_extra, exports_to_keep)
        _check_compare(compare_fn)
        self._compare = compare_fn

    def export(
        self,
        estimator: Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> str | None:
        folder = ExportFolder(export_path)
        best = folder.best()
        if best is not None and not self._compare(best_eval_result=best, current_eval_result=eval_result):
            return None
        path = self._write(estimator, export_path, checkpoint_path)
        folder.note_best(eval_result)
        return path


def _check_compare(compare_fn: object) -> None:
    expected = ("best_eval_result", "current_eval_result")
    if not callable(compare_fn):
        raise ArgumentError(f"`compare_fn` must be a function of {' and '.join(expected)}, got {compare_fn!r:.100}.")
    parameters = inspect.signature(compare_fn).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    names = [each.name for each in parameters]
    if {*names} != {*expected}:
        raise ArgumentError(f"`compare_fn` must have the arguments {' and '.join(expected)}, got {names}.")


_NAME = re.compile(r"\d{10,}")
_BEST = "best_eval_result.json"
_UNFINISHED = ".unfinished-"


class ExportFolder:
    """The exports of one exporter: folders whose names are seconds since 1970, each later than those before.

    An export is complete or absent.
    """

    def __init__(self, path: str | os.PathLike[str]):
        place = absolute(path)
        if not isinstance(place, Path):
            raise ArgumentError(
                f"Exporters write to a disk, and the exports of this estimator would be at {place}. Leave `exporters` "
                "out, and export from a checkpoint with rx.export, which writes to stores."
            )
        self.path = place

    def exports(self) -> list[Path]:
        """Returns the complete exports, the oldest first."""
        found = [each for each in self.path.glob("*") if _NAME.fullmatch(each.name) and each.is_dir()]
        return sorted(found, key=lambda each: int(each.name))

    def add(self, write: Callable[[str], str], assets: Mapping[str, str | os.PathLike[str]]) -> str:
        """Adds an export, which appears when all of it is there, and returns its path."""
        for name, source in assets.items():
            if not os.path.isfile(source):
                raise ArgumentError(f"`assets_extra` names {os.fspath(source)!r} for {name!r}, which is not a file.")
        self.path.mkdir(parents=True, exist_ok=True)
        unfinished = self.path / f"{_UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            written = Path(write(str(unfinished)))  # a new folder in `unfinished`
            for name, source in assets.items():
                target = written / "assets.extra" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            there = self.exports()
            number = max(int(time.time()), int(there[-1].name) + 1 if there else 0)
            os.rename(written, self.path / str(number))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return str(self.path / str(number))

    def keep_newest(self, number: int | None) -> None:
        """Removes all exports but the newest; each is gone at once, and not file by file."""
        for old in self.exports()[:-number] if number is not None else []:
            gone = self.path / f"{_UNFINISHED}{old.name}-{secrets.token_hex(4)}"
            os.rename(old, gone)
            shutil.rmtree(gone, ignore_errors=True)

    def best(self) -> Metrics | None:
        """Returns the result that `note_best` has noted; None if there is none."""
        try:
            found: dict[str, float] = json.loads((self.path / _BEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found

    def note_best(self, result: Metrics) -> None:
        """Notes the best result, in the place of an earlier one."""
        replace(self.path / _BEST, json.dumps(plain(result)).encode())
