"""`tf.train.Example` and `tf.train.SequenceExample`, parsed without TensorFlow: by Google's protobuf."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicax.checks import checked
from replicax.data.extras import needed
from replicax.errors import ArgumentError, DataError

_KINDS = {"int64": ("int64_list", np.int64), "float32": ("float_list", np.float32), "string": ("bytes_list", object)}
_NAMES = {"int64_list": "int64", "float_list": "float32", "bytes_list": "string"}


class FixedLenFeature(NamedTuple):
    """A feature with the same number of values in each record, as `tf.io.FixedLenFeature`.

    Attributes:
        shape: Its shape: `[]` for one value.
        dtype: `"int64"`, `"float32"` or `"string"` (bytes); a dtype of NumPy's or TensorFlow's of that name.
        default_value: What a record without it has; None if each record must have it.

    Example:
        >>> rx.data.FixedLenFeature([28, 28], "float32").shape
        [28, 28]
    """

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature with any number of values, as `tf.io.VarLenFeature`; an array of one dimension (not a sparse tensor).

    Attributes:
        dtype: As in `FixedLenFeature`.

    Example:
        >>> rx.data.VarLenFeature("int64").dtype
        'int64'
    """

    dtype: Any


class FixedLenSequenceFeature(NamedTuple):
    """A feature with any number of values of one shape, as `tf.io.FixedLenSequenceFeature`; an array `[n, *shape]`.

    Attributes:
        shape: The shape of one of them.
        dtype: As in `FixedLenFeature`.
        allow_missing: Whether a record may lack it; then it has no values.
        default_value: Not used here: rows are not padded when they are parsed.

    Example:
        >>> rx.data.FixedLenSequenceFeature([2], "float32", allow_missing=True).allow_missing
        True
    """

    shape: Sequence[int]
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


class _Spec(NamedTuple):
    """A feature, however it was written."""

    kind: str
    shape: tuple[int, ...]
    field: str  # of the message that has its values
    dtype: Any
    default: Any
    may_miss: bool


