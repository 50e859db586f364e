"""Messages that only this job's processes can have written.

JAX's coordination service stores what anybody who reaches its port sends, under any key. So each message of an exchange
carries an HMAC-SHA256 of the job's token over its key, which names the exchange, the round and the sender, and over its
bytes. Nothing that another process wrote is unpickled without one (`unpickled`): a pickle can run any code.

The token is `REPLICAX_TOKEN`, which `replicax run` sets. Where nobody has set it, process 0 makes one and tells it to
the others at the rendezvous. Without either (the script has called `jax.distributed.initialize` itself) messages are
not signed, and Python objects are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
from typing import Any

from replicax.errors import ClusterError, ContextError

TOKEN = "REPLICAX_TOKEN"
_SIZE = hashlib.sha256().digest_size

_told: str = ""


def keep_token(token: str) -> None:
    """Keeps the token that process 0 has made for this job."""
    global _told
    _told = token


def job_token() -> str:
    """Returns the job's token; empty if there is none."""
    return os.environ.get(TOKEN, "") or _told


def signed(key: str, message: bytes) -> bytes:
    """Returns a message with the signature of the job; as it is if the job has no token."""
    token = job_token()
    return _signature(token, key, message) + message if token else message


def checked(key: str, message: bytes) -> bytes:
    """Returns a message without its signature.

    Raises:
        ContextError: It was not written for this key by a process of this job.
    """
    token = job_token()
    if not token:
        return message
    signature, own = message[:_SIZE], message[_SIZE:]
    if not hmac.compare_digest(signature, _signature(token, key, own)):
        raise ContextError(
            f"A message at {key!r} lacks the signature of this job: a stranger wrote it, or a process with another "
            f"{TOKEN}. Let all processes have the same one, and keep the job's ports in a private network."
        )
    return own


def pickled(purpose: str, value: object) -> bytes:
    """Returns an object as signed bytes, for `unpickled` in another process of the job.

    Args:
        purpose: What it is; the same in both calls.
        value: The object.

    Raises:
        ClusterError: The job has no token.
    """
    check_token(purpose)
    return signed(purpose, pickle.dumps(value))


def unpickled(purpose: str, message: bytes) -> Any:
    """Returns the object of `pickled`.

    Raises:
        ClusterError: The job has no token.
        ContextError: No process of this job wrote it for this purpose.
    """
    check_token(purpose)
    return pickle.loads(checked(purpose, message))


def check_token(purpose: str) -> None:
    """Checks that the job has a token, for Python objects of other processes.

    Args:
        purpose: What they are.

    Raises:
        ClusterError: It has none.
    """
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
