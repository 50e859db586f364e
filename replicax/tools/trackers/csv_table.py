"""A table of what was logged: a row for each step, a column for each name."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.checks import checked
from replicax.errors import ArgumentError
from replicax.tools.trackers.tracker import Tracker

_STEP = "step"


@checked
class CSV(Tracker):
    """Writes a CSV file with a row for each step, whose first column is `step`.

    Values logged for the same step one after the other stand in one row. A name that comes later gets a new column; the
    file is then written anew, under a temporary name, and replaced. Each row is written through at once. Numbers are
    written so that they are read as the same float64.

    Args:
        path: The file; its folder is made. Hyperparameters are written beside it, as `<name>.hyperparameters.json`.
        append: Whether to go on with a file that is there, as after a restart; otherwise it is replaced.

    Raises:
        ArgumentError: The file cannot be written, or what is there is no such table.

    Example:
        >>> import pathlib, tempfile
        >>> import replicax as rx
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> with rx.trackers.CSV(path) as tracker:
        ...     tracker.log({"loss": 0.5}, step=0)
        ...     tracker.log({"loss": 0.25}, step=1)
        >>> path.read_text().split()
        ['step,loss', '0,0.5', '1,0.25']
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False):
        super().__init__()
        self.path, self.append = Path(path), append
        self._columns: list[str] = []
        self._row: dict[str, str] = {}
        self._end = 0  # where the last row begins in the file

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if (self.append or self._goes_on) and self.path.exists() and self.path.stat().st_size:
                self._read()
            else:
                self._columns, self._row = [_STEP], {}
                self._write_all([])
        except OSError as error:
            raise ArgumentError(f"The table {self.path} cannot be written: {error}.") from error

    def _read(self) -> None:
        rows = self._rows()
        if not rows or rows[0][:1] != [_STEP]:
            raise ArgumentError(f"{self.path} is no table of a tracker: its first column is not {_STEP!r}.")
        self._columns = rows[0]
        whole = [row for row in rows[1:] if len(row) == len(self._columns)]  # A last row may have been cut off.
        self._row = dict(zip(self._columns, whole[-1], strict=True)) if whole else {}
        self._write_all(whole[:-1])
        self._write_row()

    def _rows(self) -> list[list[str]]:
        with open(self.path, newline="", encoding="utf-8") as file:
            return list(csv.reader(file))

    def _write(self, values: Mapping[str, float], step: int) -> None:
        new = [name for name in values if name not in self._columns]
        if new:
            rows = self._rows()[1:]
            before = rows[:-1] if self._row else rows
            self._columns += new
            self._write_all([row + [""] * len(new) for row in before])
            if self._row:
                self._write_row()
        if self._row.get(_STEP) != str(step):
            self._row = {_STEP: str(step)}
            self._end = self.path.stat().st_size
        self._row |= {name: repr(value) for name, value in values.items()}
        self._write_row()

    def _write_all(self, rows: list[list[str]]) -> None:
        """Replaces the file by the header and `rows`; the present row is not among them."""
        part = self.path.with_name(f".{self.path.name}.part")
        with open(part, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([self._columns, *rows])
        os.replace(part, self.path)
        self._end = self.path.stat().st_size

    def _write_row(self) -> None:
        """Writes the present row at the end of the file, in place of an earlier state of it."""
        with open(self.path, "r+", newline="", encoding="utf-8") as file:
            file.seek(self._end)
            csv.writer(file, lineterminator="\n").writerow([self._row.get(name, "") for name in self._columns])
            file.truncate()

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        path = self.path.with_name(f"{self.path.stem}.hyperparameters.json")
        path.write_text(json.dumps(dict(values), indent=2, default=str) + "\n", encoding="utf-8")

    def _close(self) -> None:
        """Does nothing: each row is in the file already."""
