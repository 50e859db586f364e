"""Who has gone and who hangs, with a clock by hand."""

from __future__ import annotations

import pytest

from replicax.parameter_server.scheduling.watch import SERVER, WORKER, ActorId, Stage, Watch
from replicax.ray_cluster import deadline

A, B, PS = ActorId(WORKER, 0), ActorId(WORKER, 1), ActorId(SERVER, 0)
PATIENCE = deadline.PATIENCE._replace(start=60.0, stall=10.0)


@pytest.fixture
def watch() -> Watch:
    """Two workers and a server, all up at time 0."""
    watch = Watch.of(2, 1, PATIENCE)
    for actor in (A, B, PS):
        watch = comes_up(watch, actor, 0.0)
    return watch


def comes_up(watch: Watch, actor: ActorId, now: float) -> Watch:
    watch = watch.starts(actor, now)
    life = watch[actor].life
    return watch.has_goal(actor, life, 0).answers(actor, life, 0, now)


def answer(watch: Watch, now: float, *those: ActorId) -> Watch:
    for actor in watch.to_ping(now):
        watch = watch.pinged(actor, now)
        if actor in those:
            watch = watch.answers(actor, watch[actor].life, 0, now)
    return watch


def test_who_answers_and_has_nothing_to_do_never_hangs(watch):
    for second in range(1000):
        watch = answer(watch, second, A, B, PS)
        assert watch.hung(second) == {}


@pytest.mark.parametrize("silent", [A, PS])
def test_who_does_not_answer_hangs_busy_or_not_and_not_before_its_time(watch, silent):
    others = {A, B, PS} - {silent}
    for second in range(1, 12):
        watch = answer(watch, second, *others)
        assert watch.hung(second) == {}
    watch = answer(watch, 12, *others)
    assert watch.hung(12) == {silent: f"{silent} has not answered for 10 s"}


def test_a_worker_that_gets_no_further_hangs_unless_a_server_may_be_why(watch):
    watch = watch.gets_work(A, 5)
    for second in range(5, 16):
        watch = answer(watch, second, A, B, PS)
        assert watch.hung(second) == {}
    watch = answer(watch, 16, A, B, PS)
    assert list(watch.hung(16)) == [A]
    watch = watch.makes_progress(A, 16, is_busy=True)
    assert watch.hung(20) == {}
    watch = answer(watch, 20, A, B)  # The server is silent from here on.
    assert watch.hung(27) == {}
    assert list(watch.hung(31)) == [PS]


def test_being_set_up_is_watched_too(watch):
    watch = watch.starts(A, 100)
    life = watch[A].life
    assert watch.to_ping(100) == [B, PS]  # It is not there yet.
    watch = watch.has_goal(A, life, 3).answers(A, life, 0, 105)
    assert watch[A].stage is Stage.SETTING_UP
    watch = watch.answers(A, life, 2, 112)
    assert watch[A].stage is Stage.SETTING_UP
    assert A not in watch.hung(121)
    assert watch.hung(123)[A] == "worker:0 has got no further with being set up (2 of 3 things are done) for 10 s"
    watch = watch.answers(A, life, 3, 124)
    assert watch[A].stage is Stage.UP


def test_who_was_ended_has_twice_the_time_in_its_next_life(watch):
    for limit in (60, 120, 240, 480, 480):
        watch = watch.starts(A, 1000)
        assert A not in watch.hung(1000 + limit)
        assert A in watch.hung(1001 + limit)
        watch = watch.ends(A, "hung", 1001 + limit).goes(A, watch[A].life, "hung", 1001 + limit)
        assert watch[A].stage is Stage.GONE
    watch = comes_up(watch, A, 2000).makes_progress(A, 2000, is_busy=False).starts(A, 3000)
    assert A in watch.hung(3061)


def test_news_of_an_earlier_life_is_ignored(watch):
    first = watch[A].life
    watch = watch.goes(A, first, "dead", 5)
    assert watch[A].stage is Stage.GONE
    assert watch.goes(A, first, "dead", 5) is watch
    assert watch.to_start(5) == [A]
    watch = watch.starts(A, 5)
    second = watch[A].life
    assert watch.goes(A, first, "dead", 6) is watch
    assert watch.answers(A, first, 0, 6) is watch
    assert watch.has_goal(A, first, 7) is watch
    assert watch.is_current(A, second)
    watch = watch.goes(A, second, "no room", 7)
    assert watch[A].stage is Stage.GONE
    assert watch.to_start(7) == []  # Not at once again: it could not be started.
    assert watch.to_start(10) == [A]


def test_servers_are_not_started_by_the_watch(watch):
    watch = watch.goes(PS, 1, "dead", 5)
    assert watch.lost_servers() == [PS]
    assert watch.to_start(100) == []


def test_an_end_that_nobody_hears_of_is_taken_for_done(watch):
    watch = watch.ends(A, "hung", 5)
    assert watch.never_ended(30) == []
    assert watch.never_ended(36) == [A]
    assert "worker:0 is being ended (hung)" in watch.describe_absent()
