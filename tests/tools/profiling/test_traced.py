"""Which steps of a script are traced."""

import time

import jax
import pytest

from replicax.data.input_times import InputTimes
from replicax.tools.profiling import INPUT
from replicax.tools.profiling.traced import Recorder


@pytest.fixture
def calls(monkeypatch):
    """The calls of JAX's profiler."""
    made = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder, **options: made.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: made.append("stop"))
    return made


def steps(recorder, count, calls):
    for number in range(count):
        recorder.count()
        calls.append(number + 1)
    recorder.end()
    return calls


def test_the_trace_has_the_steps_from_the_first_to_the_last(tmp_path, calls):
    assert steps(Recorder(tmp_path, 2, 3), 5, calls) == [1, "start", 2, 3, "stop", 4, 5]


def test_a_script_that_ends_within_it_ends_it(tmp_path, calls):
    assert steps(Recorder(tmp_path, 2, 9), 3, calls) == [1, "start", 2, 3, "stop"]


def test_a_script_that_ends_before_it_is_told(tmp_path, calls, capsys):
    assert steps(Recorder(tmp_path, 7, 9), 3, calls) == [1, 2, 3]
    assert "ended after 3 steps" in capsys.readouterr().err


def test_what_the_input_took_is_written_beside_the_trace(tmp_path, calls):
    recorder = Recorder(tmp_path, 1, 2)
    small, large = InputTimes(), InputTimes()
    for times, count in ((small, 2), (large, 3)):
        for _ in range(count):
            times.got(time.monotonic())
            recorder.took(times)
    small.got(time.monotonic() - 1e-9)
    recorder.took(small)  # As many as the other: the later one counts.
    steps(recorder, 2, calls)
    assert (tmp_path / INPUT).read_text() == str(small)
