from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from replicax.job.options import Options
from replicax.job.supervision.restart_policy import AttemptResult, Finish, Restart, RestartPolicy


def options(restarts: int = 0, workers: int = 4, fewest: int | None = None) -> Options:
    return Options("train.py", workers=workers, min_workers=fewest, restarts=restarts)


def decide(attempts: list[AttemptResult], wanted: Options) -> Finish | Restart:
    return RestartPolicy.of(wanted).decide(attempts)


def failed(worker: int, code: int = 1, workers: int = 4, seconds: float = 100) -> AttemptResult:
    return AttemptResult(workers, code, f"worker {worker}", seconds)


RESUMED = AttemptResult(4, 75, "worker 0", 100)


def followed(attempts: list[AttemptResult], wanted: Options) -> int:
    """Returns the number of workers of the next attempt; 0 if there is none."""
    decision = decide(attempts, wanted)
    return decision.workers if isinstance(decision, Restart) else 0


@pytest.mark.parametrize("code", [0, 2, 72])
def test_what_a_restart_would_only_repeat_is_the_end(code: int):
    assert decide([failed(0, code)], options(restarts=9)) == Finish(code)


def test_an_interrupted_launcher_restarts_nothing():
    assert decide([AttemptResult(4, 75, "worker 1", 100, interrupted=True)], options(restarts=9)) == Finish(75)


def test_failures_take_the_restarts_that_there_are():
    assert decide([failed(0)], options()) == Finish(1)
    assert decide([failed(0)], options(restarts=2)) == Restart(4, "restart 1 of 2")
    assert decide([failed(0), failed(1, -9 + 146)], options(restarts=2)) == Restart(4, "restart 2 of 2")
    assert decide([failed(0), failed(1), failed(2, 139)], options(restarts=2)) == Finish(139)


def test_to_be_resumed_is_no_failure():
    assert decide([RESUMED], options()) == Finish(75)
    assert decide([RESUMED], options(restarts=1)) == Restart(4, "it asks to be resumed")
    assert decide([RESUMED] * 10, options(restarts=1)) == Restart(4, "it asks to be resumed")
    assert decide([*[RESUMED] * 3, failed(1)], options(restarts=1)) == Restart(4, "restart 1 of 1")
    assert decide([*[RESUMED] * 3, failed(1), RESUMED], options(restarts=1)) == Finish(75)


def test_who_asks_to_be_resumed_without_doing_anything_does_not_go_on_for_ever():
    at_once = AttemptResult(4, 75, "worker 0", 0.5)
    assert decide([at_once], options(restarts=1)) == Restart(4, "it asks to be resumed")
    assert decide([at_once, at_once], options(restarts=1)) == Restart(4, "restart 1 of 1")
    assert decide([at_once, at_once, at_once], options(restarts=1)) == Finish(75)


def test_a_worker_that_fails_twice_in_a_row_is_given_up():
    wanted = options(restarts=5, fewest=2)
    assert decide([failed(3)], wanted) == Restart(4, "restart 1 of 5")
    assert decide([failed(3), failed(3)], wanted) == Restart(3, "worker 3 is given up, 3 worker(s) go on")
    assert followed([failed(3), failed(1)], wanted) == 4
    assert followed([failed(3), RESUMED, failed(3)], wanted) == 4


def test_without_restarts_left_the_job_shrinks_down_to_the_least():
    wanted = options(fewest=2)
    history = [failed(3)]
    assert followed(history, wanted) == 3
    history.append(failed(0, workers=3))
    assert followed(history, wanted) == 2
    history.append(failed(0, workers=2))
    assert decide(history, wanted) == Finish(1)


def test_at_the_least_the_restarts_are_still_good():
    wanted = options(restarts=2, fewest=3)
    history = [failed(3), failed(3), failed(0, workers=3)]
    assert decide(history, wanted) == Restart(3, "restart 2 of 2")


def test_a_server_that_fails_is_no_reason_for_fewer_workers():
    server = AttemptResult(4, 1, "ps 0", 100)
    assert decide([server], options(fewest=2)) == Finish(1)
    assert followed([server, server], options(restarts=2, fewest=2)) == 4


codes = st.sampled_from([1, 2, 70, 71, 75, 137])


@given(st.integers(0, 4), st.integers(1, 4), st.lists(st.tuples(codes, st.integers(0, 3)), min_size=40, max_size=40))
def test_every_job_that_only_fails_ends(restarts: int, fewest: int, story: list[tuple[int, int]]):
    wanted, history, workers = options(restarts, 4, fewest), [], 4
    for code, worker in story:
        history.append(AttemptResult(workers, code, f"worker {worker % workers}", 0.1))
        decision = decide(history, wanted)
        if isinstance(decision, Finish):
            assert decision.code == code
            return
        assert fewest <= decision.workers <= workers
        workers = decision.workers
    assert [attempt.code for attempt in history].count(75) > 0
