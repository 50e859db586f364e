"""`manifest.json`: the description of an exported function. It is checked before it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypedDict, cast

from replicax.checkpoint.json_fields import count_of, digest_of, dtype_of, field_of, parsed
from replicax.checkpoint.places import Place
from replicax.errors import ExportError
from replicax.exporting.pytrees import TreeDocument

MANIFEST, VARIABLES, PORTABLE, SHARDED = "manifest.json", "variables", "portable.stablehlo", "sharded.stablehlo"
_FORMAT = 2


class ArrayEntry(TypedDict):
    """An array that a program takes."""

    shape: list[int | str]  # the length of each dimension, or its name where it is symbolic
    dtype: str
    layout: list[str | list[str]] | None  # its entry for each dimension; None without a mesh


class VariableEntry(TypedDict):
    """A variable of the function."""

    name: str
    assigned: bool  # by the function
    shape: list[int]
    dtype: str
    layout: list[str | list[str]] | None  # its entry for each dimension; None without a mesh


class Manifest(TypedDict):
    """The description of an exported function."""

    jax: str  # the version that exported it
    function: str  # its name
    mesh: list[tuple[str, int]] | None  # name and size of each dimension; None without a mesh
    platforms: list[str]
    arguments: TreeDocument
    inputs: list[ArrayEntry]  # the leaves of the arguments that are inputs of the program
    results: TreeDocument
    variables: list[VariableEntry]  # those that it assigns come first
    programs: dict[str, str]  # SHA-256 by the name of the file
    why_not_portable: str  # why it cannot run without a mesh; empty if it can


def document_of(manifest: Manifest) -> bytes:
    """Returns the contents of a manifest's file, with a checksum of its own."""
    plain = json.loads(json.dumps({"format": _FORMAT, **manifest}))
    return f"{json.dumps({**plain, 'sha256': digest_of(plain)}, indent=1)}\n".encode()


def read_manifest(directory: Place) -> Manifest:
    """Returns the manifest of an exported function."""
    try:
        manifest = parsed((directory / MANIFEST).read_bytes())
        version = count_of(manifest, "format")
        if version == _FORMAT:
            _check(manifest)
    except FileNotFoundError:
        raise ExportError(f"There is no exported function in {directory}: it has no {MANIFEST}.") from None
    except RecursionError:
        raise ExportError(f"{directory / MANIFEST} is damaged: it is nested too deeply.") from None
    except (OSError, ValueError) as error:
        raise ExportError(f"{directory / MANIFEST} cannot be read, or is damaged: {error}") from error
    if version != _FORMAT:
        raise ExportError(f"{directory} has format {version}; this version reads format {_FORMAT}. Export it again.")
    return cast(Manifest, manifest)


def _check(manifest: dict[str, object]) -> None:
    digest = field_of(manifest, "sha256", str)
    if digest_of({key: value for key, value in manifest.items() if key != "sha256"}) != digest:
        raise ValueError("it is not as it was written")
    for text in ("function", "why_not_portable"):
        field_of(manifest, text, str)
    for file, digest in field_of(manifest, "programs", dict).items():
        if file not in (PORTABLE, SHARDED) or not isinstance(digest, str):
            raise ValueError(f"{file!r} is not a program")
    if manifest["why_not_portable"]:
        field_of(manifest, "mesh", list)
    else:
        field_of(manifest["programs"], PORTABLE, str)
    if manifest.get("mesh") is not None:
        field_of(manifest["programs"], SHARDED, str)
        for dim in field_of(manifest, "mesh", list):
            if not (isinstance(dim, list) and len(dim) == 2 and isinstance(dim[0], str) and type(dim[1]) is int):
                raise ValueError(f"{dim!r:.100} is not a dimension of a mesh")
    inputs = field_of(manifest, "inputs", list)
    for entry in inputs:
        _check_array(entry)
    for entry in field_of(manifest, "variables", list):
        field_of(entry, "name", str)
        field_of(entry, "assigned", bool)
        _check_array(entry, symbolic=False)
    if leaves_of(manifest.get("arguments")) != list(range(len(inputs))):
        raise ValueError("its arguments do not match its inputs")
    results = leaves_of(manifest.get("results"))
    if results != list(range(len(results))):
        raise ValueError("its results are not in order")


def _check_array(entry: Mapping[str, object], symbolic: bool = True) -> None:
    for length in field_of(entry, "shape", list):
        if not (symbolic and isinstance(length, str)) and (type(length) is not int or length < 0):
            raise ValueError(f"{length!r:.100} is not the length of a dimension")
    dtype_of(entry, "dtype")
    if entry.get("layout") is not None:
        for spec in field_of(entry, "layout", list):
            if not isinstance(spec, str) and not (isinstance(spec, list) and all(isinstance(s, str) for s in spec)):
                raise ValueError(f"{spec!r:.100} is not an entry of a layout")


def leaves_of(description: object) -> list[int]:
    """Returns the indices of the leaves in the structure of a pytree, in order."""
    if not isinstance(description, dict) or len(description) != 1:
        raise ValueError(f"{description!r:.100} is not the structure of a pytree")
    ((kind, content),) = description.items()
    if kind == "leaf":
        return [count_of(description, "leaf")]
    if kind == "value" and not isinstance(content, (dict, list)):
        return []
    if kind == "dict" and isinstance(content, dict):
        return [leaf for item in content.values() for leaf in leaves_of(item)]
    if kind in ("list", "tuple") and isinstance(content, list):
        return [leaf for item in content for leaf in leaves_of(item)]
    raise ValueError(f"{kind!r} is not a kind of pytree")
