"""Messages that only this job's processes can have written.

JAX's coordination service stores what anybody who reaches its port sends, under any key. So all that processes tell
each other there goes through a `SignedStore`: each value carries an HMAC-SHA256 of the job's token over its key, which
names what it is, the round and the sender, and over its bytes. Nothing that another process wrote is unpickled without
one (`unpickled`): a pickle can run any code.

The token is `REPLICAX_TOKEN`, which `replicax run` sets. It never travels: a process shows what is derived from it for
one purpose (`shown`). Process 0 adds a number of its own, which it tells the others at the rendezvous, so that messages
of an earlier run do not count; where nobody has set a token, that number alone is the secret. Without either (the
script has called `jax.distributed.initialize` itself) messages are not signed, and Python objects are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import secrets
from typing import Any, Generic, Protocol, TypeVar

from replicax.checks.environment_names import TOKEN as TOKEN
from replicax.errors import ClusterError, ContextError, ReplicaxError

TOKEN_BYTES = 16
_SIZE = hashlib.sha256().digest_size
_AT_ONCE_S = 0.001  # to read what is there

_session: str = ""


def new_token() -> str:
    """Returns a token that nobody can guess."""
    return secrets.token_hex(TOKEN_BYTES)


def given_token() -> str:
    """Returns the token that this process was given; empty if there is none."""
    return os.environ.get(TOKEN, "")


def begin_session(number: str) -> None:
    """Keeps the secret number that process 0 has told at the rendezvous."""
    global _session
    _session = number


def job_token() -> str:
    """Returns what only the processes of this run of the job know; empty if there is nothing."""
    return given_token() + _session


def shown(token: str, purpose: str) -> str:
    """Returns what proves that this process knows a token, of no use for another purpose; empty if the token is."""
    return _signature(token, f"replicax {purpose}", b"").hex() if token else ""


def signed(key: str, message: bytes) -> bytes:
    """Returns a message with the signature of the job; as it is if the job has no token."""
    token = job_token()
    return _signature(token, key, message) + message if token else message


def checked(key: str, message: bytes, refusal: type[ReplicaxError] = ContextError) -> bytes:
    """Returns a message without its signature; raises `refusal` unless a process of this job wrote it for this key."""
    token = job_token()
    if not token:
        return message
    signature, own = message[:_SIZE], message[_SIZE:]
    if not hmac.compare_digest(signature, _signature(token, key, own)):
        raise refusal(
            f"A message at {key!r} lacks the signature of this job: a stranger wrote it, or a process with another "
            f"{TOKEN}. Let all processes have the same one, and keep the job's ports in a private network."
        )
    return own


class _Store(Protocol):
    """The part that all stores have; see `key_value_store.Store`."""

    def put(self, key: str, value: bytes) -> None: ...

    def put_if_absent(self, key: str, value: bytes) -> bool: ...

    def get(self, key: str, timeout_s: float) -> bytes | None: ...

    def delete(self, key: str) -> None: ...


_S = TypeVar("_S", bound=_Store)


class SignedStore(Generic[_S]):
    """A store in which only values count that this job's processes have written; `refusal` is raised for others."""

    def __init__(self, store: _S, refusal: type[ReplicaxError] = ContextError):
        self._store, self._refusal = store, refusal

    def put(self, key: str, value: bytes) -> None:
        """Stores a value; see the store."""
        try:
            return self._store.put(key, signed(key, value))
        except RuntimeError as error:  # JAX's
            failure = error
        self.get(key, _AT_ONCE_S)  # If the key is taken, it may be a stranger's.
        raise failure

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Stores a value unless the key is taken; returns whether it did. A stranger's value is found by `get`."""
        return self._store.put_if_absent(key, signed(key, value))

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Waits for the value of a key; returns None if there is none in time."""
        found = self._store.get(key, timeout_s)
        return None if found is None else checked(key, found, self._refusal)

    def delete(self, key: str) -> None:
        """Removes a key, and all keys that begin with `key/`."""
        self._store.delete(key)


def pickled(purpose: str, value: object) -> bytes:
    """Returns an object as signed bytes, for `unpickled` in another process of the job."""
    check_token(purpose)
    return signed(purpose, pickle.dumps(value))


def unpickled(purpose: str, message: bytes) -> Any:
    """Returns the object of `pickled`."""
    check_token(purpose)
    return pickle.loads(checked(purpose, message))


def check_token(purpose: str) -> None:
    """Checks that the job has a token, for Python objects of other processes."""
    if not job_token():
        raise ClusterError(
            TOKEN,
            None,
            f"is not set, and a Python object ({purpose}) comes from another process: without a token its "
            "sender is unknown",
            f"Set {TOKEN} to the same secret text in all processes, or start them with `replicax run`.",
        )


def _signature(token: str, key: str, message: bytes) -> bytes:
    key_bytes = key.encode()
    return hmac.digest(token.encode(), len(key_bytes).to_bytes(8, "big") + key_bytes + message, "sha256")
