"""The folder of an exporter: exports that are named by the time, complete or absent; old ones are removed."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from replicax.errors import ArgumentError
from replicax.estimator.journal import Metrics, plain, replace_file

_NAME = re.compile(r"\d{10,}")
_BEST = "best_eval_result.json"
_UNFINISHED = ".unfinished-"


class ExportFolder:
    """The exports of one exporter: folders whose names are seconds since 1970, each later than those before."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()

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
        replace_file(self.path / _BEST, json.dumps(plain(result)))
