"""Random values that are the same in every process: of a kind, a shape, and a number."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np


class Draws:
    """Hands out random arrays. The n-th array of one kind and shape is the same in every process."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def number(self, kind: str, shape: Sequence[int]) -> int:
        """Returns how many draws of this kind and shape there were before, and counts one more."""
        key = (kind, tuple(shape))
        self._counts[key] += 1
        return self._counts[key] - 1

    def normal(self, kind: str, shape: Sequence[int], number: int) -> np.ndarray:
        """Returns standard normal numbers, float64, none farther than two from zero."""
        return np.clip(_generator(kind, shape, number).standard_normal(tuple(shape)), -2.0, 2.0)

    def uniform(self, kind: str, shape: Sequence[int], number: int) -> np.ndarray:
        """Returns numbers in [0, 1), float64."""
        return _generator(kind, shape, number).random(tuple(shape))


def _generator(kind: str, shape: Sequence[int], number: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{kind} {tuple(shape)} {number}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def initial_values(
    draws: Draws, kind: str, config: Mapping[str, object], shape: Sequence[int], number: int
) -> np.ndarray:
    """Returns what an initializer of Keras, given by class and configuration, draws for its `number`-th variable."""

    def setting(name: str, default: float) -> float:
        value = config.get(name)
        return float(value) if isinstance(value, int | float) else default

    if "minval" in config:
        low, high = setting("minval", -0.05), setting("maxval", 0.05)
        return low + (high - low) * draws.uniform("RandomUniform", shape, number)
    if "stddev" in config:
        return setting("mean", 0.0) + setting("stddev", 0.05) * draws.normal("RandomNormal", shape, number)
    if "scale" in config or kind in _FAMILY:
        scale, mode, distribution = _FAMILY.get(kind, (1.0, "fan_in", "normal"))
        scale = setting("scale", scale)
        mode, distribution = str(config.get("mode", mode)), str(config.get("distribution", distribution))
        fans = dict(zip(("fan_in", "fan_out"), _fans(shape), strict=True))
        deviation = math.sqrt(scale / max(1.0, fans.get(mode, sum(fans.values()) / 2)))
        if distribution == "uniform":
            return math.sqrt(3) * deviation * (2 * draws.uniform("VarianceScaling", shape, number) - 1)
        return deviation * draws.normal("VarianceScaling", shape, number)
    rows = max(1, math.prod(shape[:-1]))
    return setting("gain", 1.0) / math.sqrt(rows) * draws.normal(kind, shape, number)


#: Scale, mode and distribution of the initializers whose configuration does not say them.
_FAMILY = {
    "GlorotUniform": (1.0, "fan_avg", "uniform"),
    "GlorotNormal": (1.0, "fan_avg", "normal"),
    "HeUniform": (2.0, "fan_in", "uniform"),
    "HeNormal": (2.0, "fan_in", "normal"),
    "LecunUniform": (1.0, "fan_in", "uniform"),
    "LecunNormal": (1.0, "fan_in", "normal"),
}


def _fans(shape: Sequence[int]) -> tuple[float, float]:
    if len(shape) < 2:
        size = float(shape[0]) if shape else 1.0
        return size, size
    field = math.prod(shape[:-2])
    return float(shape[-2] * field), float(shape[-1] * field)