def parse_example(serialized: bytes, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the features of a serialized `tf.train.Example`, as `tf.io.parse_single_example` does.

    Args:
        serialized: A record.
        features: For each name a `FixedLenFeature`, `VarLenFeature` or `FixedLenSequenceFeature`. TensorFlow's own
            objects of these names do, too.

    Returns:
        For each name an array. Of a `FixedLenFeature` it has its shape (one value of dtype "string" is `bytes`), of a
        `VarLenFeature` one dimension.

    Raises:
        ArgumentError: `features` are not such objects.
        DataError: The record is no `Example`, lacks a feature, or one has another dtype or number of values.

    Example:
        >>> from google.protobuf.internal.encoder import _VarintBytes
        >>> value = b"\\x1a\\x03\\x0a\\x01\\x07"  # int64_list { value: 7 }
        >>> entry = b"\\x0a\\x05label\\x12" + bytes([len(value)]) + value
        >>> feature = b"\\x0a" + bytes([len(entry)]) + entry
        >>> example = b"\\x0a" + bytes([len(feature)]) + feature
        >>> rx.data.parse_example(example, {"label": rx.data.FixedLenFeature([], "int64")})
        {'label': array(7)}
    """
    if not isinstance(serialized, (bytes, bytearray, memoryview)):
        raise ArgumentError(
            f"`serialized` is one record (bytes), got {serialized!r:.80}. Parse rows one by one: rows.map(...)."
        )
    return ExampleParser(features)(serialized)


class ExampleParser:
    """Parses records, as `parse_example`, with features that have been checked."""

    def __init__(self, features: Mapping[str, Any]):
        self._specs = _specs(features)

    def __call__(self, serialized: bytes) -> dict[str, Any]:
        found = _parsed("Example", serialized).features.feature
        return {name: _value(name, spec, found) for name, spec in self._specs}


@checked
def parse_sequence_example(
    serialized: bytes,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the features of a serialized `tf.train.SequenceExample`, as `tf.io.parse_single_sequence_example` does.

    Args:
        serialized: A record.
        context_features: Features of the record as a whole, as `parse_example` takes them.
        sequence_features: Features with a list of values for each frame. A `FixedLenSequenceFeature` gives an array
            `[frames, *shape]`, a `VarLenFeature` a list with an array for each frame.

    Returns:
        The features of the context, and those of the sequences.

    Raises:
        ArgumentError: The features are not such objects.
        DataError: The record is no `SequenceExample`, lacks a feature, or one has another dtype or number of values.

    Example:
        >>> rx.data.parse_sequence_example(b"", {}, {"words": rx.data.VarLenFeature("int64")})
        ({}, {'words': []})
    """
    message = _parsed("SequenceExample", serialized)
    context = {name: _value(name, spec, message.context.feature) for name, spec in _specs(context_features or {})}
    lists = message.feature_lists.feature_list
    sequences: dict[str, Any] = {}
    for name, spec in _specs(sequence_features or {}):
        if spec.kind == "FixedLenFeature":
            raise ArgumentError(f"{name!r}: a feature of a sequence is a FixedLenSequenceFeature or a VarLenFeature.")
        if name not in lists and spec.kind == "FixedLenSequenceFeature" and not spec.may_miss:
            raise DataError("the record does not have it (allow_missing=False).", feature=name)
        frames = [_values(name, spec, each) for each in lists[name].feature] if name in lists else []
        if spec.kind == "VarLenFeature":
            sequences[name] = frames
            continue
        shaped = [_shaped(name, frame, spec.shape) for frame in frames]
        sequences[name] = np.stack(shaped) if shaped else np.zeros((0, *spec.shape), spec.dtype)
    return context, sequences


def serialized_example(features: Mapping[str, Any]) -> bytes:
    """Returns a serialized `tf.train.Example` of features that are numbers, bytes, texts, or arrays of them."""
    message = _message_classes()["Example"]()
    for name, value in features.items():
        # NumPy would drop zeros at the end of bytes, and make texts of mixed values.
        values = _flat(value)
        feature = message.features.feature[name]
        if not values and np.asarray(value).dtype.kind == "f":
            feature.float_list.SetInParent()
        elif not values and np.asarray(value).dtype.kind in "iub":
            feature.int64_list.SetInParent()
        elif all(isinstance(each, (bytes, str)) for each in values):
            feature.bytes_list.value.extend(each.encode() if isinstance(each, str) else each for each in values)
        elif all(isinstance(each, int) for each in values):
            feature.int64_list.value.extend(map(int, values))  # Also bools, which protobuf refuses.
        elif all(isinstance(each, (int, float)) for each in values):
            feature.float_list.value.extend(values)
        else:
            raise ArgumentError(f"A feature is numbers, bytes or texts, got {value!r:.80} for {name!r}.")
    data: bytes = message.SerializeToString()
    return data


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in _flat(part)]
    return [value] if isinstance(value, (bytes, str)) else np.ravel(np.asarray(value)).tolist()


def _specs(features: Mapping[str, Any]) -> Sequence[tuple[str, _Spec]]:
    if not isinstance(features, Mapping):
        raise ArgumentError(f"`features` is a dict from names to features, got {features!r:.100}.")
    return [(name, _spec(name, feature)) for name, feature in features.items()]


def _spec(name: str, feature: Any) -> _Spec:
    kind = type(feature).__name__
    if kind not in ("FixedLenFeature", "VarLenFeature", "FixedLenSequenceFeature"):
        raise ArgumentError(
            f"`features`[{name!r}] is a FixedLenFeature, VarLenFeature or FixedLenSequenceFeature, got "
            f"{feature!r:.100}."
        )
    named = getattr(feature.dtype, "name", None)
    dtype = named if isinstance(named, str) else feature.dtype
    if dtype in (bytes, str, "bytes", "str"):
        dtype = "string"
    elif not (isinstance(dtype, str) and dtype in _KINDS):
        with contextlib.suppress(TypeError):
            dtype = np.dtype(dtype).name
    if dtype not in _KINDS:
        raise ArgumentError(
            f"`features`[{name!r}]: the dtype of a feature is 'int64', 'float32' or 'string', got {feature.dtype!r}."
        )
    shape = getattr(feature, "shape", ())
    shape = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    may_miss = bool(getattr(feature, "allow_missing", False))
    field, numpy = _KINDS[dtype]
    return _Spec(kind, shape, field, numpy, getattr(feature, "default_value", None), may_miss)


