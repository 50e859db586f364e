"""The clock looks at the stacks of other threads, and leaves their memory as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# A thread calls and returns all the time, at depths that change. Where Python collects in the thread that looks at it,
# it gives up the GIL meanwhile.
_LOOKS = """
import gc, sys, threading, time, types
from replicax.runtime import clock

sys.setswitchinterval(1e-5)
is_over, kept = threading.Event(), []

def call(depth):
    before = [depth]
    kept.append([before, {depth: before}])
    return call(depth - 1) if depth else [before]

def lists():
    return [[index] for index in range(3)]

def work():
    while not is_over.is_set():
        for depth in range(7):
            call(0), lists(), call(depth)
        if len(kept) > 200:
            kept.clear()

def collecting(phase, info):
    if threading.current_thread() is threading.main_thread():
        time.sleep(1e-4)

gc.callbacks.append(collecting)
gc.set_threshold(20, 1000, 1000)
thread = threading.Thread(target=work)
thread.start()
end, looks = time.monotonic() + 2.0, 0
try:
    while time.monotonic() < end:
        with clock.frames_of_threads() as frames:
            frame = frames.get(thread.ident)
            while frame is not None:
                assert type(frame) is types.FrameType, type(frame)
                frame = frame.f_back
        looks += 1
finally:
    is_over.set()
    thread.join()
assert gc.isenabled() and looks > 100, looks
"""


def test_looking_at_a_stack_overwrites_nothing() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "faulthandler", "-c", _LOOKS]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr[-2000:]}"
