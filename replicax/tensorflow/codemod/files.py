"""Scripts on disk: found, read in their encoding, and replaced whole."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from replicax.errors import ArgumentError


class Source(NamedTuple):
    """A script as it is on disk."""

    path: Path
    text: str  # with the line endings of the file
    encoding: str  # that the file declares, or UTF-8

    def replace(self, text: str) -> None:
        """Replaces the file's contents at once: readers see the old file or the new one."""
        try:
            data = text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise ArgumentError(
                f"{self.path} declares {self.encoding}, which cannot hold the converted script."
            ) from error
        handle, written = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            shutil.copymode(self.path, written)
            os.replace(written, self.path)
        except BaseException:
            Path(written).unlink(missing_ok=True)
            raise


def scripts(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields files, and the Python files in folders, except for hidden folders and virtual environments."""
    for path in paths:
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*.py") if not _is_beside(each.relative_to(path)))
        elif path.suffix == ".ipynb":
            raise ArgumentError(
                f"{path} is a notebook; scripts only are converted. `jupyter nbconvert --to script {path}` writes one: "
                "delete its lines with % and ! first."
            )
        elif path.is_file():
            yield path
        else:
            raise ArgumentError(f"There is no file or folder {path}.")


def read(path: Path) -> Source:
    """Reads a script."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return Source(path, data.decode(encoding), encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"{path} cannot be decoded ({error}). A script that is not UTF-8 says so in its first lines: "
            "`# -*- coding: latin-1 -*-`."
        ) from error


def _is_beside(path: Path) -> bool:
    return any(part.startswith(".") or part in ("venv", "site-packages", "__pycache__") for part in path.parts[:-1])