def _value(name: str, spec: _Spec, found: Any) -> Any:
    is_there = name in found and found[name].WhichOneof("kind") is not None
    if spec.kind == "FixedLenFeature":
        if not is_there:
            if spec.default is None:
                raise DataError(f"the record does not have it; it has {sorted(found)!r:.200}.", feature=name)
            default = np.asarray(spec.default, spec.dtype)
            full = np.broadcast_to(default, spec.shape) if default.ndim == 0 else default.reshape(spec.shape)
            return full.item() if spec.dtype is object and not spec.shape else full.copy()
        return _shaped(name, _values(name, spec, found[name]), spec.shape)
    if not is_there:
        if spec.kind == "FixedLenSequenceFeature" and not spec.may_miss:
            raise DataError("the record does not have it (allow_missing=False).", feature=name)
        return np.zeros((0, *spec.shape), spec.dtype)
    values = _values(name, spec, found[name])
    if spec.kind == "VarLenFeature":
        return values
    each = int(np.prod(spec.shape))
    if len(values) % max(1, each):
        raise DataError(f"{len(values)} values are no whole number of shape {spec.shape}.", feature=name)
    return values.reshape(-1, *spec.shape)


def _values(name: str, spec: _Spec, feature: Any) -> np.ndarray:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return np.zeros(0, spec.dtype)
    if kind != spec.field:
        raise DataError(f"its values are of dtype {_NAMES[kind]!r}, not {_NAMES[spec.field]!r}.", feature=name)
    values = getattr(feature, kind).value
    if spec.dtype is not object:
        return np.array(values, spec.dtype)
    array = np.empty(len(values), object)
    array[:] = list(values)
    return array


def _shaped(name: str, values: np.ndarray, shape: tuple[int, ...]) -> Any:
    if values.size != int(np.prod(shape)):
        raise DataError(f"it has {values.size} values, not those of shape {shape}.", feature=name)
    return values[0] if values.dtype == object and not shape else values.reshape(shape)


def _parsed(kind: str, serialized: bytes) -> Any:
    message = _message_classes()[kind]()
    try:
        message.ParseFromString(bytes(serialized))
    except Exception as error:
        if type(error).__name__ != "DecodeError":  # protobuf's, which its implementations raise.
            raise
        raise DataError(f"the record is no tf.train.{kind} ({error}).") from error
    return message


@functools.cache
def _message_classes() -> dict[str, Any]:
    """Returns the classes of the messages, from their definition in tensorflow/core/example/example.proto."""
    needed("google.protobuf", "rx.data.parse_example")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FileDescriptorProto(name="replicax/example.proto", package="tensorflow", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, Any, str, bool]) -> Any:
        made = proto.message_type.add(name=name)
        for field_name, number, kind, of, repeated in fields:
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            made.field.add(name=field_name, number=number, type=kind, type_name=of or None, label=label)
        return made

    def mapped(name: str, entries: str, to: str) -> None:
        made = message(name, (entries, 1, field.TYPE_MESSAGE, f".tensorflow.{name}.Entry", True))
        entry = made.nested_type.add(name="Entry", options=descriptor_pb2.MessageOptions(map_entry=True))
        optional = field.LABEL_OPTIONAL
        entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=optional)
        entry.field.add(name="value", number=2, type=field.TYPE_MESSAGE, type_name=f".tensorflow.{to}", label=optional)

    message("BytesList", ("value", 1, field.TYPE_BYTES, "", True))
    message("FloatList", ("value", 1, field.TYPE_FLOAT, "", True))
    message("Int64List", ("value", 1, field.TYPE_INT64, "", True))
    lists = [("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")]
    feature = message(
        "Feature",
        *((name, number, field.TYPE_MESSAGE, f".tensorflow.{of}", False) for number, (name, of) in enumerate(lists, 1)),
    )
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    mapped("Features", "feature", "Feature")
    message("FeatureList", ("feature", 1, field.TYPE_MESSAGE, ".tensorflow.Feature", True))
    mapped("FeatureLists", "feature_list", "FeatureList")
    message("Example", ("features", 1, field.TYPE_MESSAGE, ".tensorflow.Features", False))
    message(
        "SequenceExample",
        ("context", 1, field.TYPE_MESSAGE, ".tensorflow.Features", False),
        ("feature_lists", 2, field.TYPE_MESSAGE, ".tensorflow.FeatureLists", False),
    )
    pool = descriptor_pool.DescriptorPool()  # Not the default one, in which TensorFlow registers the same names.
    pool.Add(proto)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        for name in ("Example", "SequenceExample", "Feature")
    }
