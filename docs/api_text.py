"""Writes the text of docs/api/ that can be read in the repository: `python docs/api_text.py`, after docstrings changed.

A name stands there in a comment, `<!-- ::: replicax.function -->`, followed by its signature and summary and a closing
comment, which this file writes. As a hook of MkDocs it leaves the first line alone: the site has all of the docstring.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import yaml

PAGES = Path(__file__).parent / "api"
SETTINGS = Path(__file__).parent.parent / "mkdocs.yml"
COLUMNS = 88
_END = "<!-- end -->"
#: A directive of mkdocstrings in a comment, and what was written below it.
_NAME = re.compile(
    rf"^<!-- (?P<directive>::: (?P<path>[\w.]+)(?P<options>\n[^>]*)?) ?-->\n(?:(?:(?!<!--).)*?^{_END}\n)?",
    re.MULTILINE | re.DOTALL,
)


class _AsWritten(str):
    """An annotation that `inspect` shows without quotes."""

    __repr__ = str.__str__


def on_page_markdown(markdown: str, **_: object) -> str:
    """Returns a page with the directives, and without what is written for the repository."""
    return _NAME.sub(lambda match: match["directive"].rstrip() + "\n", markdown)


def rewritten(page: str) -> str:
    """Returns a page with what each of its names says now."""
    return _NAME.sub(
        lambda match: (
            f"<!-- {match['directive'].rstrip()}{_closing(match)}\n{_text(match)}{_END}\n"
        ),
        page,
    )


def _closing(match: re.Match[str]) -> str:
    return "\n-->" if match["options"] else " -->"


def _text(match: re.Match[str]) -> str:
    options = yaml.safe_load(match["options"] or "options: {}")["options"]
    hidden = options.get("filters") or _filters()
    value = _found(match["path"])
    lines = (
        [f"### `{shown(match['path'])}`", ""]
        if options.get("show_root_heading", True)
        else []
    )
    if inspect.ismodule(value):
        members = options.get("members", True)
        lines += [*_members_of_module(value, hidden)] if members else [_summary(value)]
    elif callable(value):
        name = (
            match["path"].rpartition(".")[2] if lines else ""
        )  # Without a heading, the text above names it.
        lines += ["```py", _signature(value, name), "```", "", _summary(value)]
        if inspect.isclass(value) and (members := options.get("members", True)):
            lines += _members_of_class(
                value,
                [name for name in vars(value) if _is_shown(name, members, hidden)],
            )
    elif isinstance(value, str | int | float | tuple):
        lines += [f"`{value!r}`"]
    return "\n".join(lines) + "\n"


def _found(path: str) -> object:
    """Returns what a path names: an attribute, or a module that nothing has imported."""
    first, *rest = path.split(".")
    value: object = importlib.import_module(first)
    for place, part in enumerate(rest, 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(".".join(path.split(".")[:place]))
    return value


def shown(path: str) -> str:
    """Returns what users call a name of the package: `replicax.tools.plots.losses` is `rx.plots.losses`."""
    import replicax as rx

    known = {
        getattr(rx, name).__name__: name
        for name in dir(rx)
        if isinstance(getattr(rx, name), types.ModuleType)
    }
    known["replicax.tensorflow.checkpoints"] = "checkpoint.tensorflow"
    module, _, name = path.rpartition(".")
    if path in known:
        return f"rx.{known[path]}"
    return (
        f"rx.{known[module]}.{name}"
        if module in known
        else f"rx.{path.removeprefix('replicax.')}"
    )


def _signature(value: object, name: str) -> str:
    if isinstance(value, enum.EnumMeta):
        return "\n".join(f"{name}.{member}" for member in value.__members__)
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except ValueError:  # An exception without arguments of its own.
        return f"{name}(*args)"
    # `__new__` passes what it gets on to `__init__`.
    if inspect.isclass(value) and [*found.parameters] == ["args", "kwargs"]:
        _, *others = inspect.signature(value.__init__).parameters.values()
        found = found.replace(parameters=others)
    written = found.replace(
        parameters=[
            _parameter(each)
            for each in found.parameters.values()
            if not each.name.startswith("_")
        ],
        return_annotation=found.empty
        if inspect.isclass(value)
        else _as_written(found.return_annotation),
    )
    line = f"{name}{written}"
    if len(line) <= COLUMNS:
        return line
    parameters, _, rest = line.removeprefix(f"{name}(").rpartition(")")
    return (
        f"{name}(\n"
        + "".join(f"    {each},\n" for each in _split(parameters))
        + f"){rest}"
    )


def _parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if type(default) is str:
        parameter = parameter.replace(default=_AsWritten(f'"{default}"'))
    elif default is not parameter.empty and repr(default).startswith(
        "<"
    ):  # An object of Python's, at some address.
        name = (
            str(default)
            if isinstance(default, enum.Enum)
            else getattr(default, "__name__", "...")
        )
        parameter = parameter.replace(
            default=_AsWritten(name.replace("<lambda>", "..."))
        )
    return parameter.replace(annotation=_as_written(parameter.annotation))


def _as_written(annotation: object) -> object:
    return _AsWritten(annotation) if isinstance(annotation, str) else annotation


def _split(parameters: str) -> Iterator[str]:
    """Yields the parameters between commas that no bracket or quotation encloses."""
    depth, start, quote = 0, 0, ""
    for place, character in enumerate(parameters):
        if quote or character in "'\"":
            quote = "" if character == quote else quote or character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and not depth:
            yield parameters[start:place].strip()
            start = place + 1
    yield parameters[start:].strip()


def _summary(value: object) -> str:
    """Returns the first paragraph of what a name says of itself, in one line."""
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def _is_shown(name: str, members: list[str] | Literal[True], hidden: list[str]) -> bool:
    """Returns whether the site shows a member."""
    named = members is True or name in members
    return named and not any(
        re.search(pattern.removeprefix("!"), name) for pattern in hidden
    )


def _members_of_class(cls: type, names: list[str]) -> Iterator[str]:
    described = [
        name
        for name in names
        if callable(getattr(cls, name)) or isinstance(vars(cls)[name], property)
    ]
    if described:
        yield ""
    for name in described:
        called = "" if isinstance(vars(cls)[name], property) else "()"
        yield _line(f"{name}{called}", _summary(getattr(cls, name)))


def _members_of_module(module: types.ModuleType, hidden: list[str]) -> Iterator[str]:
    for name, value in vars(module).items():
        if (
            inspect.isclass(value)
            and issubclass(value, BaseException)
            and _is_shown(name, True, hidden)
        ):
            yield _line(shown(f"{module.__name__}.{name}"), _summary(value))


def _line(name: str, summary: str) -> str:
    return f"- `{name}`: {summary}" if summary else f"- `{name}`"


@functools.cache
def _filters() -> list[str]:
    """Returns which members no page of the site shows."""
    settings = yaml.load(SETTINGS.read_text(), Loader=yaml.BaseLoader)
    [options] = [
        each["mkdocstrings"] for each in settings["plugins"] if "mkdocstrings" in each
    ]
    filters: list[str] = options["handlers"]["python"]["options"]["filters"]
    return filters


def main() -> None:
    """Writes all pages."""
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(rewritten(page.read_text()))


if __name__ == "__main__":
    main()
