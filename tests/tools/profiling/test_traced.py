"""Which steps of a script are traced."""

import jax
import pytest

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
