"""What a command shows while it works."""

from __future__ import annotations

import io
import re
import time

from rich.console import Console

from replicax.cli.at_work import at_work

DEADLINE_S = 60


def test_on_a_terminal_a_line_changes_and_is_gone_at_the_end():
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with at_work(console, "importing") as show:
        show("8 devices, loss 1.25")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "importing" in text
    assert "8 devices, loss 1.25" in text
    assert text.endswith("\x1b[2K")  # the line is cleared


def test_elsewhere_a_line_says_again_and_again_what_is_done_now():
    console = Console(file=io.StringIO(), width=100)
    deadline = time.monotonic() + DEADLINE_S
    with at_work(console, "importing", every_s=0.01) as show:
        for what in ("importing", "compiling"):
            show(what)
            while console.file.getvalue().count(what) < 2:  # type: ignore[attr-defined]
                assert time.monotonic() < deadline
                time.sleep(0.01)
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert (said.count("… importing"), said.count("… compiling")) == (1, 1)
    told = [re.sub(r", \d+ s$", "", line) for line in said]
    assert {*told} == {"… importing", "… compiling"}
    assert told == sorted(told, reverse=True)


def test_a_state_that_lasts_is_told_once_and_then_with_its_seconds():
    console = Console(file=io.StringIO(), width=100)
    deadline = time.monotonic() + DEADLINE_S
    with at_work(console, "making the network", every_s=1.0):
        while console.file.getvalue().count("\n") < 3:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            time.sleep(0.01)
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert said[0] == "… making the network"
    assert len({*said}) == len(said)
    assert all(re.fullmatch(r"… making the network, \d+ s", line) for line in said[1:])
