"""Scripts on disk are replaced whole, or stay as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicax.tensorflow.codemod.files import read


def test_a_script_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script = tmp_path / "script.py"
    script.write_text("x = 1\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        read(script).replace("x = 2\n")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
    assert script.read_text() == "x = 1\n"


def test_a_script_keeps_its_permissions(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("x = 1\n")
    script.chmod(0o750)
    read(script).replace("x = 2\n")
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("x = 2\n", 0o750)
