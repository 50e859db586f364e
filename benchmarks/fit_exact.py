"""`Model.fit`, `evaluate` and `predict` under a strategy give what one device gives: how nearly, in a table.

    python benchmarks/fit_exact.py [--strategy fully_sharded] [--only NAME]

Each configuration is trained, evaluated and used for predictions twice: by plain Keras on one device and, from the same
seed, under a strategy. The table shows the largest absolute difference of losses, of metrics, of weights (with batch
statistics, optimizer state and the state of random layers) and of predictions over all numbers of devices tried. Only
float16 has a limit of its own: its sums are rounded to 11 bits and depend on their order, so its row is shown but not
counted in RESULT.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from fit_cases import CONFIGURATIONS, LIMIT, Case, Configuration
from timing import print_table

import replicax as rx

KINDS = ("losses", "metrics", "weights", "predictions")


def results(case: Case, batch: int) -> dict[str, list[np.ndarray]]:
    """Trains, evaluates and predicts; returns all numbers, by kind."""
    keras.utils.set_random_seed(7)  # the order of the rows
    sized = {} if isinstance(case.x, keras.utils.PyDataset) else {"batch_size": batch}
    if case.train is not None:
        history = case.train(batch)
    else:
        history = case.model.fit(case.x, case.y, epochs=2, verbose=0, **sized, **case.fit).history
    # Read here: when Keras has copied averages into weights, `evaluate` donates the buffer that both share.
    state = [np.asarray(variable) for variable in (*case.model.variables, *case.model.optimizer.variables)]
    logs = case.model.evaluate(case.x, case.y, verbose=0, return_dict=True, **sized, **case.evaluate)
    predictions = case.model.predict(case.x, verbose=0, **sized)
    named = [*history.items(), *logs.items()]
    return {
        "losses": [np.asarray(values) for name, values in named if name.endswith("loss")],
        "metrics": [np.asarray(values) for name, values in named if not name.endswith("loss")],
        "weights": state,
        "predictions": [np.asarray(leaf) for leaf in keras.tree.flatten(predictions)],
    }


def differences(one: dict[str, list[np.ndarray]], many: dict[str, list[np.ndarray]]) -> list[float]:
    """Returns the largest absolute difference of each kind."""
    return [max((_difference(a, b) for a, b in zip(one[k], many[k], strict=True)), default=0.0) for k in KINDS]


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape or not np.isfinite(a).all():
        return np.inf
    return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), initial=0.0))


def made(make: Callable[[], Case]) -> Case:
    """Makes a case with its weights and random layers seeded."""
    keras.utils.set_random_seed(0)
    return make()


STRATEGIES: dict[str, Callable[[list[str]], rx.Strategy]] = {
    "mirrored": rx.MirroredStrategy,
    "fully_sharded": lambda devices: rx.FullyShardedStrategy(devices, min_size=0),
    "central_storage": lambda devices: rx.CentralStorageStrategy(devices, "cpu:0"),
}


def measured(configuration: Configuration, make_strategy: Callable[[list[str]], rx.Strategy]) -> Iterator[list[float]]:
    """Yields the differences for each number of devices."""
    one = results(made(configuration.make), configuration.batch)
    for devices in configuration.devices:
        strategy = make_strategy([f"cpu:{i}" for i in range(devices)])
        with strategy.scope():
            case = made(configuration.make)
        yield differences(one, results(case, configuration.batch))


def main() -> None:
    """Prints the table and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=STRATEGIES, default="mirrored")
    parser.add_argument("--only", help="only configurations whose name contains this")
    options = parser.parse_args()
    rx.config.set_virtual_devices(8)
    chosen = [c for c in CONFIGURATIONS if options.only is None or options.only in c.name]
    start = time.perf_counter()
    rows, counted = [], []
    for c in chosen:
        print(f"{time.perf_counter() - start:4.0f} s  {c.name}", flush=True)
        largest = np.max(list(measured(c, STRATEGIES[options.strategy])), axis=0)
        if c.limit == LIMIT:
            counted.append(np.max(largest))
        verdict = "yes" if np.max(largest) <= c.limit else "NO"
        where = ", ".join(map(str, c.devices))
        rows.append((c.name, str(c.batch), where, *(f"{d:.1e}" for d in largest), f"<= {c.limit:g}: {verdict}"))
    header = ("configuration", "batch", "devices", *KINDS, "equal")
    print_table(f"largest difference of {options.strategy} from one device, plain Keras", header, rows)
    print(f"RESULT fit_max_difference {np.max(counted, initial=0.0):.2e}")
    print(f"RESULT fit_configurations {len(counted)}")


if __name__ == "__main__":
    main()
