"""One test for many names: a case for each of thousands costs the collection more than their checks do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

Name = TypeVar("Name")


def each(names: Iterable[Name], check: Callable[[Name], object]) -> None:
    """Calls `check` with each name, goes on after one that fails, and fails with all of them and what is wrong."""
    names = list(names)
    assert names, "there is nothing to check"
    found = [line for name in names if (line := _fault(name, check))]
    if found:
        pytest.fail(f"{len(found)} of {len(names)} fail:\n" + "\n".join(found), pytrace=False)


def _fault(name: Name, check: Callable[[Name], object]) -> str | None:
    try:
        check(name)
    except (Exception, pytest.fail.Exception) as error:
        where = traceback.extract_tb(error.__traceback__)[:2][-1]  # the line of `check`
        said = f"{name}: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return said.replace("\n", "\n    ")
    return None
