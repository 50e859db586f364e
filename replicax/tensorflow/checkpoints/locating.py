"""Finds the files of a checkpoint of TensorFlow's by the path that a user has."""

from __future__ import annotations

import re
from pathlib import Path

from replicax.checks import explained
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints.table import MAGIC

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
STATE = "checkpoint"  # The file in which TensorFlow notes the latest checkpoint of a folder.
_LATEST = re.compile(rb'^\s*model_checkpoint_path\s*:\s*"((?:[^"\\]|\\.)*)"\s*$', re.MULTILINE)
_ENDING = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$|-\d{5}-of-\d{5}$")


@explained
def is_tensorflow(path: Path) -> bool:
    """Returns whether a path looks like a checkpoint of TensorFlow's, a SavedModel, or an HDF5 file of weights.

    Example:
        >>> import pathlib, tempfile
        >>> rx.checkpoint.tensorflow.is_tensorflow(pathlib.Path(tempfile.mkdtemp()))
        False
    """
    try:
        located(path)
    except (OSError, ValueError):
        return path.is_dir() and (path / STATE).is_file()
    return True


def latest_tensorflow(folder: Path) -> Path | None:
    """Returns the checkpoint that the file `checkpoint` in a folder names; None if there is no such file."""
    if not (folder / STATE).is_file():
        return None
    try:
        return located(folder)[1]
    except ValueError as error:
        raise CheckpointError(f"{folder} has no checkpoint that can be restored: {error}.") from error


def located(path: Path) -> tuple[str, Path]:
    """Returns the format of a checkpoint (`"bundle"`, `"saver_v1"`, `"hdf5"`) and its prefix or file."""
    # It may be a prefix (`folder/ckpt-3`) or one of its files, a folder, a SavedModel, or an HDF5 file.
    if path.is_dir():
        return _in_folder(path)
    if path.name == "saved_model.pb":
        return _in_folder(path.parent)
    without_ending = path.with_name(_ENDING.sub("", path.name))
    for prefix in (path, without_ending):
        if _is_bundle(prefix):
            return "bundle", prefix
    found = _at_prefix(path) or _at_prefix(without_ending)
    if found is not None:
        return found
    if not path.exists():
        raise ValueError("there is no such file, nor one with this name and .index")
    if path.name == STATE:
        return _latest(path)
    if _begins_with(path, b"PK"):
        raise ValueError("it is an archive of Keras 3: load it with keras.saving.load_model")
    raise ValueError("it is neither a checkpoint of TensorFlow's nor an HDF5 file")


def _in_folder(folder: Path) -> tuple[str, Path]:
    variables = folder / "variables" / "variables"
    if variables.with_name("variables.index").is_file():
        return "bundle", variables
    if (folder / "saved_model.pb").is_file():
        raise ValueError("the SavedModel has no variables")
    if (folder / STATE).is_file():
        return _latest(folder / STATE)
    prefixes = sorted(index.with_suffix("") for index in folder.glob("*.index"))
    if len(prefixes) != 1:
        names = ", ".join(prefix.name for prefix in prefixes[:10]) or "none"
        raise ValueError(f"it has no file named {STATE}, and not one checkpoint, but {names}: name the one to read")
    return "bundle", prefixes[0]


def _latest(state: Path) -> tuple[str, Path]:
    """Returns what a `checkpoint` file names: a path relative to it, or one where the folder may once have been."""
    match = _LATEST.search(state.read_bytes())
    if match is None:
        raise ValueError(f"{state} names no checkpoint: it has no line model_checkpoint_path")
    named = re.sub(rb"\\(.)", rb"\1", match[1]).decode()
    if "\0" in named:
        raise ValueError(f"{state} names {named!r:.100}, which is no path")
    for prefix in (state.parent / named, state.parent / Path(named).name):
        found = _at_prefix(prefix)
        if found is not None:
            return found
    raise ValueError(f"{state} names {named}, of which there is no file")


def _at_prefix(prefix: Path) -> tuple[str, Path] | None:
    if _is_bundle(prefix):
        return "bundle", prefix
    if prefix.is_file():
        if _begins_with(prefix, HDF5_MAGIC):
            return "hdf5", prefix
        return ("saver_v1", prefix) if _is_table(prefix) else None
    parts = prefix.parent.glob(f"{glob_escaped(prefix.name)}-?????-of-?????")
    return ("saver_v1", prefix) if any(_is_table(part) for part in parts) else None


def _is_bundle(prefix: Path) -> bool:
    return Path(f"{prefix}.index").is_file()


def glob_escaped(name: str) -> str:
    """Returns a pattern that matches just a name."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _is_table(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - len(MAGIC), 0))
        return file.read() == MAGIC
