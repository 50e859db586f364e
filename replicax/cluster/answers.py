"""What process 0 may say to those who come to the rendezvous. Somebody else may listen at its address."""

from __future__ import annotations

from typing import Any

from replicax.cluster.lines import decoded, is_number

LONGEST_ANSWER = 2**26  # What thousands of processes have told of themselves.
NOT_OURS = "who listens there is not process 0 of this job"


def checked(line: bytes, processes: int) -> dict[str, Any]:
    """Returns a message of process 0.

    Raises:
        ConnectionError: It is none.
    """
    try:
        message = decoded(line, LONGEST_ANSWER)
    except ValueError as error:
        raise ConnectionError(f"{NOT_OURS}: {error}") from None
    kind = next((key for key in ("no", "go", "over", "through", "ask") if key in message), None)
    listed = [message.get(key) for key in ("missing", "silent")]
    fits = {
        None: lambda: False,
        "through": lambda: message["through"] is True,
        "no": lambda: isinstance(message["no"], str),
        "go": lambda: _is_list(message["go"], processes) and all(isinstance(info, dict) for info in message["go"]),
        "over": lambda: _are_numbers(message["over"], processes) and isinstance(message.get("note"), str),
        "ask": lambda: is_number(message["ask"], 1, 2**63) and all(_are_numbers(each, processes) for each in listed),
    }
    if not fits[kind]():
        raise ConnectionError(f"{NOT_OURS}: it sends {line!r:.100}")
    return message


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _are_numbers(values: Any, processes: int) -> bool:
    return isinstance(values, list) and all(is_number(value, 0, processes) for value in values)
