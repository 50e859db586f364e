"""A store for tests, whose processes are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from replicax.cluster.exchange import Exchange, NumberedExchanges


class FakeStore:
    """Keeps values in memory; a key is new, as in JAX's service."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self.changed:
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        with self.changed:
            if key in self.values:
                return False
            self.put(key, value)
            return True

    def get(self, key: str, timeout_s: float) -> bytes | None:
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, timeout_s)
            return self.values.get(key)

    def delete(self, key: str) -> None:
        with self.changed:
            for each in [each for each in self.values if each == key or each.startswith(f"{key}/")]:
                del self.values[each]


def in_processes(count: int, run: Callable[[int, NumberedExchanges], Any], timeout_s: float = 20.0) -> list[Any]:
    """Returns what `run(index, exchanges)` returns, or raises, in each of `count` threads."""
    store = FakeStore()

    def one(index: int) -> Any:
        try:
            return run(index, NumberedExchanges(index, count, store, timeout_s))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def exchanging(
    count: int, run: Callable[[int, Exchange], Any], timeout_s: float = 20.0, store: FakeStore | None = None
) -> list[Any]:
    """Returns what `run(process, exchange)` returns, or raises, in each of `count` threads."""
    shared = store or FakeStore()

    def one(process: int) -> Any:
        try:
            return run(process, Exchange("test", process, range(count), store=shared, timeout_s=timeout_s))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
