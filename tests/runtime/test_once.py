"""Doing a thing once."""

import threading
import time

import pytest

from replicax.runtime.once import once


def test_threads_that_come_together_do_it_once():
    calls, ended_before = [], []
    together = threading.Barrier(4)

    @once
    def install():
        time.sleep(0.05)
        calls.append(1)

    def run():
        together.wait()
        install()
        ended_before.append(len(calls))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]
    assert ended_before == [1] * 4, "nobody goes on before it is done"


def test_what_has_failed_is_tried_again():
    calls = []

    @once
    def install():
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        install()
    install()
    install()
    assert len(calls) == 2
