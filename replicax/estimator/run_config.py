"""`RunConfig`: the settings of an estimator, and the role of this process among those that train."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Final

from replicax.cluster import ClusterConfig, ClusterSpec, TFConfigClusterResolver, found_cluster
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError, ClusterError
from replicax.estimator.distribution import DistributeConfig, StrategyOrMaker, asked_by_roles, made
from replicax.estimator.roles import EVALUATOR, check_cluster, global_id, num_servers, num_workers, role_of
from replicax.estimator.settings import checked, with_told_model_dir
from replicax.strategies import Strategy, get_strategy


class Unset:
    """The type of an argument that was not given, where None has a meaning of its own."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()
_DEFAULT_SECONDS = 600  # between checkpoints, as in TensorFlow


@dataclasses.dataclass(frozen=True, init=False, eq=False)
class RunConfig(Advised):
    """How an estimator runs: where it writes, how often, with which strategies; and the role of this process.

    The role comes from the environment (TF_CONFIG, and what else `rx.cluster_resolver.detect_cluster` knows) at the
    moment when the object is made.

    Args:
        model_dir: Folder of the checkpoints, logs and exports. All processes must see the same one. By default the
            key `model_dir` of TF_CONFIG, and otherwise what the estimator chooses.
        seed: Seed of the model's initial weights and of its random numbers, from 0 to 2**32 - 1; None for another
            one in each run.
        save_summary_steps: After how many steps each the training writes summaries; None or 0 for none.
        save_checkpoints_steps: After how many steps each it saves a checkpoint.
        save_checkpoints_secs: After how many seconds each it saves a checkpoint; 600 if neither is given. If both are
            None there is one at the end only.
        keep_checkpoint_max: How many checkpoints are kept; None or 0 for all.
        keep_checkpoint_every_n_hours: Beyond these, one for so many hours of training is kept.
        log_step_count_steps: After how many steps each the loss and the steps per second are logged; None for never.
        train_distribute: The strategy of training, or a function or class that makes it where it is needed: an
            evaluator does not call it. By default the roles choose: `rx.ParameterServerStrategy` in a cluster with
            servers, `rx.MultiWorkerMirroredStrategy` in one with several workers, otherwise the current strategy.
        eval_distribute: The strategy of evaluation, in the same way; by default the current strategy, which outside
            of a scope is one device.
        experimental_distribute: Both in one, and perhaps a remote cluster.

    Raises:
        ArgumentError: A setting has the wrong type or value, or two exclude each other.
        ClusterError: The environment describes no proper cluster, or contradicts a setting.

    Example:
        >>> config = RunConfig(model_dir="runs/digits", save_checkpoints_steps=100)
        >>> config.replace(save_checkpoints_secs=60).save_checkpoints_steps is None, config.is_chief
        (True, True)
    """

    model_dir: str | None
    seed: int | None
    save_summary_steps: int | None
    save_checkpoints_steps: int | None
    save_checkpoints_secs: float | None
    keep_checkpoint_max: int | None
    keep_checkpoint_every_n_hours: float | None
    log_step_count_steps: int | None
    train_distribute: StrategyOrMaker | None
    eval_distribute: StrategyOrMaker | None
    experimental_distribute: DistributeConfig | None
    _strategies: dict[Callable[[], Strategy], Strategy] = dataclasses.field(repr=False)
    cluster: ClusterConfig  #: The cluster and the place of this process in it.

    @called_as("tf.estimator.RunConfig")
    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | Unset | None = UNSET,
        save_checkpoints_secs: float | Unset | None = UNSET,
        *,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: StrategyOrMaker | None = None,
        eval_distribute: StrategyOrMaker | None = None,
        experimental_distribute: DistributeConfig | None = None,
    ):
        steps, seconds = save_checkpoints_steps, save_checkpoints_secs
        default = None if isinstance(steps, Unset) else steps, None if isinstance(seconds, Unset) else seconds
        if steps is UNSET and seconds is UNSET:
            default = (None, _DEFAULT_SECONDS)
        self._set(
            cluster=found_cluster(),
            model_dir=with_told_model_dir(model_dir, TFConfigClusterResolver().model_dir()),
            seed=seed,
            save_summary_steps=save_summary_steps,
            save_checkpoints_steps=default[0],
            save_checkpoints_secs=default[1],
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            log_step_count_steps=log_step_count_steps,
            train_distribute=train_distribute,
            eval_distribute=eval_distribute,
            experimental_distribute=experimental_distribute,
        )

    @called_as("tf.estimator.RunConfig.replace")
    def replace(self, **changes: object) -> RunConfig:
        """Returns a copy with other settings; `save_checkpoints_steps` takes the place of the seconds, and vice versa.

        Args:
            **changes: Arguments of the constructor.

        Raises:
            ArgumentError: There is no such setting, or its value is wrong.
        """
        known = [field.name for field in dataclasses.fields(self) if field.name not in ("cluster", "_strategies")]
        for name in changes:
            if name not in known:
                raise ArgumentError(f"`replace` changes {', '.join(known)}; there is no setting {name!r}.")
        steps, seconds = "save_checkpoints_steps", "save_checkpoints_secs"
        for given, other in ((steps, seconds), (seconds, steps)):
            if changes.get(given) is not None:
                changes.setdefault(other, None)
        copied = object.__new__(type(self))
        copied._set(**{name: getattr(self, name) for name in (*known, "cluster")} | changes)
        return copied

    @property
    def remote_cluster(self) -> ClusterSpec | None:
        """The standard servers that train for this process; None if it trains itself."""
        cluster = self.experimental_distribute.remote_cluster if self.experimental_distribute else None
        return None if cluster is None else ClusterSpec(cluster)

    @property
    def is_client(self) -> bool:
        """Whether workers elsewhere train for this process: on `remote_cluster`, or on that of a client's strategy."""
        given = self.train_distribute
        return self.remote_cluster is not None or (isinstance(given, Strategy) and given.is_client)

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The addresses of the tasks that train; empty without a cluster and in an evaluator."""
        return ClusterSpec() if self.task_type == EVALUATOR else self.cluster.spec

    @property
    def role(self) -> str:
        """Its part: `"chief"`, `"worker"`, `"ps"`, `"evaluator"`; or `"local"`, which trains and evaluates."""
        return role_of(self.cluster)

    @property
    def task_type(self) -> str:
        """The job of this process; `"worker"` without a cluster."""
        return "worker" if self.cluster.task is None else self.cluster.task.type

    @property
    def task_id(self) -> int:
        """Its index in the job; 0 without a cluster."""
        return 0 if self.cluster.task is None else self.cluster.task.index

    @property
    def global_id_in_cluster(self) -> int | None:
        """Its number among all: the chief is 0, then come workers and servers; None for an evaluator."""
        return global_id(self.cluster)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the checkpoints: the chief, or worker 0 where there is none."""
        return self.role != EVALUATOR and self.cluster.is_chief

    @property
    def num_worker_replicas(self) -> int:
        """Number of processes that train, the chief among them; 0 in an evaluator."""
        return num_workers(self.cluster)

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers; 0 in an evaluator."""
        return num_servers(self.cluster)

    def training_strategy(self) -> Strategy:
        """Returns the strategy of training. It is made when it is asked for first, if a function makes it.

        In a process that serves a coordinator of parameter servers the call serves, and ends the process.

        Raises:
            ClusterError: The training is elsewhere, on a remote cluster.
        """
        if self.is_client:
            raise ClusterError(
                "remote_cluster",
                str(self.remote_cluster or self.train_distribute),
                "trains for this process, which has no part in a training itself",
                "Call rx.estimator.train_and_evaluate; or put the calls of the estimator into a function for "
                "`strategy.remote`.",
            )
        return self._made_once("train_distribute", self.train_distribute or asked_by_roles(self.cluster))

    def evaluation_strategy(self) -> Strategy:
        """Returns the strategy of evaluation. It is made when it is asked for first, if a function makes it."""
        if self.eval_distribute is not None:
            return self._made_once("eval_distribute", self.eval_distribute)
        return get_strategy()

    def __reduce__(self) -> tuple[Callable[[dict[str, object]], RunConfig], tuple[dict[str, object]]]:
        """Pickles the settings: where they arrive, that process's environment tells its role."""
        left_out = ("cluster", "_strategies", "experimental_distribute")
        settings = [field.name for field in dataclasses.fields(self) if field.name not in left_out]
        return _arrived, ({name: getattr(self, name) for name in settings},)

    def _made_once(self, name: str, strategy: StrategyOrMaker) -> Strategy:
        if isinstance(strategy, Strategy):
            return strategy
        found = self._strategies.get(strategy)
        if found is None:
            found = self._strategies[strategy] = made(name, strategy)
        return found

    def _set(self, **settings: object) -> None:
        for name, value in checked(settings).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_strategies", {})
        check_cluster(self.cluster, self.remote_cluster)


def _arrived(settings: dict[str, object]) -> RunConfig:
    return RunConfig(**settings)  # type: ignore[arg-type]
