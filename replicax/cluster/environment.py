"""Reading environment variables: texts and numbers, checked. A variable that is empty counts as not set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from replicax.errors import ClusterError

Environ = Mapping[str, str]

_NUMBER = re.compile(r"-?[0-9]{1,9}")


def text(environ: Environ, name: str) -> str | None:
    """Returns the value of a variable without spaces around it, or None if it is not set."""
    return environ.get(name, "").strip() or None


def required(environ: Environ, name: str, cure: str) -> str:
    """Returns the value of a variable that must be set."""
    value = text(environ, name)
    if value is None:
        raise ClusterError(name, None, "is not set", cure)
    return value


def to_number(value: str, field: str, least: int, below: int | None = None, cure: str = "") -> int:
    """Returns a text as an int from `least` to `below - 1`."""
    if not _NUMBER.fullmatch(value) or not least <= int(value) or (below is not None and int(value) >= below):
        allowed = f"of at least {least}" if below is None else f"from {least} to {below - 1}"
        raise ClusterError(field, value, f"must be an int {allowed}", cure)
    return int(value)


def number(environ: Environ, name: str, least: int = 0, below: int | None = None, cure: str = "") -> int:
    """Returns a variable that must be set, as an int from `least` to `below - 1`."""
    return to_number(required(environ, name, cure), name, least, below, cure)


def optional_number(environ: Environ, name: str, least: int = 0) -> int | None:
    """Returns a variable as an int of at least `least`, or None if it is not set."""
    value = text(environ, name)
    return None if value is None else to_number(value, name, least, cure="Correct it or unset it.")


def tells_of_others(environ: Environ, name: str, alone: int) -> bool:
    """Returns whether a variable is a number greater than `alone`, its value for a single process."""
    value = text(environ, name)
    return value is not None and _NUMBER.fullmatch(value) is not None and int(value) > alone


def check_complete(environ: Environ, counts: Sequence[str], ranks: Sequence[str], needed: Sequence[str]) -> None:
    """Checks that none of `needed` is missing if one of `counts` or `ranks` shows that there are other processes."""
    missing = [name for name in needed if text(environ, name) is None]
    named = [(name, 1) for name in counts if name] + [(name, 0) for name in ranks if name]
    telling = next((name for name, alone in named if tells_of_others(environ, name, alone)), None)
    if missing and telling is not None:
        raise ClusterError(
            missing[0],
            None,
            f"is not set, though {telling} is {environ[telling].strip()!r}: every process would train alone",
            f"Set {' and '.join(missing)} too, or unset {telling} if it is left over from elsewhere.",
        )
