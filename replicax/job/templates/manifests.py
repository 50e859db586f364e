"""Manifests in YAML."""

from __future__ import annotations

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines, such as a script, line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def manifests(header: str, *documents: object) -> str:
    """Returns documents in one file of YAML, below a header of comments."""
    return header + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10_000, explicit_start=False)
