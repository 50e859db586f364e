from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

import replicax as rx
from replicax.errors import LaunchError
from replicax.job.processes.output import Log, Stream, error_line, last_traceback
from replicax.job.processes.terminal import Terminal

BAR = "\x1b[?7l{}\x1b[?7h"
CLEAR = "\r\x1b[2K"
KERAS_LINE = "\x1b[1m 3/10\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m0s\x1b[0m 2ms/step - loss: 0.5"


class Screen(io.StringIO):
    """A file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def stream(number: int = 0, out: io.StringIO | None = None, error: bool = False) -> tuple[Stream, io.StringIO]:
    out = out or io.StringIO()
    return Stream(Terminal(out, out, {"NO_COLOR": "1"}), f"worker {number}", number, error), out


# Lines.


def test_lines_carry_the_name_of_the_task_and_wait_until_they_are_whole():
    lines, out = stream(1)
    lines.feed(b"one\ntw")
    assert out.getvalue() == "[worker 1] one\n"
    lines.feed(b"o\r\n\nthree")
    assert out.getvalue() == "[worker 1] one\n[worker 1] two\n[worker 1] \n"
    lines.feed(b"", final=True)
    assert out.getvalue().endswith("[worker 1] three\n")


def test_a_character_may_come_in_two_parts_and_nonsense_does_no_harm():
    lines, out = stream()
    for byte in "ü→\n".encode():
        lines.feed(bytes([byte]))
    lines.feed(b"\xff\n")
    assert out.getvalue() == "[worker 0] ü→\n[worker 0] �\n"


def test_an_endless_line_is_cut():
    lines, out = stream()
    lines.feed(b"x" * 200_000)
    assert out.getvalue().startswith("[worker 0] xxx")


@given(st.lists(st.binary(max_size=5)), st.booleans())
def test_any_output_in_any_pieces_is_shown_alike(chunks: list[bytes], chief: bool):
    whole, pieces = stream(0 if chief else 1), stream(0 if chief else 1)
    whole[0].feed(b"".join(chunks), final=True)
    for chunk in chunks:
        pieces[0].feed(chunk)
    pieces[0].feed(b"", final=True)
    assert pieces[1].getvalue() == whole[1].getvalue()


# Progress bars.


def test_where_bars_cannot_be_drawn_the_last_state_is_shown():
    lines, out = stream()
    lines.feed(b"\r 10%")
    lines.feed(b"\r 50%")
    assert out.getvalue() == ""
    lines.feed(b"\r100%\nnext\n")
    assert out.getvalue() == "[worker 0] 100%\n[worker 0] next\n"


def test_bars_of_other_workers_are_not_shown():
    lines, out = stream(1)
    for chunk in (b"\r 10%", b"\b\b\b\r 50%", b"\r100%\nnext\n", KERAS_LINE.encode() + b"\nlast\n"):
        lines.feed(chunk)
    assert out.getvalue() == "[worker 1] next\n[worker 1] last\n"


def test_keras_lines_of_worker_0_are_shown():
    lines, out = stream()
    lines.feed(KERAS_LINE.encode() + b"\n")
    assert out.getvalue() == f"[worker 0] {KERAS_LINE}\n"


def test_on_a_terminal_the_bar_is_drawn_over_and_stays_below_the_lines():
    bars, out = stream(0, Screen())
    bars.feed(b"\r 10%")
    assert out.getvalue() == CLEAR + BAR.format(" 10%").replace("\x1b", "\x1b", 1).join(["[worker 0] ", ""])
    out.truncate(out.seek(0))
    bars.feed(b"\b\b\b\b\r")
    bars.feed(b" 20%")
    drawn = "[worker 0] " + BAR.format(" 20%")
    assert out.getvalue().endswith(CLEAR + drawn)
    out.truncate(out.seek(0))
    bars._terminal.line("worker 1", 1, "hello")
    assert out.getvalue() == f"{CLEAR}[worker 1] hello\n{drawn}"
    out.truncate(out.seek(0))
    bars.feed(b"\r100%\n")
    assert out.getvalue() == f"{CLEAR}[worker 0] 100%\n"


def test_how_the_job_is_doing_stands_behind_the_bar_or_below_the_lines():
    bars, out = stream(0, Screen())
    alone = "[replicax] " + BAR.format("71% computing")
    bars._terminal.status("71% computing")
    assert out.getvalue() == CLEAR + alone
    bars.feed(b"\r 10%")
    assert out.getvalue().endswith(CLEAR + "[worker 0] " + BAR.format(" 10%  71% computing"))
    out.truncate(out.seek(0))
    bars.feed(b"\r100%\n")
    assert out.getvalue() == f"{CLEAR}{alone}{CLEAR}[worker 0] 100%\n{alone}"
    out.truncate(out.seek(0))
    bars._terminal.status("")
    bars._terminal.line("worker 1", 1, "hello")
    assert out.getvalue() == f"{CLEAR}[worker 1] hello\n"


def test_without_a_terminal_nothing_says_how_the_job_is_doing():
    lines, out = stream()
    lines._terminal.status("71% computing")
    assert out.getvalue() == ""


def drawn_by_rich(out):
    """Lets a task draw a bar of rich's, which comes in small pieces; returns what is written to `out`."""
    raw = io.StringIO()
    console = Console(file=raw, force_terminal=True, width=70, color_system="standard", legacy_windows=False)
    for step in rx.progress(range(3), description="epoch 1", console=console):
        if step == 1:
            console.print("in between")
    lines = Stream(Terminal(out, out, {"NO_COLOR": "1"}), "worker 0", 0, False)
    for at in range(0, len(raw.getvalue()), 7):
        lines.feed(raw.getvalue()[at : at + 7].encode())
    lines.feed(b"", True)
    return out.getvalue()


