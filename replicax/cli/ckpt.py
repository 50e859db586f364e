"""`replicax ckpt`: the contents of a checkpoint, damage to it, and differences between two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from replicax.checkpoint import Metadata, damaged_files, newest, read_arrays, read_metadata, read_state
from replicax.errors import CheckpointError

ckpt = typer.Typer(help="Look into checkpoints: `inspect`, `verify`, `diff`.", no_args_is_help=True)

_WhereTo = Annotated[Path, typer.Argument(help="A checkpoint, or a directory of them: then the newest.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@ckpt.command()
def inspect(path: _WhereTo, as_json: _Json = False) -> None:
    """List the arrays of a checkpoint: name, shape, dtype, bytes. It does not read their values."""
    path, metadata = _opened(path)
    arrays = {
        name: {"shape": list(entry.shape), "dtype": entry.dtype.name, "bytes": entry.nbytes}
        for name, entry in metadata.arrays.items()
    }
    states = sorted(_read_state(path)[0])
    total = sum(entry.nbytes for entry in metadata.arrays.values())
    if as_json:
        about = {"processes": metadata.processes, "versions": dict(metadata.versions), "notes": dict(metadata.notes)}
        _print_json(path=str(path), step=metadata.step, arrays=arrays, states=states, bytes=total, **about)
        return
    table = Table("Name", "Shape", "Dtype", "Size")
    for name, entry in metadata.arrays.items():
        table.add_row(name, str(list(entry.shape)), entry.dtype.name, _size(entry.nbytes))
    console = Console()
    console.print(table)
    versions = ", ".join(f"{name} {version}" for name, version in metadata.versions.items())
    console.print(
        f"{path}: step {metadata.step}, {len(arrays)} arrays, {_size(total)}, by {metadata.processes} process(es), "
        f"{versions}",
        highlight=False,
    )
    if states:
        console.print(f"Also saved: {', '.join(states)}", highlight=False)


@ckpt.command()
def verify(path: _WhereTo, as_json: _Json = False) -> None:
    """Read a checkpoint and compare its checksums. Exit code 1 if a file is damaged."""
    path, metadata = _opened(path)
    damaged = damaged_files(path)
    names = {entry.folder: name for name, entry in metadata.arrays.items() if entry.folder}
    arrays = {file: names.get(file.partition("/")[0], "") for file in damaged}
    if as_json:
        _print_json(path=str(path), step=metadata.step, files=len(metadata.files), damaged=damaged, arrays=arrays)
    elif damaged:
        for file, problem in damaged.items():
            typer.echo(f"{path / file} {problem}" + (f" (array {arrays[file]})" if arrays[file] else ""))
    else:
        typer.echo(f"{path}: step {metadata.step}: {len(metadata.files)} files, all as they were written")
    if damaged:
        raise typer.Exit(1)


@ckpt.command()
def diff(path: _WhereTo, other: _WhereTo, as_json: _Json = False) -> None:
    """Compare two checkpoints array by array. Exit code 1 if they differ."""
    (path, first), (other, second) = _opened(path), _opened(other)
    found = dict(_differences(path, first, other, second))
    equal = all(difference == 0 for difference in found.values())
    if as_json:
        _print_json(equal=equal, differences=found)
    else:
        table = Table("Name", "Largest difference")
        for name, difference in found.items():
            if difference != 0:
                table.add_row(name, str(difference))
        if equal:
            typer.echo(f"All {len(found)} arrays are equal.")
        else:
            Console().print(table)
    if not equal:
        raise typer.Exit(1)


def _differences(path: Path, first: Metadata, other: Path, second: Metadata) -> Iterator[tuple[str, float | str]]:
    """Yields, for each name in one of them, the largest absolute difference or a text why there is none."""
    for name in dict.fromkeys([*first.arrays, *second.arrays]):
        if name not in second.arrays:
            yield name, f"only in {path}"
        elif name not in first.arrays:
            yield name, f"only in {other}"
        elif first.arrays[name].shape != second.arrays[name].shape:
            yield name, f"shape {list(first.arrays[name].shape)} and {list(second.arrays[name].shape)}"
        else:
            yield name, _largest_difference(_read(path, first, name), _read(other, second, name))


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float | str:
    if a.size == 0 or (a == b).all():
        return 0
    if a.dtype == bool or b.dtype == bool:
        return 1.0
    kind = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    with np.errstate(invalid="ignore"):
        difference = np.abs(a.astype(kind) - b.astype(kind))
    both = (a != a) & (b != b)  # NaN on both sides is not a difference.
    difference = np.where(both | (a == b), 0, difference)
    if np.isnan(difference).any():
        return "not a number on one side"
    return float(difference.max())


def _read(path: Path, metadata: Metadata, name: str) -> np.ndarray:
    entry = metadata.arrays[name]
    try:
        return np.asarray(read_arrays(path, {name: jax.ShapeDtypeStruct(entry.shape, entry.dtype)})[name])
    except CheckpointError as error:
        _fail(error)


def _opened(path: Path) -> tuple[Path, Metadata]:
    found = None if (path / "metadata.json").exists() else newest(path)
    if found is not None:
        path = found.path
    try:
        return path, read_metadata(path)
    except CheckpointError as error:
        _fail(error)


def _read_state(path: Path) -> list[dict[str, object]]:
    try:
        return read_state(path)
    except CheckpointError as error:
        _fail(error)


def _fail(error: CheckpointError) -> NoReturn:
    typer.echo(f"replicax ckpt: {error}", err=True)
    raise typer.Exit(2)


def _print_json(**values: object) -> None:
    typer.echo(json.dumps(values, indent=1))


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
