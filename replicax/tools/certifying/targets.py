"""Where a script runs: `mirrored:8`, and what the strategies that it makes become there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

from replicax.errors import ArgumentError
from replicax.strategies.base import Strategy

#: By the name of a target, the strategy that stands for those of the script.
STRATEGIES = {
    "mirrored": "MirroredStrategy",
    "fully_sharded": "FullyShardedStrategy",
    "central_storage": "CentralStorageStrategy",
    "workers": "MultiWorkerMirroredStrategy",
}
#: Strategies that promise the numbers of one device, so that one can stand for another.
REPLACED = (*STRATEGIES.values(), "OneDeviceStrategy", "TPUStrategy")
#: Strategies that do not, with the reason.
REFUSED = {
    "DiLoCoStrategy": "its workers train alone between two synchronizations, which is another algorithm",
    "LocalSGDStrategy": "its workers train alone between two synchronizations, which is another algorithm",
    "ParameterServerStrategy": "its steps are asynchronous, so that no two runs compute the same",
    "LayoutStrategy": "its layouts are written for one mesh",
}
#: Arguments that say where a strategy runs: the target decides these.
_PLACES = {
    "cluster_resolver", "compute_devices", "device", "devices", "devices_per_worker", "parameter_device", "platform",
    "remote_cluster", "stall_timeout", "start_timeout", "tpu_cluster_resolver", "workers",
}  # fmt: skip


class Target(NamedTuple):
    """Devices or workers, and the strategy that trains on them."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def workers(self) -> int:
        """The number of processes."""
        return self.number if self.kind == "workers" else 1

    @property
    def devices(self) -> int:
        """The number of virtual devices in each process."""
        return 1 if self.kind == "workers" else self.number


ONE_DEVICE = Target("mirrored", 1)


def targets(text: str) -> list[Target]:
    """Returns the targets of such as `"mirrored:8,workers:2"`.

    Raises:
        ArgumentError: An unknown target, no number of at least 2, a target given twice, or none.

    >>> [str(each) for each in targets("mirrored:8,workers:2")]
    ['mirrored:8', 'workers:2']
    """
    found: list[Target] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+):(\d+)\s*", part)
        if match is None or match[1] not in STRATEGIES or int(match[2]) < 2:
            raise ArgumentError(
                f"A target is {', '.join(f'{kind}:N' for kind in STRATEGIES)} with N of at least 2, got {part!r}. "
                "Write such as: --on mirrored:8,fully_sharded:8,workers:2"
            )
        target = Target(match[1], int(match[2]))
        if target in found:
            raise ArgumentError(f"The target {target} is there twice in {text!r}. Give each one once.")
        found.append(target)
    return found


def replace_strategies(
    rx: ModuleType,
    wanted: str,
    made: Callable[[Strategy], None],
    replaced: Sequence[str] = REPLACED,
    options: Mapping[str, object] = {},
) -> None:
    """Lets `rx` make strategies of one class, whichever of some a script asks for; `made` gets each.

    Args:
        rx: The package.
        wanted: The name of the class.
        made: Is called with each strategy.
        replaced: The classes that it stands for. It gets their arguments where it has them, those of places aside.
        options: Arguments that it gets besides.
    """
    cls = getattr(rx, wanted)
    classes = {name: getattr(rx, name) for name in replaced}
    # That of the class is its `__new__`'s, where it has one.
    accepted = set(inspect.signature(cls.__init__).parameters) - _PLACES - {"self"}

    def replacement(name: str, original: type[Strategy]) -> Callable[..., Strategy]:
        def make(*args: object, **kwargs: object) -> Strategy:
            given = inspect.signature(original.__init__).bind(None, *args, **kwargs).arguments
            kept = {key: value for key, value in given.items() if key in accepted}
            strategy: Strategy = cls(**{**kept, **options})
            made(strategy)
            return strategy

        make.__name__ = make.__qualname__ = name
        return make

    for name, original in classes.items():
        vars(rx)[name] = _Replaced(name, (original,), {"make": staticmethod(replacement(name, original))})
    # The devices are there already, as many as are wanted.
    vars(rx.config)["set_virtual_devices"] = lambda *_, **__: None


def refuse_strategies(rx: ModuleType) -> None:
    """Lets `rx` refuse strategies whose results nobody can compare with those of one device."""

    def refusal(name: str, reason: str) -> Callable[..., Strategy]:
        def make(*args: object, **kwargs: object) -> Strategy:
            raise ArgumentError(
                f"rx.{name} cannot be certified: {reason}. Certify the script with another strategy in its place."
            )

        return make

    for name, reason in REFUSED.items():
        vars(rx)[name] = refusal(name, reason)


class _Replaced(type(Strategy)):  # type: ignore[misc]  # the metaclass of strategies, whichever it is
    """A class of strategies in whose place another one is made; `isinstance` takes any strategy for one of it."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Strategy)
