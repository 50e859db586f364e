"""The key-value store that all processes of a job reach: JAX's coordination service, which runs in process 0."""

from __future__ import annotations

from typing import Protocol

from replicax.compat.jax_processes import delete_stored, fetch_bytes, store_bytes, store_bytes_if_absent

_LONGEST_VALUE = 2 * 2**20  # The service takes messages of up to 4 MiB.


class Store(Protocol):
    """A key-value store that all processes reach."""

    def put(self, key: str, value: bytes) -> None:
        """Stores `value` under a new key."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Stores `value` unless the key is taken; returns whether it did. Of several processes exactly one succeeds."""

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Waits for the value of a key; returns None if there is none in time."""

    def delete(self, key: str) -> None:
        """Removes a key, and all keys that begin with `key/`."""


class ServiceStore:
    """The store of JAX's coordination service; methods raise `jax.errors.JaxRuntimeError` if the service is gone."""

    def put(self, key: str, value: bytes) -> None:
        store_bytes(key, value)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        return store_bytes_if_absent(key, value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        return fetch_bytes(key, timeout_s)

    def delete(self, key: str) -> None:
        delete_stored(key)


def put_pieces(store: Store, key: str, message: bytes) -> None:
    """Stores a message of any length, to be read by `get_pieces`."""
    starts = range(0, max(len(message), 1), _LONGEST_VALUE)
    for piece, start in enumerate(starts):
        head = len(starts).to_bytes(4, "big") if piece == 0 else b""
        store.put(f"{key}/{piece}", head + message[start : start + _LONGEST_VALUE])


def get_pieces(store: Store, key: str, timeout_s: float) -> bytes | None:
    """Waits for a message that `put_pieces` stores; returns None if one of its pieces has not come in time."""
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
