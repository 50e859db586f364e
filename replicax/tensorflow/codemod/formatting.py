"""Formats what a conversion has changed, and nothing else: ruff formats ranges of lines and sorts the imports."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
from collections.abc import Sequence

from replicax.errors import ArgumentError


def formatted(before: str, after: str) -> str:
    """Returns converted code with its imports sorted and its changed statements formatted; other lines stay."""
    if before == after:
        return after
    widths = [f"indent-width={_indentation(before)}", f"line-length={_width(before)}"]
    after = _ruff(["check", "--select", "I001", "--fix", "--quiet", "--exit-zero"], widths, after)
    tabs = re.search(r"^\t+\S", before, re.MULTILINE) is not None
    style = ['format.quote-style="preserve"', f'format.indent-style="{"tab" if tabs else "space"}"']
    for start, end in reversed(_changed(before, after)):
        after = _ruff(["format", "--range", f"{start}-{end}"], [*widths, *style], after)
    return after


def _changed(before: str, after: str) -> list[tuple[int, int]]:
    """Returns the ranges of lines of `after` that are not in `before`: from 1, the end not included."""
    lines, written = before.splitlines(), after.splitlines()
    known = set(lines)
    matcher = difflib.SequenceMatcher(None, lines, written, autojunk=False)
    ranges: list[tuple[int, int]] = []
    for tag, _, _, j1, j2 in matcher.get_opcodes():
        if tag in ("replace", "insert"):
            # Where lines are there several times, what is compared may take a line that stayed for a new one.
            stayed = [j for j in range(j1, j2) if written[j] in known and _is_own_statement(written[j])]
            starts, ends = [j1, *(j + 1 for j in stayed)], [*stayed, j2]
            ranges += [(start + 1, end + 1) for start, end in zip(starts, ends, strict=True) if start < end]
    return ranges


def _is_own_statement(line: str) -> bool:
    """Returns whether a line at the left margin is a whole statement."""
    try:
        return bool(line) and not line[0].isspace() and bool(ast.parse(line).body)
    except SyntaxError:
        return False


def _indentation(text: str) -> int:
    widths = [len(found) for found in re.findall(r"(?<=:\n)( +)(?=\S)", text.replace("\r\n", "\n"))]
    return min(widths, default=4)


def _width(text: str) -> int:
    longest = max((len(line) for line in text.splitlines() if not line.lstrip().startswith("#")), default=0)
    return min(max(longest, 88), 120)


def _ruff(arguments: Sequence[str], settings: Sequence[str], text: str) -> str:
    """Returns what ruff makes of a text. It gets bytes, so that line endings stay."""
    given = [part for each in settings for part in ("--config", each)]
    command = [_executable(), *arguments, "--isolated", *given, "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        raise ArgumentError(f"ruff cannot format the converted script: {done.stderr.decode().strip()}")
    return done.stdout.decode()


def _executable() -> str:
    try:
        from ruff import find_ruff_bin
    except ImportError as error:
        raise ArgumentError("`replicax migrate` formats with ruff: pip install 'replicax[migrate]'.") from error
    return str(find_ruff_bin())
