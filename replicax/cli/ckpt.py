"""`replicax ckpt`: the contents of a checkpoint, damage to it, and differences between two."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, NoReturn, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from replicax.cli.checkpoint_files import Opened, opened
from replicax.errors import ArgumentError, CheckpointError, ReplicaxError

ckpt = typer.Typer(help="Look into checkpoints: `inspect`, `verify`, `diff`.", no_args_is_help=True)

_WhereTo = Annotated[
    str,
    typer.Argument(
        help="A checkpoint, TensorFlow's too, or a directory of them: then the newest. On a disk, or gs://, s3://."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_T = TypeVar("_T")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@ckpt.command()
def inspect(
    path: _WhereTo,
    as_json: _Json = False,
    values: Annotated[bool, typer.Option("--values", help="Read them too, and print the first and last few.")] = False,
) -> None:
    """List the arrays of a checkpoint: name, shape, dtype, bytes.

    Of a checkpoint of TensorFlow's also the names of the variables and of what optimizers keep for them.
    """
    found = _opened(path)
    arrays = {name: _described(found, name, values) for name in found.arrays}
    states = _told(found.states)
    total = sum(array.nbytes for array in found.arrays.values())
    if as_json:
        _print_json(path=str(found.path), step=found.step, arrays=arrays, states=states, bytes=total, **found.facts)
        return
    console = Console()
    table = _table(found, arrays)
    if console.is_terminal:
        console.print(table)
    else:
        _print_lines(table)
    step = _step(found)
    console.print(
        f"{found.path}: {step}, {len(arrays)} arrays, {_size(total)}, {found.written}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if states:
        console.print(f"Also saved: {', '.join(states)}", highlight=False, markup=False)


@ckpt.command()
def verify(path: _WhereTo, as_json: _Json = False) -> None:
    """Read a checkpoint and compare its checksums. Exit code 1 if a file is damaged."""
    found = _opened(path)
    damaged = found.damaged()
    problems = {file: problem for file, (problem, _) in damaged.items()}
    arrays = {file: array for file, (_, array) in damaged.items()}
    if as_json:
        _print_json(path=str(found.path), step=found.step, files=found.files, damaged=problems, arrays=arrays)
    elif damaged:
        for file, problem in problems.items():
            named = f" (array {arrays[file]})" if arrays[file] not in ("", file) else ""
            typer.echo(f"{found.path / file} {problem}{named}" if named or not arrays[file] else problem)
    else:
        typer.echo(f"{found.path}: {_step(found)}: {found.files}, all as they were written")
    if damaged:
        raise typer.Exit(1)


@ckpt.command()
def diff(path: _WhereTo, other: _WhereTo, as_json: _Json = False) -> None:
    """Compare two checkpoints array by array. Exit code 1 if they differ."""
    found = dict(_differences(_opened(path), _opened(other)))
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


def _described(found: Opened, name: str, values: bool) -> dict[str, object]:
    array = found.arrays[name]
    described: dict[str, object] = {"shape": list(array.shape), "dtype": array.dtype, "bytes": array.nbytes}
    if array.about:
        described["variable"] = array.about
    if values and array.dtype != "?":
        shown = np.array2string(_read(found, name), threshold=6, edgeitems=2, precision=6, separator=", ")
        described["values"] = " ".join(shown.split())
    return described


def _step(found: Opened) -> str:
    return "no step" if found.step is None else f"step {found.step}"


def _table(found: Opened, arrays: Mapping[str, Mapping[str, object]]) -> Table:
    """Returns a table of the arrays, with the columns for which there is something to say."""
    more = [column for column in ("variable", "values") if any(column in array for array in arrays.values())]
    table = Table(Column("Name", overflow="fold"), "Shape", "Dtype", "Size", *(column.capitalize() for column in more))
    for name, array in found.arrays.items():
        told = (escape(str(arrays[name].get(column, ""))) for column in more)
        table.add_row(escape(array.shown or name), str(list(array.shape)), array.dtype, _size(array.nbytes), *told)
    return table


def _print_lines(table: Table) -> None:
    """Prints a table for programs such as `grep`: each row is one line."""
    columns = [[str(column.header), *(Text.from_markup(str(cell)).plain for cell in column.cells)]
               for column in table.columns]  # fmt: skip
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _differences(first: Opened, second: Opened) -> Iterator[tuple[str, float | str]]:
    """Yields, for each name in one of them, the largest absolute difference or a text why there is none."""
    for name in dict.fromkeys([*first.arrays, *second.arrays]):
        if name not in second.arrays:
            yield name, f"only in {first.path}"
        elif name not in first.arrays:
            yield name, f"only in {second.path}"
        elif first.arrays[name].shape != second.arrays[name].shape:
            yield name, f"shape {list(first.arrays[name].shape)} and {list(second.arrays[name].shape)}"
        elif "?" in (first.arrays[name].dtype, second.arrays[name].dtype):
            yield name, "of a type that only TensorFlow can read"
        else:
            yield name, _largest_difference(_read(first, name), _read(second, name))


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float | str:
    if a.size == 0 or (a == b).all():
        return 0
    if a.dtype.hasobject or b.dtype.hasobject:
        return "other strings"
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


def _read(found: Opened, name: str) -> np.ndarray:
    return _told(lambda: found.read(name))


def _opened(path: str) -> Opened:
    return _told(lambda: opened(path))


def _told(read: Callable[[], _T]) -> _T:
    """Returns what `read` returns; if the checkpoint is damaged, tells it and exits."""
    try:
        return read()
    except (ArgumentError, CheckpointError) as error:
        _fail(error)


def _fail(error: ReplicaxError) -> NoReturn:
    typer.echo(f"replicax ckpt: {error}", err=True)
    raise typer.Exit(2)


def _print_json(**values: object) -> None:
    typer.echo(json.dumps(values, indent=1))


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
