"""Counts the public names without an example: `python -m tests.examples_of_names`.

The examples run in tests/test_public_api.py, each module's with eight virtual devices. Those that need a cluster are
shown and skipped; they are counted too.
"""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Mapping

from tests.test_public_api import public_names


def examples_of_names() -> dict[str, list[doctest.Example]]:
    """Returns the lines of code in the docstring of each public class and function."""
    return {name: _examples_of(value) for name, value in public_names() if callable(value)}


def _examples_of(value: object) -> list[doctest.Example]:
    """Returns those of the value's own docstring: a class does not show those of its base class."""
    words = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return doctest.DocTestParser().get_examples(words or "")


def names_without_example(examples: Mapping[str, list[doctest.Example]] | None = None) -> list[str]:
    """Returns the public classes and functions whose docstring shows no code, sorted."""
    return sorted(name for name, found in (examples or examples_of_names()).items() if not found)


def names_never_run(examples: Mapping[str, list[doctest.Example]] | None = None) -> list[str]:
    """Returns those whose code is shown and skipped, all of it, sorted."""
    found = (examples or examples_of_names()).items()
    return sorted(name for name, lines in found if lines and all(doctest.SKIP in line.options for line in lines))


def main() -> int:
    examples = examples_of_names()
    missing, shown = names_without_example(examples), names_never_run(examples)
    for name in missing:
        print(f"rx.{name} has no example")
    print(f"RESULT api_names {len(examples)}")
    print(f"RESULT api_names_whose_example_needs_a_cluster {len(shown)}")
    print(f"RESULT api_names_without_example {len(missing)}")
    return bool(missing)


if __name__ == "__main__":
    raise SystemExit(main())
