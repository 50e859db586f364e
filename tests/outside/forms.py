"""The two forms of a program: the original, for one device, and the distributed one.

A program is one file, and as it stands it is the distributed form. Marks say what was edited:

    CODE  # +      is in the distributed form only; if it opens a block, the block is in both
    # - CODE       is in the original only
    CODE  # tf     is in both, in place of what only TensorFlow has, such as a tape

"""

from __future__ import annotations

import difflib
import itertools
import re

ADDED = re.compile(r"\s\s# \+$")
REMOVED = re.compile(r"^(\s*)# - ?")
FROM_TENSORFLOW = re.compile(r"\s\s# tf$")


def original(text: str) -> str:
    """Returns the original form, line for line in the places of the distributed one."""
    lines = text.split("\n")
    return "\n".join(_original_line(lines, index) for index in range(len(lines)))


def edited_lines(text: str) -> int:
    """Counts the lines that differ between the forms, and those that replace TensorFlow's own.

    A line that is replaced counts once, and one that is only indented does not, as in `git diff -w`.
    """
    before, after = _code(original(text)), _code(text)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    differing = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal")
    return differing + sum(bool(FROM_TENSORFLOW.search(line)) for line in text.split("\n"))


def _original_line(lines: list[str], index: int) -> str:
    line = lines[index]
    if not ADDED.search(line):
        return REMOVED.sub(r"\1", line)
    replaces_a_head = REMOVED.match(lines[index - 1]) and lines[index - 1].endswith(":")
    if replaces_a_head or all(ADDED.search(inner) for inner in _block(lines, index)):
        return ""
    return " " * _indentation(line) + "if True:"


def _block(lines: list[str], head: int) -> list[str]:
    """Returns the lines that are indented more than the one above them, without empty ones."""
    below = (line for line in lines[head + 1 :] if line)
    return list(itertools.takewhile(lambda line: _indentation(line) > _indentation(lines[head]), below))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _code(text: str) -> list[str]:
    lines = [ADDED.sub("", line).strip() for line in text.split("\n")]
    return [line for line in lines if line and not line.startswith("#") and line != "if True:"]
