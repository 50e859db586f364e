"""Reads back what trackers have written, with the services' own packages where these can read."""

from __future__ import annotations

import csv
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEADER_OF_FILE, _HEADER = 32768, 7, 7  # bytes of LevelDB's log, which wandb writes
_FULL, _FIRST, _LAST = 1, 2, 4  # kinds of its parts

_SECONDS_TO_WAIT = 60

Series = dict[str, list[tuple[int, float]]]


def table(path: Path) -> Series:
    """Returns step and value of all that a CSV file has, by name."""
    found: Series = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            step = int(row.pop("step"))
            for name, value in row.items():
                if value:
                    found.setdefault(name, []).append((step, float(value)))
    return found


def wandb_records(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yields kind and content of the records of all offline runs in a folder, in the order of the runs.

    A process of wandb's writes them, which may go on for a moment after `finish` has returned: they are waited for.
    """
    deadline = time.monotonic() + _SECONDS_TO_WAIT
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        while not any(kind == "exit" for kind, _ in _records(path)):
            assert time.monotonic() < deadline, f"wandb has not ended {path}"
            time.sleep(0.05)
        yield from _records(path)


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields those of one file. wandb has no reader in Python any more; its own protocol buffers read the records."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), _HEADER_OF_FILE, b""
    assert data.startswith(b":W&B") or not data
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part, at = data[at + _HEADER : at + _HEADER + length], at + _HEADER + length
        whole = part if kind in (_FULL, _FIRST) else whole + part
        if at > len(data):
            return  # The end is not on disk yet.
        if kind in (_FULL, _LAST):
            record = Record.FromString(whole)
            name = record.WhichOneof("record_type")
            yield name, getattr(record, name)


def wandb_series(folder: Path) -> Series:
    """Returns step and value of all that offline runs have logged, by name."""
    found: Series = {}
    for kind, record in wandb_records(folder):
        if kind == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.item}
            for name, value in row.items():
                if name != "step" and not name.startswith("_"):
                    found.setdefault(name, []).append((int(row["step"]), value))
    return found


def wandb_settings(folder: Path) -> dict[str, Any]:
    """Returns the configuration of offline runs."""
    return {
        item.key or "/".join(item.nested_key): json.loads(item.value_json)
        for kind, record in wandb_records(folder)
        if kind == "config"
        for item in record.update
        if not (item.key or item.nested_key[0]).startswith("_")
    }


def wandb_ids(folder: Path) -> list[str]:
    """Returns the ids of offline runs."""
    return [record.run_id for kind, record in wandb_records(folder) if kind == "run"]


def mlflow_runs(uri: str, experiment: str) -> list[Any]:
    """Returns the runs of an experiment."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


def mlflow_series(uri: str, experiment: str) -> Series:
    """Returns step and value of all metrics of the only run of an experiment, by name."""
    from mlflow.tracking import MlflowClient

    (run,) = mlflow_runs(uri, experiment)
    histories = {
        name: MlflowClient(tracking_uri=uri).get_metric_history(run.info.run_id, name) for name in run.data.metrics
    }
    return {name: [(each.step, each.value) for each in history] for name, history in histories.items()}
