"""A linter for prose: `python -m tests.prose` reads the pages, and the package's docstrings, comments and messages.

It runs the checks of proselint, those of typography aside, refuses the words of `tests/vocabulary.toml`, and refuses
statements that begin like questions: the subject comes first.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proselint.checks import __register__ as CHECKS
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, CheckResult, types
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = Path(__file__).with_name("vocabulary.toml")
PAGES = ["README.md", "CONTRIBUTING.md", "docs/**/*.md"]
CODE = ["replicax/**/*.py", "pytest_replicax/**/*.py"]
# Typography: plain quotes and dots are what a terminal and an editor show. Psychology and the like: not our subject.
OFF = (
    "typography",
    "skunked_terms",
    "weasel_words",
    "psychology",
    "social_awareness",
    "lexical_illusions",
    "dates_times",
)
# A sentence has at least this many words: anything shorter in a string is a name or a format.
LEAST_WORDS = 4


class Prose(NamedTuple):
    """A piece of text, and the line of the file in which it begins."""

    line: int
    text: str


def prose_of_page(text: str) -> Iterator[Prose]:
    """Yields a page's prose: without its code, the targets of its links, and its HTML."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    text = re.sub(r"^(`{3,}).*?^\1`*$", blank, text, flags=re.MULTILINE | re.DOTALL)
    yield Prose(1, _without_code(re.sub(r"\]\([^)]*\)|<[^>\n]+>|^:::.*$", blank, text, flags=re.MULTILINE)))


def prose_of_module(text: str) -> Iterator[Prose]:
    """Yields the docstrings, the comments and the sentences among the strings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|fmt|type:|pragma)", token.string):
            yield Prose(token.start[0], _without_code(token.string.lstrip("#: ")))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            without_examples = re.sub(r"^\s*(>>>|\.\.\.) .*$", "", node.value, flags=re.MULTILINE)
            if len(without_examples.split()) >= LEAST_WORDS:
                yield Prose(node.lineno, _without_code(without_examples))


def _without_code(text: str) -> str:
    return re.sub(r"`+[^`\n]+`+", lambda match: "x" * len(match.group()), text)


def checks() -> Iterator[Check]:
    """Yields the checks that run."""
    yield from (check for check in CHECKS if not any(check.matches_partial(off) for off in OFF))
    for pattern, instead in tomllib.loads(VOCABULARY.read_text())["avoid"].items():
        yield Check(
            check_type=types.ExistenceSimple(pattern=rf"\b(?:{pattern})\b"),
            path="vocabulary",
            message=f"{{!r}} is not a word of this project: {instead}.",
            flags=CheckFlags(allow_quotes=True),
        )

    yield Check(
        check_type=_statements_like_questions,
        path="vocabulary",
        message="A statement that begins with {!r}: put its subject first.",
        flags=CheckFlags(allow_quotes=True),
    )


def _statements_like_questions(text: str, check: Check) -> Iterator[CheckResult]:
    for match in re.finditer(r"(?:\A|[.!?]\s|\n\s*\n)\s*(?:[-*]\s+)?((Who|Whose|What)\b[^.!?]*)(.?)", text):
        if match[3] != "?":
            yield CheckResult(check.path, check.message.format(match[2]), match.span(2), None)


def faults_in(prose: Prose) -> Iterator[tuple[int, str]]:
    """Yields the line and the message of each fault."""
    enabled = {"vocabulary": True, **DEFAULT["checks"]}
    for result in LintFile("prose", prose.text).lint({**DEFAULT, "checks": enabled, "max_errors": 1000}):
        # proselint counts from 1, and puts an empty line before the text.
        yield prose.line + result.pos[0] - 1, result.check_result.message


def faults() -> Iterator[str]:
    """Yields each fault of the pages and the package, with its file and line."""
    CheckRegistry().register_many(tuple(checks()))
    for patterns, read in ((PAGES, prose_of_page), (CODE, prose_of_module)):
        for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
            for prose in read(path.read_text()):
                for line, message in faults_in(prose):
                    yield f"{path.relative_to(ROOT)}:{line}: {message}"


def main() -> int:
    """Prints the faults; returns the exit code."""
    found = list(faults())
    print(*found, f"{len(found)} faults of prose", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
