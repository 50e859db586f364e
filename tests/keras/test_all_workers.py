from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import replicax.keras.all_workers as together
from replicax.contracts.group import current_group
from replicax.errors import CheckpointError, WorkersDisagreeError
from replicax.group.health import status_of


@pytest.fixture
def hear(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has the other workers say something where this one exchanges; returns what this one waits at meanwhile."""
    waits: list[str] = []

    def others(*messages: bytes) -> list[str]:
        def exchanged(own: bytes) -> list[bytes]:
            waits.append(status_of().waits_at)
            return [own, *messages]

        monkeypatch.setattr(current_group(), "messages", exchanged)
        return waits

    return others


def told(what: str, value: Any) -> bytes:
    return json.dumps({"what": what, "value": value}).encode()


def test_the_same_logs_are_the_same(hear: Callable[..., list[str]]):
    waits = hear(told("the names of logs", ["worker:1", ["accuracy", "loss"]]))
    together.check_same_names(["accuracy", "loss"], "worker:0")
    assert waits == ["the names of logs"]


def test_other_logs_are_named(hear: Callable[..., list[str]]):
    hear(told("the names of logs", ["worker:1", ["loss", "mine"]]))
    with pytest.raises(WorkersDisagreeError) as raised:
        together.check_same_names(["loss"], "worker:0")
    assert raised.value.found == {"worker:1": ["mine"]}


@pytest.mark.parametrize("message", [told("fit", 1), b"", b"\xff\x00", b"[]", b"7"])
def test_a_worker_that_is_elsewhere_is_an_error(hear: Callable[..., list[str]], message: bytes):
    hear(message)
    with pytest.raises(WorkersDisagreeError, match="things to do together") as raised:
        together.check_same_names(["loss"], "worker:0")
    assert raised.value.exit_code == 72
    assert raised.value.found["process 0"] == ["the names of logs"]


def digest(path: Path) -> str:
    if not path.exists():
        return "which cannot be read"
    return f"of digest {hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()}"


def test_files_that_differ_are_told_on_all(hear: Callable[..., list[str]], tmp_path: Path):
    own, same, other = (tmp_path / name for name in ("own", "same", "other"))
    for path, content in ((own, b"1"), (same, b"1"), (other, b"2")):
        path.write_bytes(content)
    hear(told("load_weights", [str(same), digest(same)]))
    together.check_same_weights(own)
    for theirs in (other, tmp_path / "absent"):
        hear(told("load_weights", [str(theirs), digest(theirs)]))
        with pytest.raises(
            CheckpointError, match=rf"different files \(process 0: .*own, of digest .*; process 1: {theirs}"
        ):
            together.check_same_weights(own)
