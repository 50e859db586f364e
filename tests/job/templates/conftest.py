"""Programs that stand for those of a cluster."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def programs(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Makes programs that write their arguments and end with a given code; returns an environment that finds them."""

    def make(**codes: int) -> dict[str, str]:
        for name, code in codes.items():
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                f'#!/bin/sh\nprintf "%s\\0" "$@" > "{tmp_path}/{name}.args"\nenv -0 > "{tmp_path}/env"\nexit {code}\n'
            )
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    return make
