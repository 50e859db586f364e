"""Counts the public names without an example: `python -m tests.examples_of_names`.

The examples run in tests/test_public_api.py, each module's with eight virtual devices. Those that need a cluster are
shown and skipped.
"""

from __future__ import annotations

import inspect

from tests.test_public_api import public_names


def names_without_example() -> list[str]:
    """Returns the public classes and functions whose docstring shows no code, sorted."""
    return sorted(name for name, value in public_names() if callable(value) and not _has_example(value))


def _has_example(value: object) -> bool:
    words = inspect.getdoc(value) or ""
    return ">>>" in words or "```" in words


def main() -> int:
    missing = names_without_example()
    for name in missing:
        print(f"rx.{name} has no example")
    print(f"RESULT api_names_without_example {len(missing)}")
    return bool(missing)


if __name__ == "__main__":
    raise SystemExit(main())
