"""Small models, and small checkpoints that are written without TensorFlow: with names only, or with an object graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from replicax.tensorflow.checkpoints.crc32c import crc32c
from tests.migrate.bundles import entry, masked, message, number_of, shape, table, varint

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def dense_model(*widths: int, names: tuple[str, ...] = (), inputs: int = 4) -> keras.Model:
    """Returns a model of dense layers, which Keras numbers if they have no names."""
    given = names or (None,) * len(widths)
    layers = [keras.layers.Dense(width, name=name) for width, name in zip(widths, given, strict=True)]
    return keras.Sequential([keras.Input((inputs,)), *layers])


def numbers(*shape: int, start: float = 0) -> np.ndarray:
    """Returns numbers that differ from one another, and from those with another start."""
    return start + np.arange(np.prod(shape), dtype="float32").reshape(shape) / 64


def dense_tensors(*names: str, inputs: int = 4, width: int = 4) -> dict[str, np.ndarray]:
    """Returns kernels and biases of dense layers by TensorFlow 1's names."""
    tensors = {}
    for i, name in enumerate(names):
        tensors[f"{name}/kernel"] = numbers(inputs, width, start=10.0 * i)
        tensors[f"{name}/bias"] = numbers(width, start=10.0 * i + 5)
    return tensors


def write_graph(prefix: Path, values: Mapping[str, np.ndarray], full_names: Mapping[str, str] | None = None) -> Path:
    """Writes a checkpoint as `tf.train.Checkpoint` does, of a tree of objects.

    Args:
        prefix: The checkpoint.
        values: The variables by their object paths.
        full_names: Their full names.
    """
    nodes: dict[str, dict[str, int]] = {"": {}}
    for path in values:
        parts = path.split("/")
        for i, part in enumerate(parts):
            own, parent = "/".join(parts[: i + 1]), "/".join(parts[:i])
            if own not in nodes:
                nodes[own] = {}
                nodes[parent][part] = list(nodes).index(own)
    coded = []
    for path, children in nodes.items():
        fields: list = [(1, message((1, child), (2, name.encode()))) for name, child in children.items()]
        if path in values:
            full = (full_names or {}).get(path, path)
            key = f"{path}{_VALUE}"
            fields.append((2, message((1, b"VARIABLE_VALUE"), (2, full.encode()), (3, key.encode()))))
        coded.append((1, message(*fields)))
    tensors = {f"{path}{_VALUE}": value for path, value in values.items()}
    entries, data = {b"": message((1, 1), (3, message((1, 1))))}, b""
    for name, value in sorted(tensors.items()):
        raw = np.ascontiguousarray(value).tobytes()
        entries[name.encode()] = entry(number_of(value.dtype), value.shape, 0, len(data), raw)
        data += raw
    text = message(*coded)
    checksum = crc32c(len(text).to_bytes(4, "little"))
    stored = masked(checksum).to_bytes(4, "little")
    whole = masked(crc32c(text, crc32c(stored, checksum)))
    raw = varint(len(text)) + stored + text
    entries[b"_CHECKPOINTABLE_OBJECT_GRAPH"] = message(
        (1, 7), (2, shape(())), (4, len(data)), (5, len(raw)), (6, whole), fixed32=6
    )
    Path(f"{prefix}.index").write_bytes(table(entries))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data + raw)
    return prefix