def test_a_bar_of_rich_does_not_erase_the_name_of_its_task():
    text = drawn_by_rich(Screen())
    states = text.replace("\n", "\n" + CLEAR).split(CLEAR)
    assert any("epoch 1" in state for state in states)
    assert all(state.startswith("[worker 0] ") for state in states if state)
    drawn = "".join(states)
    assert not any(control in drawn for control in ("\x1b[2K", "\x1b[1A", "\x1b[?25"))
    for bar in re.findall(r"\x1b\[\?7l(.*?)\x1b\[\?7h", drawn):
        assert "\x1b[" not in bar or bar.endswith("\x1b[0m"), "its colour goes on"
        assert not re.search(r"\x1b(\[[\d;]*)?$", bar), "half a sequence"


def test_a_bar_of_rich_is_one_line_in_a_file():
    lines = drawn_by_rich(io.StringIO()).splitlines()
    assert [line.startswith("[worker 0] ") for line in lines] == [True] * len(lines)
    assert [("epoch 1" in line, "in between" in line) for line in lines] in ([(False, True), (True, False)],)


# The terminal.


def test_colours_are_for_terminals_and_those_who_like_them():
    screen, file = Screen(), io.StringIO()
    Terminal(screen, screen, {}).line("worker 1", 1, "a")
    Terminal(file, file, {}).line("worker 1", 1, "a")
    assert screen.getvalue() == "\x1b[33m[worker 1] \x1b[0ma\n"
    assert file.getvalue() == "[worker 1] a\n"
    Terminal(screen, screen, {}).say("b")
    assert screen.getvalue().endswith("\x1b[1m[replicax] \x1b[0mb\n")


def test_errors_and_our_own_words_go_to_standard_error():
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err, {})
    terminal.line("worker 0", 0, "out")
    terminal.line("worker 0", 0, "err", error=True)
    terminal.say("ours")
    assert (out.getvalue(), err.getvalue()) == ("[worker 0] out\n", "[worker 0] err\n[replicax] ours\n")


def test_a_reader_who_has_gone_stops_nobody():
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    err = io.StringIO()
    terminal = Terminal(Closed(), err, {})
    terminal.line("worker 0", 0, "lost")
    terminal.line("worker 0", 0, "lost")
    terminal.say("kept")
    assert err.getvalue() == "[replicax] kept\n"


def test_what_the_terminal_cannot_write_becomes_question_marks():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, "ascii", newline="\n")
    Terminal(out, out, {}).line("worker 0", 0, "2 → 3")
    assert raw.getvalue() == b"[worker 0] 2 ? 3\n"


# Logs.


def test_a_restart_goes_on_in_the_same_log(tmp_path: Path):
    path = tmp_path / "log"
    for attempt, words in enumerate([b"\xff\r\n", b"again\n"]):
        log = Log(path, attempt)
        log.write(words)
        log.close()
        log.write(b"too late")
    assert path.read_bytes() == b"\xff\r\n=== attempt 1 ===\nagain\n"
    Log(path, 0).close()
    assert path.read_bytes() == b""


