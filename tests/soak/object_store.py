"""Strikes every request of saves and restores in object stores, and looks whether a checkpoint is lost or half-read.

    python tests/soak/object_store.py [--stores s3,gs]

Servers of S3 (moto) and GCS (gcp-storage-emulator) run on this machine, behind a proxy (`tests/stores/proxy.py`). A
manager saves step after step to one folder; in each save one request is struck, each request of a save by each fault.
A fault that kills the process strikes a process of its own, whose work the next one finds. After every save all
checkpoints that the folder offers are restored and compared, and those that a save had promised must be among them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.stores.proxy import Fault, Proxy  # noqa: E402
from tests.stores.servers import BUCKET, environ, environment, request, store  # noqa: E402

KILLS = (Fault.KILL, Fault.DONE_AND_KILL)
KEPT = 2
ROWS = 500


def values(step: int) -> np.ndarray:
    return np.arange(ROWS, dtype=np.float32) + step


def manager_of(url: str):
    import jax.numpy as jnp

    import replicax as rx
    from replicax.checkpoint.places import StorePatience, absolute

    place = absolute(url)
    quick = type(place)(place.url, StorePatience(all=30.0, each=0.5, first_pause=0.01, longest_pause=0.2))
    held = {"w": rx.Variable(jnp.zeros(ROWS)), "b": rx.Variable(jnp.zeros(3))}
    return rx.CheckpointManager(quick, max_to_keep=KEPT, async_=False, objects=held), held


def save(manager, held, step: int) -> None:
    held["w"].assign(values(step))
    held["b"].assign(values(step)[:3])
    manager.save(step, force=True)


def one_save(url: str, step: int) -> None:
    """The process that a fault kills."""
    manager, held = manager_of(url)
    manager.restore_or_initialize()
    print("begins", flush=True)
    save(manager, held, step)
    print("saved", flush=True)


class Soak:
    def __init__(self, scheme: str, proxy: Proxy):
        self.scheme, self.proxy = scheme, proxy
        self.url = f"{scheme}://{BUCKET}/soak"
        self.struck = self.lost = self.half = self.failed = 0
        self.promised: list[int] = []
        self.step = 0

    def look(self) -> None:
        """Restores all checkpoints, undisturbed, as another process would."""
        self.proxy.reset()
        manager, held = manager_of(self.url)
        found = manager.all_steps()
        wanted = sorted(set(self.promised))[-KEPT:]
        # A save whose process was killed may be complete without a promise, and take the place of an older one.
        gone = [step for step in wanted if step not in found and sum(each > step for each in found) < KEPT]
        if gone:
            self.lost += 1
            print(f"LOST {self.scheme}: {gone} were promised, and {found} are there")
        for step in found:
            try:
                manager.restore(step)
            except Exception as error:
                self.half += 1
                print(f"HALF {self.scheme}: step {step}: {error}")
                continue
            if not np.array_equal(held["w"].numpy(), values(step)):
                self.half += 1
                print(f"HALF {self.scheme}: step {step} has other values")

    def saves(self, same_step: bool) -> None:
        """Strikes each request of a save by each fault: of a new step, or of one that is replaced."""
        manager, held = manager_of(self.url)
        count = self._clean_save(manager, held)
        for fault in Fault:
            for at in range(count) if fault not in KILLS else ():
                step = self.step = self.step + (not same_step)
                self.proxy.reset(at, fault)
                try:
                    save(manager, held, step)
                    self.promised.append(step)
                except Exception as error:
                    self.failed += 1
                    print(f"failed {self.scheme}: {fault.name} at {at}: {error}")
                manager._saved.discard(step)  # So that the same step is saved again.
                self.struck += len(self.proxy.struck)
                self.look()

    def _clean_save(self, manager, held) -> int:
        for _ in range(KEPT + 1):
            self.step += 1
            self.proxy.reset()
            save(manager, held, self.step)
            self.promised.append(self.step)
        return self.proxy.count

    def restores(self) -> None:
        """Strikes each request of a restore."""
        manager, held = manager_of(self.url)
        self.proxy.reset()
        manager.restore()
        count = self.proxy.count
        for fault in (Fault.REFUSED, Fault.SILENCE, Fault.DONE_AND_CUT):
            for at in range(count):
                self.proxy.reset(at, fault)
                manager.restore()
                self.struck += len(self.proxy.struck)
                if not np.array_equal(held["w"].numpy(), values(self.promised[-1])):
                    self.half += 1

    def kills(self) -> None:
        """Kills a process at each request of its save, before and after the store has done it."""
        at, fault = 0, KILLS[0]
        while True:
            self.step += 1
            process = subprocess.Popen(
                [sys.executable, __file__, "--one-save", self.url, str(self.step)], stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            with process:
                self.proxy.kill = lambda: os.kill(process.pid, signal.SIGKILL)  # noqa: B023
                assert process.stdout.readline() == "begins\n"
                self.proxy.reset(at, fault)
                saved = process.stdout.readline() == "saved\n"
            if saved:
                self.promised.append(self.step)
            struck = len(self.proxy.struck)
            self.struck += struck
            self.look()
            if struck == 0:  # The save had no more requests.
                if fault is KILLS[1]:
                    return
                at, fault = -1, KILLS[1]
            at += 1

    def left(self) -> int:
        """Returns how many objects no checkpoint has, after a save that finds what others have left."""
        from replicax.checkpoint import read_metadata
        from replicax.checkpoint.places import absolute, place_of

        manager, held = manager_of(self.url)
        self.proxy.reset()
        manager.restore_or_initialize()
        self.step += 1
        save(manager, held, self.step)
        folder = absolute(self.url)
        own = set()
        for step in manager.all_steps():
            place = place_of(manager.path(step))
            files = {*read_metadata(place).files, "metadata.json"}
            own |= {f"{place.url.removeprefix(folder.url)[1:]}/{file}" for file in files}
        rest = sorted(set(folder.names()) - own)
        if rest:
            print(f"LEFT {self.scheme}: {rest[:10]}")
        uploads = request(self.proxy.backend, "GET", f"/{BUCKET}?uploads").count(b"<Upload>")
        return len(rest) + (uploads if self.scheme == "s3" else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", default="s3,gs")
    parser.add_argument("--one-save", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_save:
        one_save(options.one_save[0], int(options.one_save[1]))
        return
    begun, done = time.monotonic(), []
    for scheme in options.stores.split(","):
        with contextlib.ExitStack() as stack:
            proxy = stack.enter_context(Proxy(stack.enter_context(store(scheme))).running())
            stack.enter_context(environ(environment(scheme, proxy.port)))
            soak = Soak(scheme, proxy)
            soak.saves(same_step=False)
            soak.saves(same_step=True)
            soak.restores()
            soak.kills()
            left = soak.left()
            done.append((soak, left))
            print(json.dumps({"store": scheme, "struck": soak.struck, "failed": soak.failed, "left": left}))
    print(f"{time.monotonic() - begun:.0f} s")
    print(f"RESULT store_requests_struck {sum(soak.struck for soak, _ in done)}")
    print(f"RESULT store_saves_failed {sum(soak.failed for soak, _ in done)}")
    print(f"RESULT store_lost_checkpoints {sum(soak.lost for soak, _ in done)}")
    print(f"RESULT store_half_written_read {sum(soak.half for soak, _ in done)}")
    print(f"RESULT store_parts_left {sum(left for _, left in done)}")


if __name__ == "__main__":
    main()
