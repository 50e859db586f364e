"""An alarm that the script raises."""

from __future__ import annotations

import threading
import time

import jax
import pytest

from replicax.errors import WorkerLostError
from replicax.group.health.alarm import PATIENCE, Alarm, Connections
from replicax.runtime.activity import WAIT, exchange, now, phase

LOST = ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:1")


def alarm(wait=lambda: None, **waits) -> Alarm:
    return Alarm(Connections(2, lambda: set()), wait, PATIENCE._replace(**waits))


@pytest.fixture
def rung(monkeypatch) -> Alarm:
    made = alarm()
    made.ring("the report", 71, ["worker:1"])
    monkeypatch.setattr(now, "check", made.check)
    monkeypatch.setattr(now, "explain", made.explain)
    return made


def test_without_an_alarm_nothing_is_raised():
    quiet = alarm()
    quiet.check()
    quiet.explain(LOST)
    assert not quiet.is_raised


def test_each_call_after_an_alarm_raises_it(rung):
    for _ in range(2):
        with pytest.raises(WorkerLostError, match="the report") as raised:
            rung.check()
        assert (raised.value.exit_code, raised.value.workers) == (71, ("worker:1",))


def test_the_error_of_a_lost_collective_is_its_cause(rung):
    with pytest.raises(WorkerLostError) as raised:
        rung.explain(LOST)
    assert raised.value.__cause__ is LOST


def test_an_error_that_a_lost_collective_has_caused_is_explained_too(rung):
    error = RuntimeError("the values of the variables are lost")
    error.__cause__ = LOST
    with pytest.raises(WorkerLostError):
        rung.explain(error)


@pytest.mark.parametrize("error", [ValueError("shapes differ"), RuntimeError("Gloo"), KeyboardInterrupt()])
def test_other_errors_stay_as_they_are(rung, error):
    rung.explain(error)


def test_the_script_waits_until_the_monitor_has_found_the_reason():
    made = alarm(lambda: made.ring("found", 71, []))
    with pytest.raises(WorkerLostError, match="found"):
        made.explain(LOST)


@pytest.mark.parametrize("waiting", [lambda: phase(WAIT, "data"), lambda: exchange("data")])
def test_whatever_waits_for_others_raises_it(rung, monkeypatch, waiting):
    monkeypatch.setattr(now, "thread", threading.get_ident())
    before = now.at[0]
    with pytest.raises(WorkerLostError), waiting():
        raise LOST
    assert now.at[0] == before


def test_a_phase_of_the_user_s_own_code_keeps_its_errors(rung):
    with pytest.raises(ValueError, match="Gloo"), phase("callback"):
        raise LOST


def test_the_monitor_waits_for_the_script_but_not_forever():
    absent = alarm(start=0.05)
    absent.ring("", 70, [])
    begun = time.monotonic()
    absent.wait_for_script()
    assert time.monotonic() - begun < 10
    endless = alarm(end=0.1)
    endless.ring("", 70, [])
    with pytest.raises(WorkerLostError):
        endless.check()
    endless.wait_for_script()
    ending = alarm(end=1000.0)
    ending.ring("", 70, [])
    threading.Timer(0.05, ending.end).start()
    ending.wait_for_script()
    assert time.monotonic() - begun < 30


def test_process_0_is_asked_where_the_collectives_listen_until_all_are_known():
    answers = iter([set(), {1}, {1, 2}])
    connections = Connections(2, lambda: next(answers))
    for _ in range(3):
        connections._ask_at = 0.0
        connections.look(0)
        connections._thread.join(20)
    connections._ask_at = 0.0
    connections.look(0)
    assert connections.shut_down() == 0
    assert connections._ports == {1, 2}


def test_process_0_is_asked_soon_after_the_first_program_however_long_the_start_was():
    asked = []
    connections = Connections(2, lambda: asked.append(1) or set())
    connections._pause, connections._ask_at = 60.0, float("inf")  # It was asked in vain again and again.
    connections.look(0)
    assert connections._thread is None
    connections.look(1)
    connections._thread.join(20)
    assert asked == [1]
    assert connections._ask_at < time.monotonic() + 2
    connections.look(2)
    assert asked == [1]


def test_process_0_that_does_not_answer_keeps_nobody():
    over = threading.Event()
    connections = Connections(2, lambda: over.wait(60) and set(), PATIENCE._replace(silence=0.05))
    assert connections.shut_down() == 0
    over.set()

    def gone():
        raise jax.errors.JaxRuntimeError("UNAVAILABLE")

    assert Connections(2, gone).shut_down() == 0
