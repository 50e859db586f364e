"""The messages of process 0 at the rendezvous, checked, since another program may listen at its address."""

from __future__ import annotations

from typing import TypedDict, cast

from replicax.cluster.lines import decoded, is_number

LONGEST_ANSWER = 2**26  # The information of thousands of processes.
NOT_OURS = "the program that listens there is not process 0 of this job"


class Answer(TypedDict, total=False):
    """A message of process 0. It has one of the keys `ask`, `go`, `no`, `over` and `through`.

    Attributes:
        ask: Number of a question, which the receiver repeats in its answer to show that it is there.
        missing: With `ask`: the processes that have not come.
        silent: With `ask`: the processes that came and do not answer any more. Of both only the first are named.
        absent: With `ask`: how many are missing or silent in all.
        go: All are there: the information of each process.
        proof: With `go`: that it comes from a process that knows the token.
        no: Why the receiver does not belong to the job.
        over: The time is up: the processes that are missing.
        note: With `over`: what else is known of them.
        through: Process 0 is connected and needs nobody any more.
    """

    ask: int
    missing: list[int]
    silent: list[int]
    absent: int
    go: list[dict[str, object]]
    proof: str
    no: str
    over: list[int]
    note: str
    through: bool


def checked(line: bytes, processes: int) -> Answer:
    """Returns a message of process 0.

    Raises:
        ConnectionError: It is something else.
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
        "go": lambda: _are_infos(message["go"], processes) and isinstance(message.get("proof"), str),
        "over": lambda: _are_numbers(message["over"], processes) and isinstance(message.get("note"), str),
        "ask": lambda: (
            is_number(message["ask"], 1, 2**63)
            and is_number(message.get("absent"), 0, processes)
            and all(_are_numbers(each, processes) for each in listed)
        ),
    }
    if not fits[kind]():
        raise ConnectionError(f"{NOT_OURS}: it sends {line!r:.100}")
    return cast(Answer, message)


def _are_infos(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(info, dict) for info in value)


def _are_numbers(values: object, processes: int) -> bool:
    return isinstance(values, list) and all(is_number(value, 0, processes) for value in values)
