"""The progress bar of loops of one's own."""

import io
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import replicax as rx
from replicax.errors import ArgumentError
from replicax.tools.reporting import progress as made_progress
from replicax.tools.reporting.progress import rows_of


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def log():
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def text_of(console):
    return console.file.getvalue()


def test_a_log_gets_one_line_for_a_pass():
    console = log()
    bar = rx.progress([np.ones((4, 2)), np.ones((3, 2))], description="epoch 1", console=console)
    for batch in bar:
        bar.show(loss=jnp.float32(batch.shape[0]), accuracy=0.123456)
    (line,) = text_of(console).splitlines()
    assert line.startswith("epoch 1: 2 steps in ")
    assert line.endswith("loss 3, accuracy 0.1235") or line.endswith("loss 3  accuracy 0.1235")
    assert "rows/s" in line


def test_a_bar_that_is_closed_again_says_no_more():
    console = log()
    with rx.progress([1, 2], console=console) as bar:
        assert list(bar) == [1, 2]
    bar.close()
    assert len(text_of(console).splitlines()) == 1


def test_a_terminal_shows_how_far_it_is():
    console = terminal()
    for _ in rx.progress(range(3), description="pass [1]", console=console):
        pass
    assert "pass [1]" in text_of(console)
    assert "3/3" in text_of(console)


def test_a_second_pass_begins_anew():
    console = log()
    bar = rx.progress([1, 2, 3], console=console)
    assert [list(bar), list(bar)] == [[1, 2, 3]] * 2
    assert [line.startswith("3 steps") for line in text_of(console).splitlines()] == [True, True]


def test_a_loop_that_is_broken_off_goes_on_with_the_next_batch():
    bar = rx.progress(iter(range(5)), total=5, console=log())
    assert list(itertools.islice(bar, 2)) == [0, 1]
    assert list(bar) == [2, 3, 4]


def test_a_block_ends_the_bar_also_after_an_error():
    console = log()

    def loop():
        with rx.progress([1, 2], description="x", console=console) as bar:
            for _ in bar:
                raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        loop()
    assert text_of(console).startswith("x: 1 steps")


def test_a_source_that_fails_ends_the_bar_and_its_error_comes_through():
    def batches():
        yield 1
        raise OSError("disk")

    console = log()
    with pytest.raises(OSError, match="disk"):
        list(rx.progress(batches(), console=console))
    assert text_of(console).startswith("1 steps")


def test_only_the_chief_says_anything(monkeypatch):
    module = __import__("sys").modules["replicax.tools.reporting.progress"]
    monkeypatch.setattr(module, "is_chief", lambda: False)
    for console in (log(), terminal()):
        assert list(rx.progress([1, 2], console=console)) == [1, 2]
        assert text_of(console) == ""


def test_rows_are_those_of_the_global_batch():
    strategy = rx.MirroredStrategy()
    dataset = strategy.distribute_dataset((np.ones((20, 3), np.float32), np.ones(20)), batch_size=16)
    assert [rows_of(batch) for batch in dataset] == [16, 4]
    assert rows_of({"x": np.ones((5, 2))}) == 5
    assert rows_of((1.0,)) == 0
    assert rows_of(()) == 0


def test_what_cannot_be_shown_or_looped_over_is_refused():
    bar = rx.progress([1], console=log())
    with pytest.raises(ArgumentError, match=r"'loss' has the shape \(3,\)"):
        bar.show(loss=np.ones(3))
    with pytest.raises(ArgumentError, match="loops over batches"):
        rx.progress(3)
    with pytest.raises(ArgumentError, match="`total`"):
        rx.progress([1], total=-1)
    assert made_progress is rx.progress
