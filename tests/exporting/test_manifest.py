"""The manifest of an exported function, as others may have left it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import replicax as rx
from replicax.errors import ExportError
from tests.forged import signed

FILE = "manifest.json"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weight = rx.Variable(jnp.ones(3), name="w")
    return rx.export(
        lambda x, scale: {"y": x * weight.value * scale}, tmp_path_factory.mktemp("e") / "f", jnp.ones(3), 2.0
    )


@pytest.fixture
def path(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "f"))


def forge(path: Path, change: Callable[[Any], Any]) -> None:
    """Changes the manifest as somebody would who knows how its checksum is made."""
    document = json.loads((path / FILE).read_text())
    change(document)
    (path / FILE).write_text(signed(document))


def test_what_is_exported_is_loaded(path: Path):
    np.testing.assert_array_equal(rx.load_export(path)(jnp.ones(3), 2.0)["y"], [2, 2, 2])


def test_any_other_value_is_found(path: Path):
    (path / FILE).write_text((path / FILE).read_text().replace('"assigned": false', '"assigned": true'))
    with pytest.raises(ExportError, match="not as it was written"):
        rx.load_export(path)


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "no program": lambda d: d["programs"].clear(),
    "a program elsewhere": lambda d: d["programs"].update({"../f": "0" * 64}),
    "variables that are a number": lambda d: d.update(variables=3),
    "a variable without a name": lambda d: d["variables"][0].pop("name"),
    "a variable that is assigned": lambda d: d["variables"][0].update(assigned=True),
    "no variable": lambda d: d["variables"].clear(),
    "an input of Python objects": lambda d: d["inputs"][0].update(dtype="object"),
    "an input of no dtype": lambda d: d["inputs"][0].update(dtype="float33"),
    "a negative length": lambda d: d["inputs"][0].update(shape=[-1]),
    "a layout that is a number": lambda d: d["inputs"][0].update(layout=1),
    "arguments of nothing": lambda d: d.update(arguments=None),
    "an argument twice": lambda d: d.update(arguments={"list": [{"leaf": 0}, {"leaf": 0}]}),
    "a result too many": lambda d: d.update(results={"list": [{"leaf": 0}, {"leaf": 1}]}),
    "a mesh of names": lambda d: d.update(mesh=["x"]),
    "another format": lambda d: d.update(format=1),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_manifest_is_refused(path: Path, forgery: str):
    forge(path, FORGERIES[forgery])
    with pytest.raises(ExportError):
        rx.load_export(path)


@pytest.mark.parametrize("text", [b"", b"[" * 200_000, b"null", b"[1]", b"\xff\xfe", b'{"format": "2"}'], ids=range(6))
def test_what_is_no_manifest_is_refused(path: Path, text: bytes):
    (path / FILE).write_bytes(text)
    with pytest.raises(ExportError):
        rx.load_export(path)


def test_a_program_that_jax_cannot_read_is_an_error(path: Path):
    program = b"no program at all"
    (path / "portable.stablehlo").write_bytes(program)
    with pytest.raises(ExportError, match="damaged"):
        rx.load_export(path)
    forge(path, lambda d: d["programs"].update({"portable.stablehlo": hashlib.sha256(program).hexdigest()}))
    with pytest.raises(ExportError, match="cannot read the program"):
        rx.load_export(path)


SMALL = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), SMALL)
def test_any_value_in_any_place_is_refused_or_loaded(exported: Path, path: Path, data: st.DataObject, value: Any):
    shutil.copy(exported / FILE, path / FILE)

    def change(document: Any) -> None:
        place = document
        while True:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
                break
            place = place[key]
        place[key] = value

    forge(path, change)
    with contextlib.suppress(ExportError, rx.errors.CheckpointError):
        assert list(rx.load_export(path).variables)
