"""Converts snippets for the tests."""

from __future__ import annotations

import textwrap

from replicax.tensorflow.codemod.conversion import Conversion, convert


def conversion(text: str) -> Conversion:
    """Converts an indented snippet; the second time nothing changes."""
    found = convert(textwrap.dedent(text).lstrip("\n"))
    assert convert(found.after).after == found.after
    return found


def converted(text: str) -> str:
    """Returns a converted snippet without its imports. There must be no finding that needs a hand edit."""
    found = conversion(text)
    assert not found.edits
    lines = found.after.splitlines()
    body = [line for line in lines if not line.startswith(("import ", "from ", "os.environ.setdefault("))]
    return "\n".join(body).strip("\n") + "\n"


def reasons(text: str) -> list[str]:
    """Returns what a snippet's findings say: `line name: reason`."""
    return [f"{each.line} {each.name}: {each.reason}" for each in conversion(text).edits]
