"""How lost servers are replaced, and all variables get the values of the newest checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from replicax.contracts.variable_access import VariableLike, name_of
from replicax.errors import CheckpointError, ParameterServerLost
from replicax.parameter_server.scheduling.host import CheckpointSource, ServedStrategy
from replicax.parameter_server.scheduling.worker_actors import WorkerActors
from replicax.parameter_server.variables.remote import home_of

_log = logging.getLogger(__name__)


class ServersLostAgain(Exception):
    """Servers were lost while others were being replaced: the machine decides whether to try again."""

    def __init__(self, error: ParameterServerLost, lost: tuple[int, ...]):
        super().__init__(str(error))
        self.error, self.lost = error, lost


class Recovery:
    """Replaces lost servers and gives all variables the values of the newest checkpoint."""

    def __init__(
        self,
        strategy: ServedStrategy,
        workers: WorkerActors,
        manager: CheckpointSource,
        starting: Callable[[int], None],
        replaced: Callable[[Sequence[int]], None],
    ):
        self._strategy, self._workers, self._manager = strategy, workers, manager
        self._starting, self._replaced = starting, replaced

    def __call__(self, reason: str, lost: Sequence[int]) -> None:
        """Tries it once, while no step is under way; servers that are `lost` have been replaced without variables."""
        servers = self._strategy.servers
        servers.begin_restoring()
        found = servers.lost(self._strategy.patience.stall)
        lost = sorted({*lost, *found})
        if not lost:
            return
        try:
            servers.end(found)
            servers.start(found, self._starting)
            self._replaced(found)
            found_checkpoint = self._restore(lost)
        except ParameterServerLost as error:
            raise ServersLostAgain(error, tuple(lost)) from error
        if not found_checkpoint:
            raise no_checkpoint(reason, self._manager.directory)

    def _restore(self, lost: Sequence[int]) -> bool:
        """Gives all variables the values of the newest checkpoint; returns whether there is one."""
        servers = self._strategy.servers
        servers.begin_era()
        variables = [variable for variable in self._strategy.variables() if home_of(variable).servers]
        for variable in variables:
            home_of(variable).forget_servers(lost)
        if self._manager.restore_or_initialize() is None:
            return False
        _check_known(variables)
        self._strategy.send_changes(variables)
        servers.age += 1
        self._workers.use_servers(servers.handles, servers.era)
        return True


def no_checkpoint(reason: str, directory: str | os.PathLike[str] | None = None) -> ParameterServerLost:
    """Returns the error for a lost server when there is no checkpoint to go on from; `directory` is the manager's."""
    if directory is not None:
        advice = f"There is no checkpoint in {directory} yet: save once before the first step, by manager.save(0)."
    else:
        advice = "Give the ClusterCoordinator a CheckpointManager, so that training goes on from the newest checkpoint."
    return ParameterServerLost(f"A parameter server was lost, and with it the variables that it had. {advice} {reason}")


def _check_known(variables: Sequence[VariableLike]) -> None:
    """Checks that the checkpoint had all variables of lost servers, or that this process has older values of them."""
    missing = [variable for variable in variables if home_of(variable).is_unknown]
    gone = [name_of(variable) for variable in missing if not home_of(variable).has_value]
    if gone:
        raise CheckpointError(
            f"A server was lost with {gone[:6]}, which the checkpoint does not have. Put everything that is to survive "
            "into the Checkpoint."
        )
    if missing:
        names = [name_of(variable) for variable in missing]
        _log.warning("The checkpoint does not have %s, which a lost server had: they get older values.", names)
