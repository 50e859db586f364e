"""Values that workers must have alike before they exchange them: they are described, and the descriptions compared.

Values that several workers make each for itself are matched by their order. Nothing else would tell two variables of
one shape apart whose order differs between workers, and a collective of arrays of different shapes aborts the process.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

import replicax.runtime.activity as activity
from replicax.cluster.exchange import exchanged
from replicax.compat.jax import is_random_key
from replicax.errors import ValuesMismatchError
from replicax.runtime.transfer import from_chief, local, with_kind_of

FIRST_VALUES = "first values of variables"
_SMALL = 2**16  # bytes of values that go with their descriptions; more go over the devices
_LARGEST_NUMBER = 16
_MOST_DIGITS = 18

# A word of a name, and the numbers that Keras has appended to it: "dense_3/kernel", "adam/dense_3_kernel_momentum".
_WORD = re.compile(r"([^/_]+)((?:_[0-9]+(?=[/_]|$))*)")


class Described(NamedTuple):
    """The description of a value that workers compare."""

    name: str
    kind: str  # shape and dtype

    def __str__(self) -> str:
        return f"{self.name!r} {self.kind}"


def described(name: str, value: jax.typing.ArrayLike) -> Described:
    """Returns what workers compare of a value: its name, and its shape and dtype as arrays have them."""
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    dtype = dtype if is_random_key(value) else jax.dtypes.canonicalize_dtype(dtype)
    return Described(name, f"{tuple(np.shape(value))} {dtype}")


class Agreement:
    """Compares what the workers have, and gives all of them the chief's."""

    def __init__(self, workers: Sequence[str], exchange: Callable[[bytes], list[bytes]] = exchanged):
        self._workers, self._exchange = tuple(workers), exchange

    def chiefs(
        self, what: str, names: Sequence[str], values: Sequence[jax.typing.ArrayLike]
    ) -> list[jax.typing.ArrayLike]:
        """Returns process 0's `values` in every process; all call this together."""
        own = [described(name, value) for name, value in zip(names, values, strict=True)]
        if sum(value.nbytes if hasattr(value, "nbytes") else _LARGEST_NUMBER for value in values) > _SMALL:
            self.alike(what, own)
            with activity.phase(activity.WAIT, what):
                return from_chief(values)
        hosts = [_host_value(value) for value in values]
        sent = self.alike(what, own, b"".join(host.tobytes() for host in hosts))[0]
        return [with_kind_of(value, chiefs) for value, chiefs in zip(values, _cut(sent, hosts), strict=True)]

    def alike(self, what: str, own: Sequence[Described], payload: bytes = b"") -> list[bytes]:
        """Returns the `payload` of every worker, after all have called it with the same descriptions, `own`."""
        with activity.phase(activity.WAIT, what):
            # Names that Keras has made need not be the same, if they are in the same order: a worker may have made
            # other layers before.
            digests = _digest(own), _digest(_renumbered(own))
            messages = self._exchange(b"".join((*digests, payload)))
            size = len(digests[0])
            given, renumbered = ([message[i : i + size] for message in messages] for i in (0, size))
            odd = [i for i in range(len(given)) if given[i] != given[0] and renumbered[i] != renumbered[0]]
            if odd:
                lists = self._exchange(zlib.compress(json.dumps(own).encode()))
                chiefs, theirs = (
                    [Described(*each) for each in json.loads(zlib.decompress(lists[i]))] for i in (0, odd[0])
                )
                raise _difference(what, (self._workers[0], chiefs), (self._workers[odd[0]], theirs))
        return [message[2 * size :] for message in messages]


def _difference(
    what: str, one: tuple[str, list[Described]], another: tuple[str, list[Described]]
) -> ValuesMismatchError:
    """Returns the error that names the first place where two workers' lists differ."""
    (worker, mine), (other, theirs) = one, another
    pairs = itertools.zip_longest(_renumbered(mine), _renumbered(theirs))
    index = next(i for i, (a, b) in enumerate(pairs) if a != b)
    shown = [str(each[index]) if index < len(each) else "" for each in (mine, theirs)]
    return ValuesMismatchError(what, worker, shown[0], other, shown[1], index)


def _host_value(value: jax.typing.ArrayLike) -> np.ndarray:
    value = local(value)
    host = np.asarray(jax.random.key_data(value) if is_random_key(value) else value)
    return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)


def _cut(sent: bytes, hosts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the arrays whose bytes follow each other in `sent`; `hosts` have their shapes and dtypes."""
    arrays, start = [], 0
    for host in hosts:
        arrays.append(np.frombuffer(sent[start : start + host.nbytes], host.dtype).reshape(host.shape))
        start += host.nbytes
    return arrays


def _digest(descriptions: Sequence[tuple[object, ...]]) -> bytes:
    return hashlib.sha256(json.dumps(descriptions).encode()).digest()


def _renumbered(descriptions: Sequence[Described]) -> list[tuple[str, str, int]]:
    """Returns names without the numbers that Keras gives, kinds, and where each is among those of the same name.

    Keras counts the layers that a process has made, so only the order of its numbers says something.

    Example:
        >>> _renumbered([Described("dense_7/kernel", "() int32"), Described("dense_3/kernel", "() int32")])
        [('dense/kernel', '() int32', 1), ('dense/kernel', '() int32', 0)]
    """
    bases = [unnumbered(each.name) for each in descriptions]
    numbers = [tuple(_numbers(match[2]) for match in _WORD.finditer(each.name)) for each in descriptions]
    found: dict[str, set[tuple[tuple[int, ...], ...]]] = {}
    for base, own in zip(bases, numbers, strict=True):
        found.setdefault(base, set()).add(own)
    ranks = {base: {own: rank for rank, own in enumerate(sorted(each))} for base, each in found.items()}
    return [(base, each.kind, ranks[base][own]) for base, each, own in zip(bases, descriptions, numbers, strict=True)]


def unnumbered(name: str) -> str:
    """Returns a name without the numbers that Keras gives.

    Example:
        >>> unnumbered("dense_7/kernel")
        'dense/kernel'
    """
    return _WORD.sub(r"\1", name)


def _numbers(appended: str) -> tuple[int, ...]:
    return tuple(int(digits[:_MOST_DIGITS]) for digits in appended.split("_") if digits)
