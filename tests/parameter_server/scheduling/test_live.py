"""The table in the terminal, and the figures for TensorBoard."""

from __future__ import annotations

import io
import sys
import time

import pytest
import tensorboardX  # noqa: F401  It sets an environment variable, which would count as left behind.
from rich.console import Console

from replicax.errors import ArgumentError
from replicax.parameter_server.coordinator import written_scalars
from replicax.parameter_server.scheduling.live import live_table, table
from replicax.parameter_server.scheduling.stats import Queue, Stats, WorkerStats
from tests import events

BUSY = WorkerStats(1200, 41.25, {"input": 1.0, "pull": 2.0, "compute": 6.0, "push": 1.0}, 0)
NEW = WorkerStats(0, 0.0, {}, 2)


def figures(steps=1200, **changes):
    fields = {
        "steps": steps, "seconds": 30.0, "queue": Queue(7, 3, 2), "workers": (BUSY, NEW),
        "staleness": {0: 5, 1: 20, 3: 10}, "bytes_pulled": 1_234_567, "bytes_pushed": 999, "server_restarts": 1,
    }  # fmt: skip
    return Stats(**fields | changes)


def rendered(stats):
    console = Console(file=io.StringIO(), width=100)
    console.print(table(stats))
    return console.file.getvalue()


class Counting:
    """Figures that change, like those of a coordinator."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Stats:
        self.calls += 1
        return figures(self.calls)


# The table.


def test_a_row_for_each_worker():
    lines = rendered(figures()).splitlines()
    assert lines[0].split() == ["worker", "steps", "steps/s", "input", "pull", "compute", "push", "restarts"]
    assert lines[1].split() == ["0", "1,200", "41.2", "10%", "20%", "60%", "10%", "0"]
    assert lines[2].split() == ["1", "0", "0.0", "-", "-", "-", "-", "2"]


def test_lines_for_all_of_them():
    assert rendered(figures()).splitlines()[-3:] == [
        "1,200 steps, 41.2 steps/s; queue: 7 waiting, 3 under way, 2 workers ready",
        "staleness: 1.4 mean, 3 max  ▃█ ▅",
        "servers: pulled 1.2 MB, pushed 999 B, restarts 1",
    ]


def test_before_the_first_step():
    assert "no updates yet" in rendered(figures(0, staleness={}, workers=(NEW,)))


def test_much_staleness_fits_a_line():
    found = rendered(figures(staleness=dict.fromkeys(range(500), 1)))
    assert " " + "▂" * 15 + "█\n" in found


@pytest.mark.parametrize(
    ("nbytes", "words"), [(0, "0 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB"), (3e12, "3.0 TB"), (5e15, "5000.0 TB")]
)
def test_sizes_in_words(nbytes, words):
    assert f"pulled {words}" in rendered(figures(bytes_pulled=nbytes))


# Live.


def test_a_terminal_sees_it_change():
    console, stats = Console(file=io.StringIO(), force_terminal=True, width=100), Counting()
    with live_table(stats, console, every_s=0.01):
        deadline = time.monotonic() + 10
        while stats.calls < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
    text = console.file.getvalue()
    assert "1 steps" in text
    assert f"{stats.calls} steps" in text  # the newest, at the end
    assert text.count("restarts") >= 3


def test_elsewhere_only_the_last_one_is_printed():
    console, stats = Console(file=io.StringIO(), width=100), Counting()
    with live_table(stats, console):
        time.sleep(0.02)
        assert console.file.getvalue() == ""
    assert console.file.getvalue().count("worker ") == 1
    assert stats.calls == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_in_the_block_passes_and_the_table_stays(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with pytest.raises(KeyError), live_table(figures, console):
        raise KeyError
    assert "1,200 steps" in console.file.getvalue()


def test_figures_that_fail_end_the_table_and_not_the_training(caplog):
    console, stats = Console(file=io.StringIO(), force_terminal=True, width=100), Counting()

    def failing():
        if stats.calls > 1:
            raise RuntimeError("closed")
        return stats()

    with live_table(failing, console, every_s=0.01):
        deadline = time.monotonic() + 10
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "replicax-live has failed" in caplog.text
    assert "closed" in caplog.text
    assert len(caplog.records) == 1


# TensorBoard.


def test_figures_are_written_now_and_again_and_at_the_end(tmp_path):
    stats = Counting()
    with written_scalars(stats, tmp_path / "logs", every_s=0.01):
        deadline = time.monotonic() + 10
        while stats.calls < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    found = events.scalars(tmp_path / "logs")
    assert found.keys() == figures().scalars().keys()
    assert found["steps"] == [(i, float(i)) for i in range(1, stats.calls + 1)]


def test_a_short_training_is_written_once(tmp_path):
    for _ in range(2):  # in the same second
        with written_scalars(figures, tmp_path):
            pass
    assert events.scalars(tmp_path)["queue"] == [(1200, 7.0)] * 2


@pytest.mark.parametrize("every_s", [0, -1, "1", True, float("nan")])
def test_a_senseless_interval_is_refused(tmp_path, every_s):
    with (
        pytest.raises(ArgumentError, match="`every_s` must be a positive number of seconds"),
        written_scalars(figures, tmp_path, every_s),
    ):
        pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "logs"
    with pytest.raises(ArgumentError, match=r"cannot be written to.*Give a folder"), written_scalars(figures, folder):
        pass


def test_without_tensorboardx(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with (
        pytest.raises(ArgumentError, match=r"pip install 'replicax\[tensorboard\]'"),
        written_scalars(figures, tmp_path),
    ):
        pass