def test_a_log_that_cannot_be(tmp_path: Path):
    with pytest.raises(LaunchError, match="A log cannot be written"):
        Log(tmp_path, 0)


# The last traceback.

TRACEBACK = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ""),
        ("a\nb\n\n", "a\nb"),
        (f"before\n{TRACEBACK}\n  File\nE: 1\nmore", f"{TRACEBACK}\n  File\nE: 1\nmore"),
        (f"{TRACEBACK}\nE: old\nbetween\n{TRACEBACK}\nE: new", f"{TRACEBACK}\nE: new"),
        ("x\nFatal Python error: Aborted\n\nThread", "Fatal Python error: Aborted\n\nThread"),
        (
            f"{TRACEBACK}\nE: other\n\n{TRACEBACK}\nE: 1\n\nDuring handling of the above exception, another exception "
            f"occurred:\n\n{TRACEBACK}\nE: 2",
            f"{TRACEBACK}\nE: 1\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}\n"
            "E: 2",
        ),
    ],
)
def test_last_traceback(text: str, found: str):
    assert last_traceback(text.split("\n")) == found


OURS = """Thread 0x7f01 (most recent call first):
  File "/lib/threading.py", line 629 in wait
  File "/lib/threading.py", line 1002 in _bootstrap

Thread 0x7f02 (most recent call first):
  File "/lib/python3.11/selectors.py", line 415 in select
  File "/lib/threading.py", line 1002 in _bootstrap

"""
MODULES = "\nExtension modules: numpy, jaxlib.utils (total: 2)"
LEFT_OUT = "  ... more of this is in the log ..."


@pytest.mark.parametrize(
    ("stack", "stays"),
    [
        (
            'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n  File "child.py", line 2 in <module>',
            True,
        ),
        ('Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n  ...', True),
        ('Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in f', True),
        ('Current thread 0x1 [MainThread] (most recent call first):\n  File "a.py", line 1 in f', True),
        (
            'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in _at_exit\n  File "b.py", line 1 in here',
            False,
        ),
    ],
)
@pytest.mark.parametrize("modules", [MODULES, f"{MODULES}\n", ""])
def test_of_a_dump_of_stacks_those_of_the_script_are_shown(stack: str, stays: bool, modules: str):
    died = "Fatal Python error: Aborted"
    found = last_traceback(f"before\n{died}\n\n{OURS}{stack}\n{modules}".split("\n"))
    shown = f"{LEFT_OUT}\n{stack}\n\n{LEFT_OUT if modules else ''}" if stays else LEFT_OUT
    assert found == f"{died}\n\n{shown}".strip("\n")


def test_a_dump_of_many_threads_is_no_old_one():
    found = last_traceback(f"Fatal Python error: Aborted\n\n{60 * OURS}Current thread 0x1".split("\n"))
    assert found == f"Fatal Python error: Aborted\n\n{LEFT_OUT}\nCurrent thread 0x1"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", ""),
        ("a\nb", "b"),
        (f"{TRACEBACK}\n  File\n    f()\n    ^^^\nE: 1\n(Frames are hidden)\n", "E: 1"),
        (f"{TRACEBACK}\n  File\nE: 1\n\nThe above exception was the direct cause\n\n{TRACEBACK}\n  File\nE: 2", "E: 2"),
        ("Fatal Python error: Aborted\n\nThread 1:\n  File a\n  File b", "Fatal Python error: Aborted"),
        ("replicax: worker:1 is dead.\nFound by worker:0.\nStacks: path", "replicax: worker:1 is dead."),
    ],
)
def test_the_line_that_says_what_went_wrong_is_no_note_below_it(words: str, found: str):
    assert error_line(words) == found


def test_without_a_traceback_or_long_after_it_the_last_lines_count():
    lines = [f"line {number}" for number in range(400)]
    assert last_traceback(lines) == "\n".join(lines[-20:])
    assert last_traceback([TRACEBACK, *lines]) == "\n".join(lines[-20:])


def test_what_gloo_prints_is_not_shown_also_where_its_threads_mix_their_pieces():
    lines, out = stream()
    says = b" is connected to 5 peer ranks. Expected number of connected peer ranks is : 5\n"
    lines.feed(b"[Gloo] Rank 1" + says + b"[Gloo] Rank [Gloo] Rank 4" + says + b"5" + says + b"5\n")
    assert out.getvalue() == "[worker 0] 5\n"
