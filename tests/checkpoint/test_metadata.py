"""`metadata.json`, as others may have left it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import replicax as rx
from replicax.checkpoint import read_metadata
from replicax.errors import CheckpointError
from tests.forged import signed


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = rx.Checkpoint(v=np.arange(3.0), empty=np.zeros((0, 2)), step=1)
    checkpoint.add_note("epoch", lambda: {1: float("nan")})
    return checkpoint.write(tmp_path_factory.mktemp("metadata") / "c", step=4)


@pytest.fixture
def document(path: Path) -> Any:
    file = path / "metadata.json"
    text = file.read_text()
    yield json.loads(text)
    file.write_text(text)


def forge(path: Path, document: dict[str, Any]) -> None:
    (path / "metadata.json").write_text(signed(document))


def test_what_is_written_is_read(path: Path):
    metadata = read_metadata(path)
    assert (metadata.step, metadata.processes) == (4, 1)
    assert {name: entry.shape for name, entry in metadata.arrays.items()} == {"v": (3,), "empty": (0, 2)}
    assert list(metadata.notes["epoch"]) == ["1"]


def test_blanks_and_the_order_of_keys_do_not_count(path: Path, document: Any):
    (path / "metadata.json").write_text(json.dumps(dict(reversed(document.items())), indent=7))
    assert read_metadata(path).step == 4


def test_any_other_value_is_found(path: Path, document: Any):
    document["step"] = 5
    (path / "metadata.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="not as it was written"):
        read_metadata(path)


def test_a_checkpoint_of_the_first_format_has_no_checksum_of_its_own(path: Path, document: Any):
    del document["sha256"]
    (path / "metadata.json").write_text(json.dumps({**document, "format": 1}))
    assert read_metadata(path).step == 4
    (path / "metadata.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="no 'sha256'"):
        read_metadata(path)


def test_a_later_format_is_named(path: Path, document: Any):
    forge(path, {**document, "format": 3})
    with pytest.raises(CheckpointError, match="has format 3; this version of replicax reads up to 2"):
        read_metadata(path)


def _last_file(document: Any, array: str) -> str:
    return max(name for name in document["files"] if name.startswith(f"{document['arrays'][array]['folder']}/"))


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "a path that leads out": lambda d: d["files"].update({"../../secret": {"bytes": 0, "sha256": "0" * 64}}),
    "an absolute path": lambda d: d["files"].update({"/etc/passwd": {"bytes": 0, "sha256": "0" * 64}}),
    "a path with a zero": lambda d: d["files"].update({"a\0b": {"bytes": 0, "sha256": "0" * 64}}),
    "a folder that leads out": lambda d: d["arrays"]["v"].update(folder="../v"),
    "a negative size": lambda d: d["files"]["_METADATA"].update(bytes=-1),
    "a size that is true": lambda d: d["files"]["_METADATA"].update(bytes=True),
    "no digest": lambda d: d["files"]["_METADATA"].update(sha256="abc"),
    "another digest of an array": lambda d: d["arrays"]["v"].update(sha256="0" * 64),
    "a file of an array under another name": lambda d: d["files"].update(
        {f"{d['arrays']['v']['folder']}/other": d["files"].pop(_last_file(d, "v"))}
    ),
    "a shape that is no list": lambda d: d["arrays"]["v"].update(shape=3),
    "a shape of strings": lambda d: d["arrays"]["v"].update(shape=["3"]),
    "a negative length": lambda d: d["arrays"]["v"].update(shape=[-3]),
    "numbers without files": lambda d: d["arrays"]["empty"].update(shape=[1, 2]),
    "no dtype": lambda d: d["arrays"]["v"].update(dtype="float33"),
    "Python objects": lambda d: d["arrays"]["v"].update(dtype="object"),
    "a structure": lambda d: d["arrays"]["v"].update(dtype="f4,f4"),
    "no process": lambda d: d.update(processes=0),
    "a billion processes": lambda d: d.update(processes=10**9),
    "arrays in a list": lambda d: d.update(arrays=[]),
    "a step that is text": lambda d: d.update(step="4"),
    "an infinite step": lambda d: d.update(step=float("inf")),
    "no notes": lambda d: d.pop("notes"),
    "an array that is a number": lambda d: d["arrays"].update(v=1),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_document_is_refused(path: Path, document: Any, forgery: str):
    FORGERIES[forgery](document)
    forge(path, document)
    with pytest.raises(CheckpointError, match="damaged"):
        read_metadata(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"format": 2',
        b"1e999",
        b"9" * 9999,
    ],
    ids=range(10),
)
def test_what_is_no_document_is_refused(path: Path, document: Any, text: bytes):
    del document
    (path / "metadata.json").write_bytes(text)
    with pytest.raises(CheckpointError, match="damaged"):
        read_metadata(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), JSON)
def test_any_value_in_any_place_is_refused_or_read(path: Path, document: Any, data: st.DataObject, value: Any):
    """Nothing but a `CheckpointError` comes of a document with a wrong value somewhere in it."""
    changed = json.loads(json.dumps(document))
    place = changed
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = value
    forge(path, changed)
    with contextlib.suppress(CheckpointError):
        assert set(read_metadata(path).arrays) <= {"v", "empty"}
