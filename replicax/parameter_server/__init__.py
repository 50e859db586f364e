"""Asynchronous training: variables on servers, steps on workers, one coordinator. Ray is imported when it is used.

Only the coordinator runs the user's code. A function that it schedules is traced, split in two at its gradients, and
sent as StableHLO: workers compute the gradients, servers update the variables. Here is one such step:

    strategy = rx.ParameterServerStrategy(workers=2, servers=2)
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)

    @rx.function
    def train_step(iterator):
        x, y = next(iterator)
        loss, gradients = rx.value_and_grad(lambda: loss_of(model(x), y), model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(make_dataset))
    loss = coordinator.schedule(train_step, args=(iterator,))  # returns at once
    loss.fetch()

**The strategy** (`strategy.py`) connects with a Ray cluster (`replicax.ray_cluster`) and starts the servers. In its
scope each variable becomes a remote variable (`variables/remote.py`): a `Home` notes which servers have its shards, and
which value the coordinator knows. A partitioner (`variables/partition.py`) decides whether it is sharded
(`variables/sharded.py`).

**The first call** of `train_step` compiles it; later calls with arguments of the same shapes do not:

1. `coordinator.py`, `schedule`, asks `scheduling/closures.py` for the program of the function. There is none.
2. `compiling/traced_step.py`, `TracedStep`, traces the function. `compiling/recording.py` answers `next(iterator)` with
   placeholders of the shapes that a worker has reported. `replicax/program/cut/split.py` splits the program at its
   gradients.
3. `compiling/placing.py`, `VariablePlacer`, chooses servers: a weight and its two moments go to one server, since their
   updates read each other; the optimizer's step counter gets a copy on each server.
4. `compiling/exported_programs.py` exports the halves: `compiling/worker_half.py` has the forward and backward pass,
   `compiling/server_half.py` the updates of one server's shards. A variable in which the step looks up a few rows only
   is a table (`compiling/tables.py`); a shard is updated by the program of the whole variable, evaluated on some of its
   rows (`compiling/row_wise.py`).
5. Servers and workers load the programs (`actors/messages.py` has all messages).

**Each call** then goes this way:

1. `coordinator.py`, `schedule`: the call becomes a `Closure` with its program (`scheduling/closures.py`). Servers get
   the variables that were assigned on the coordinator (`strategy.py`, `send_changes`).
2. `scheduling/scheduler.py`, `add`: the event goes to `next_state` (`scheduling/machine.py`), which chooses a free
   worker.
3. `scheduling/runner.py` carries that out, and `scheduling/worker_actors.py` sends the worker a `StepCall`.
4. `actors/worker.py`, `run`: takes the next batch (`actors/worker_data.py`), pulls the variables that are too old in
   `actors/variable_cache.py`, and calls its half (`actors/worker_program.py`).
5. `actors/parameter_server.py`, `push`: each server applies what the worker sends, as a whole, and answers with the new
   variables, which the worker stores for its next step.
6. The answer, a `Done` message, is an event again. `next_state` sets the result, for which `loss.fetch()`
   (`scheduling/remote_values.py`) waits.

`Model.fit` schedules Keras's training step in the same way (`keras/loops.py`). The rooms, from the top: `strategy.py`,
`keras`, `coordinator.py`, `per_worker.py`, `scheduling`, `compiling`, `variables`, `actors`. A room imports only those
after it.
"""

from replicax.parameter_server.coordinator import ClusterCoordinator
from replicax.parameter_server.strategy import ParameterServerStrategy
from replicax.parameter_server.variables.partition import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)
from replicax.parameter_server.variables.sharded import ShardedVariable
from replicax.ray_cluster import Server

__all__ = [
    "ClusterCoordinator",
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "ParameterServerStrategy",
    "Partitioner",
    "Server",
    "ShardedVariable",
]
