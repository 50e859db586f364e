"""The Python files beside a script: they travel with it to machines that do not have them."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from replicax.errors import LaunchError

_MOST_ENTRIES = 20_000
_MOST_BYTES = 32 * 2**20
_NOT_SOURCES = ("__pycache__", "node_modules", "site-packages")


def packed_sources(folder: Path) -> bytes:
    """Returns a zip file of all Python files in a folder and below, without hidden folders and environments."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        size = 0
        for path in _python_files(folder):
            try:
                content = path.read_bytes()
            except OSError as error:
                raise LaunchError(f"A file beside the script cannot be read: {error}.") from error
            size += len(content)
            if size > _MOST_BYTES:
                raise _too_much(folder, f"more than {_MOST_BYTES // 2**20} MiB of Python files")
            archive.writestr(path.relative_to(folder).as_posix(), content)
    return packed.getvalue()


def unpack_sources(packed: bytes, folder: str) -> None:
    """Writes the files of `packed_sources` into a folder."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(folder)


def _python_files(folder: Path) -> Iterator[Path]:
    entries = 0
    for parent, folders, files in os.walk(folder):
        entries += len(folders) + len(files)
        if entries > _MOST_ENTRIES:
            raise _too_much(folder, f"more than {_MOST_ENTRIES} files and folders")
        folders[:] = sorted(name for name in folders if _may_have_sources(Path(parent), name))
        yield from (Path(parent, name) for name in sorted(files) if name.endswith(".py"))


def _may_have_sources(parent: Path, name: str) -> bool:
    is_environment = (parent / name / "pyvenv.cfg").exists()
    return not name.startswith(".") and name not in _NOT_SOURCES and not is_environment


def _too_much(folder: Path, what: str) -> LaunchError:
    return LaunchError(
        f"The folder {str(folder)!r} has {what}. All Python files in the script's folder are sent to the workers: put "
        "the script into a folder of its own."
    )
