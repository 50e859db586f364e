"""Event files of TensorBoard, read back: the records by our reader, the messages by tensorboardX's classes.

TensorBoard's own loader, of 80 MB with what it needs, finds the same: `tests/test_events.py`, by night.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replicax as rx

messages = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs pip install 'replicax[tensorboard]'")

Series = dict[str, list[tuple[int, Any]]]


def series(folder: Path, kind: str) -> Series:
    """Returns step and value of all of a kind (`simple_value`, `histo`, `tensor`) in a folder's files, by name."""
    found: Series = {}
    rows = rx.data.read_tfrecord(str(folder / "*tfevents*")).map(lambda record: np.frombuffer(record, np.uint8))
    for [record] in rows.batch(1):
        event = messages.Event.FromString(record.tobytes())
        for value in event.summary.value:
            if value.WhichOneof("value") == kind:
                found.setdefault(value.tag, []).append((event.step, getattr(value, kind)))
    return found


def scalars(folder: Path) -> Series:
    """Returns step and value of each scalar, by name."""
    return series(folder, "simple_value")


def text(folder: Path, name: str) -> str:
    """Returns the one text of that name."""
    [(_, tensor)] = series(folder, "tensor")[f"{name}/text_summary"]
    return tensor.string_val[0].decode()
