"""What the tests of `rx.testing` run in workers."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def who_am_i(factor: int, path: Path, pair: tuple[int, ...]) -> dict[str, Any]:
    import jax

    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    path.joinpath(f"{index}.txt").write_text("here")
    return {"index": index * factor, "devices": jax.local_device_count(), "pair": type(pair).__name__}


def fail_in_worker(worker: int, folder: Path) -> None:
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    print(f"this is worker {index}", flush=True)
    folder.joinpath(str(index)).touch()
    if index == worker:
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.05)
        raise ValueError("on purpose")
    time.sleep(100)


def sleep_for_ever() -> None:
    print("pid", os.getpid(), flush=True)
    where_it_sleeps()


def where_it_sleeps() -> None:
    time.sleep(1000)


def exit_silently() -> None:
    sys.exit(3)


async def coroutine() -> None:
    pass


def workers_of_a_strategy() -> int:
    import replicax as rx

    return rx.MultiWorkerMirroredStrategy(start_timeout=60).num_workers
