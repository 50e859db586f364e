"""Job files: the options of `replicax run` in YAML, by the names that they have on the command line.

script: train.py
arguments: [--epochs, "10"]
workers: 4
devices-per-worker: 2
log-dir: runs/first
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from replicax.errors import LaunchError

SCRIPT, ARGUMENTS, MODULE = "script", "arguments", "module"
_LISTS = {ARGUMENTS, "env", "hosts"}
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_UNSET = {"", "~", "null"}


def read_job_file(path: Path, options: Mapping[str, bool], text: str | None = None) -> dict[str, Any]:
    """Returns what a job file, or `text` in its place, says by option; `options` names them, and which are flags."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8") if text is None else text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"The job file {path} cannot be read: {error}.") from error
    except yaml.YAMLError as error:
        raise LaunchError(f"The job file {path} is no YAML: {error}") from error
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise LaunchError(f"{_place(path, node)}: a job file has lines such as `workers: 4`.")
    found: dict[str, Any] = {}
    for key, value in node.value:
        name = _name(path, key, options)
        if name in found:
            raise LaunchError(f"{_place(path, key)}: {name} stands there twice.")
        found[name] = _value(path, name, value, options[name])
    return {name: value for name, value in found.items() if value is not None}


def _name(path: Path, key: yaml.Node, options: Mapping[str, bool]) -> str:
    name = str(key.value).removeprefix("--") if isinstance(key, yaml.ScalarNode) else "this"
    if name in options:
        return name
    near = difflib.get_close_matches(name.replace("_", "-"), options, 1)
    hint = f"Do you mean {near[0]}?" if near else f"There are {', '.join(sorted(options))}."
    raise LaunchError(f"{_place(path, key)}: {name} is no option of replicax run. {hint}")


def _value(path: Path, name: str, node: yaml.Node, is_flag: bool) -> Any:
    if name in _LISTS:
        return _list(path, name, node)
    if not isinstance(node, yaml.ScalarNode):
        raise LaunchError(f"{_place(path, node)}: {name} takes one value.")
    if node.value.lower() in _UNSET and node.style is None:
        return None
    if not is_flag:
        return str(node.value)  # As on the command line: YAML reads `2:8` as 128, in base 60.
    if node.value.lower() not in _FLAGS:
        raise LaunchError(f"{_place(path, node)}: {name} is true or false, got {node.value!r}.")
    return _FLAGS[node.value.lower()]


def _list(path: Path, name: str, node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.MappingNode) and name == "env":
        return [f"{_text(path, name, key)}={_text(path, name, value)}" for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [_text(path, name, each) for each in node.value]
    text = _text(path, name, node)
    return text.split(",") if name == "hosts" else [text]


def _text(path: Path, name: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise LaunchError(f"{_place(path, node)}: {name} takes texts.")
    return str(node.value)


def _place(path: Path, node: yaml.Node) -> str:
    return f"{path}, line {node.start_mark.line + 1}"


def written_job_file(settings: Mapping[str, str | bool | Sequence[str]]) -> str:
    """Returns the text of a job file, in the order of `settings`."""
    return "".join(f"{name}: {_written(value)}\n" for name, value in settings.items())


def _written(value: str | bool | Sequence[str]) -> str:
    plain = value if isinstance(value, (str, bool)) else list(value)
    text: str = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("...\n").strip()
