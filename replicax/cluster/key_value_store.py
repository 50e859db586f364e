"""The key-value store that all processes of a job reach: JAX's coordination service, which process 0 keeps."""

from __future__ import annotations

from typing import Protocol

from replicax.compat.jax_processes import delete_stored, fetch_bytes, store_bytes

_LONGEST_VALUE = 2 * 2**20  # The service takes messages of up to 4 MiB.


class Store(Protocol):
    """A key-value store that all processes reach."""

    def put(self, key: str, value: bytes) -> None:
        """Stores `value` under a new key."""

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Waits for the value of a key; None if there is none in time."""

    def delete(self, key: str) -> None:
        """Removes a key, and all that begin with `key/`."""


class ServiceStore:
    """The store of JAX's coordination service.

    Each method raises `jax.errors.JaxRuntimeError` if the service is gone.
    """

    def put(self, key: str, value: bytes) -> None:
        store_bytes(key, value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        return fetch_bytes(key, timeout_s)

    def delete(self, key: str) -> None:
        delete_stored(key)


def put_pieces(store: Store, key: str, message: bytes) -> None:
    """Stores a message of any length, to be got by `get_pieces`."""
    starts = range(0, max(len(message), 1), _LONGEST_VALUE)
    for number, start in enumerate(starts):
        head = len(starts).to_bytes(4, "big") if number == 0 else b""
        store.put(f"{key}/{number}", head + message[start : start + _LONGEST_VALUE])


def get_pieces(store: Store, key: str, timeout_s: float) -> bytes | None:
    """Waits for a message that `put_pieces` stores; None if its beginning has not come in time.

    Once it has begun to come, the rest is waited for as long as the writer lives.
    """
    first = store.get(f"{key}/0", timeout_s)
    if first is None:
        return None
    pieces = [first[4:]]
    while len(pieces) < int.from_bytes(first[:4], "big"):
        piece = store.get(f"{key}/{len(pieces)}", timeout_s)
        if piece is None:
            return None
        pieces.append(piece)
    return b"".join(pieces)
