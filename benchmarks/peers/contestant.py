"""What a contestant's process runs: builds its step, then makes turns of steps when it is told to.

    python -m peers.contestant peers.jax_steps:single '{"devices": 1}'

Commands come on standard input and answers go to what was standard output, a JSON line each. Whatever the program
prints goes to standard error. The end of the input ends the process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import IO, Any, Protocol


class Contestant(Protocol):
    """What a program returns: something that makes steps."""

    def __call__(self) -> None:
        """Starts one step."""

    def wait(self) -> None:
        """Waits until all steps have really finished."""

    def last(self) -> float:
        """Returns the loss that the last step has computed, before its update."""


def losses(contestant: Contestant, steps: int) -> list[float]:
    """Returns the losses of so many steps, one after the other."""
    found = []
    for _ in range(steps):
        contestant()
        contestant.wait()
        found.append(float(contestant.last()))
    return found


def turn(contestant: Contestant, steps: int) -> float | dict[str, float]:
    """Returns the seconds of a step, over so many steps; a contestant with a `turn` of its own may return several."""
    own = getattr(contestant, "turn", None)
    if own is not None:
        return own()
    start = time.perf_counter()
    for _ in range(steps):
        contestant()
    contestant.wait()
    return (time.perf_counter() - start) / steps


COMMANDS: dict[str, Callable[[Contestant, int], object]] = {"losses": losses, "turn": turn}


def serve(contestant: Contestant, answers: IO[str]) -> None:
    """Answers commands until there are no more."""
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        print(json.dumps(COMMANDS[command["do"]](contestant, command["steps"])), file=answers, flush=True)


def main() -> None:
    """Builds the contestant that the arguments name, says so, and serves."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    program, options = sys.argv[1:]
    module, function = program.split(":")
    contestant = getattr(importlib.import_module(module), function)(**json.loads(options))
    print(json.dumps("ready"), file=answers, flush=True)
    serve(contestant, answers)
    end = getattr(contestant, "end", None)
    if end is not None:
        end()
    answers.close()
    sys.stderr.flush()
    os._exit(0)  # Peers' threads and process groups need not be taken down in order.


if __name__ == "__main__":
    main()
