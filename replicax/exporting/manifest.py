"""`manifest.json`: what an exported function is, in JSON that is checked before anybody goes by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.checkpoint.documents import digest_of, parsed, taken, taken_count, taken_dtype
from replicax.errors import ExportError

MANIFEST, VARIABLES, PORTABLE, SHARDED = "manifest.json", "variables", "portable.stablehlo", "sharded.stablehlo"
_FORMAT = 2


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Writes a manifest, with a checksum of its own."""
    plain = json.loads(json.dumps({"format": _FORMAT, **manifest}))
    (directory / MANIFEST).write_text(json.dumps({**plain, "sha256": digest_of(plain)}, indent=1) + "\n")


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the manifest of an exported function.

    Raises:
        ExportError: There is none, it is damaged, or another version of replicax wrote it.
    """
    try:
        manifest = parsed((directory / MANIFEST).read_bytes())
        version = taken_count(manifest, "format")
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
    return manifest


def _check(manifest: Any) -> None:
    digest = taken(manifest, "sha256", str)
    if digest_of({key: value for key, value in manifest.items() if key != "sha256"}) != digest:
        raise ValueError("it is not as it was written")
    for text in ("function", "why_not_portable"):
        taken(manifest, text, str)
    for file, digest in taken(manifest, "programs", dict).items():
        if file not in (PORTABLE, SHARDED) or not isinstance(digest, str):
            raise ValueError(f"{file!r} is no program")
    if manifest["why_not_portable"]:
        taken(manifest, "mesh", list)
    else:
        taken(manifest["programs"], PORTABLE, str)
    if manifest.get("mesh") is not None:
        taken(manifest["programs"], SHARDED, str)
        for dim in taken(manifest, "mesh", list):
            if not (isinstance(dim, list) and len(dim) == 2 and isinstance(dim[0], str) and type(dim[1]) is int):
                raise ValueError(f"{dim!r:.100} is no dimension of a mesh")
    inputs = taken(manifest, "inputs", list)
    for entry in inputs:
        _check_array(entry)
    for entry in taken(manifest, "variables", list):
        taken(entry, "name", str)
        taken(entry, "assigned", bool)
        _check_array(entry)
    if leaves_of(manifest.get("arguments")) != list(range(len(inputs))):
        raise ValueError("its arguments do not go with its inputs")
    results = leaves_of(manifest.get("results"))
    if results != list(range(len(results))):
        raise ValueError("its results are in no order")


def _check_array(entry: Any) -> None:
    for length in taken(entry, "shape", list):
        if not isinstance(length, str) and (type(length) is not int or length < 0):
            raise ValueError(f"{length!r:.100} is no length of an array")
    taken_dtype(entry, "dtype")
    if entry.get("layout") is not None:
        for spec in taken(entry, "layout", list):
            if not isinstance(spec, str) and not (isinstance(spec, list) and all(isinstance(s, str) for s in spec)):
                raise ValueError(f"{spec!r:.100} is no entry of a layout")


def leaves_of(description: Any) -> list[int]:
    """Returns the numbers of the leaves of a described nest, in order.

    Raises:
        ValueError: It describes no nest.
    """
    if not isinstance(description, dict) or len(description) != 1:
        raise ValueError(f"{description!r:.100} describes no nest")
    ((kind, content),) = description.items()
    if kind == "leaf":
        return [taken_count(description, "leaf")]
    if kind == "value" and not isinstance(content, (dict, list)):
        return []
    if kind == "dict" and isinstance(content, dict):
        return [leaf for item in content.values() for leaf in leaves_of(item)]
    if kind in ("list", "tuple") and isinstance(content, list):
        return [leaf for item in content for leaf in leaves_of(item)]
    raise ValueError(f"{kind!r} is no nest")
