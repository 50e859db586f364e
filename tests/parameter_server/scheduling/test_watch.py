"""Who has gone and who hangs, with a clock by hand."""

from __future__ import annotations

import pytest

from replicax.parameter_server.scheduling.watch import SERVER, WORKER, State, Watch, Who

A, B, PS = Who(WORKER, 0), Who(WORKER, 1), Who(SERVER, 0)
STALL, START = 10.0, 60.0


@pytest.fixture
def watch() -> Watch:
    """Two workers and a server, all up at time 0."""
    watch = Watch(2, 1, STALL, START)
    for who in (A, B, PS):
        comes_up(watch, who, 0.0)
    return watch


def comes_up(watch: Watch, who: Who, now: float) -> int:
    life = watch.begins(who, now)
    watch.has_goal(who, life, 0)
    watch.answers(who, life, 0, now)
    return life


def answer(watch: Watch, now: float, *whom: Who) -> None:
    for who in watch.to_ping(now):
        watch.asked(who, now)
        if who in whom:
            watch.answers(who, watch.life(who), 0, now)


def test_who_answers_and_has_nothing_to_do_never_hangs(watch):
    for second in range(1000):
        answer(watch, second, A, B, PS)
        assert watch.hung(second) == {}


@pytest.mark.parametrize("silent", [A, PS])
def test_who_does_not_answer_hangs_busy_or_not_and_not_before_its_time(watch, silent):
    others = {A, B, PS} - {silent}
    for second in range(1, 12):
        answer(watch, second, *others)
        assert watch.hung(second) == {}
    answer(watch, 12, *others)
    assert watch.hung(12) == {silent: f"{silent} has not answered for 10 s"}


def test_a_worker_that_gets_no_further_hangs_unless_a_server_may_be_why(watch):
    watch.has_work(A, 5)
    for second in range(5, 16):
        answer(watch, second, A, B, PS)
        assert watch.hung(second) == {}
    answer(watch, 16, A, B, PS)
    assert list(watch.hung(16)) == [A]
    watch.gets_on(A, 16, is_busy=True)
    assert watch.hung(20) == {}
    answer(watch, 20, A, B)  # The server is silent from here on.
    assert watch.hung(27) == {}
    assert list(watch.hung(31)) == [PS]


def test_being_set_up_is_watched_too(watch):
    life = watch.begins(A, 100)
    assert watch.to_ping(100) == [B, PS]  # It is not there yet.
    watch.has_goal(A, life, 3)
    assert not watch.answers(A, life, 0, 105)
    assert watch.state(A) is State.SETTING_UP
    assert not watch.answers(A, life, 2, 112)
    assert A not in watch.hung(121)
    assert watch.hung(123)[A] == "worker:0 has got no further with being set up (2 of 3 things are done) for 10 s"
    assert watch.answers(A, life, 3, 124)
    assert watch.state(A) is State.UP


def test_who_was_ended_has_twice_the_time_in_its_next_life(watch):
    for limit in (60, 120, 240, 480, 480):
        life = watch.begins(A, 1000)
        assert A not in watch.hung(1000 + limit)
        assert A in watch.hung(1001 + limit)
        watch.is_ended(A, "hung", 1001 + limit)
        assert watch.goes(A, life, "hung", 1001 + limit)
    comes_up(watch, A, 2000)
    watch.gets_on(A, 2000, is_busy=False)
    watch.begins(A, 3000)
    assert A in watch.hung(3061)


def test_news_of_an_earlier_life_is_ignored(watch):
    first = watch.life(A)
    assert watch.goes(A, first, "dead", 5)
    assert not watch.goes(A, first, "dead", 5)
    assert watch.to_start(5) == [A]
    second = watch.begins(A, 5)
    assert not watch.goes(A, first, "dead", 6)
    assert not watch.answers(A, first, 0, 6)
    assert watch.is_current(A, second)
    assert watch.goes(A, second, "no room", 7)
    assert watch.to_start(7) == []  # Not at once again: it could not be started.
    assert watch.to_start(10) == [A]


def test_servers_are_not_started_by_the_watch(watch):
    watch.goes(PS, 1, "dead", 5)
    assert watch.lost_servers() == [PS]
    assert watch.to_start(100) == []


def test_an_end_that_nobody_hears_of_is_taken_for_done(watch):
    watch.is_ended(A, "hung", 5)
    assert watch.never_ended(30) == []
    assert watch.never_ended(36) == [A]
    assert "worker:0 is being ended (hung)" in watch.told()
