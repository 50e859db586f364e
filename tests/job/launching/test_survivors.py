"""The survivors of a lost worker: those who watch each other are let notice it, before a signal ends them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replicax.job.supervision.state import PATIENCE
from tests.job.launching.conftest import Done
from tests.job.launching.test_job import NEWS

pytestmark = pytest.mark.multiprocess
Run = Callable[..., Done]
SHORT, LONG = PATIENCE._replace(silence=0.5), PATIENCE._replace(silence=1000.0)

TOLD = """
def tell_loss(code):
    tell(code=code, time=time.monotonic(), words="worker:1 is dead", blames=["worker 1"])
"""
LOST = "os.kill(os.getpid(), signal.SIGKILL)"


def test_a_worker_that_watches_is_let_notice_the_loss_itself(run: Run):
    done = run(
        f"""{NEWS}{TOLD}
tell(meets=2, watches=True)
time.sleep(0.3)
if index == 1: {LOST}
time.sleep(0.7)
tell_loss(71)
print("finally", flush=True)
sys.exit(71)
""",
        grace=20.0,
    )
    assert done.code == 137
    assert "[worker 0] finally" in done.out
    assert "ending worker" not in done.err


def test_one_that_does_not_notice_it_is_asked_later(run: Run):
    done = run(
        f"{NEWS}\ntell(meets=2, watches=True)\ntime.sleep(0.3)\nif index == 1: {LOST}\nsleep()",
        grace=20.0,
        patience=SHORT,
    )
    assert done.code == 137
    assert "worker 1 failed (exit code 137: ended by SIGKILL); ending worker 0 within 20 s." in done.err


@pytest.mark.parametrize(("watches", "fault"), [(False, LOST), (True, "raise ValueError")])
def test_others_are_asked_at_once(run: Run, watches: bool, fault: str):
    done = run(
        f"{NEWS}\ntell(meets=2, watches={watches})\ntime.sleep(0.3)\nif index == 1: {fault}\nsleep()",
        grace=20.0,
        patience=LONG,
    )
    assert done.code != 0
    assert "ending worker 0 within 20 s." in done.err


def test_when_all_others_have_told_it_those_who_are_stuck_are_asked_at_once(run: Run):
    done = run(
        f"""{NEWS}{TOLD}
tell(meets=3, watches=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(0.3)
if index == 1: sleep()
tell_loss(70)
sys.exit(70)
""",
        workers=3,
        grace=0.5,
        patience=LONG,
    )
    assert done.code == 70
    assert "worker 1 failed (exit code 70: no progress for too long); ending worker 1 within 0.5 s." in done.err
