"""How a host's process of `wires.py` is told what to do: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

ANSWER = "WIRES "  # Other lines that a library prints are none of ours.


def serve(calls: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answers calls from the standard input until it ends: `{"call": name, **arguments}`."""
    print(ANSWER + json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        try:
            answer = calls[told.pop("call")](**told)
        except Exception:
            traceback.print_exc()
            answer = {"error": traceback.format_exc(limit=-3)}
        print(ANSWER + json.dumps(answer), flush=True)
