"""Uses replicax on a pretended system (`python -m tests.portability.program win32`); prints the results as JSON."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import tempfile
from pathlib import Path

from tests.portability.elsewhere import pretend

# Each runs when it is imported: the program `python -m replicax`.
NOT_IMPORTED = ("replicax.__main__",)


def main(system: str) -> None:
    """Imports all modules, trains in one process, saves and loads, and runs `replicax doctor` and `replicax run`."""
    pretend(system)
    told: dict[str, object] = {"modules": imported(), **trained()}
    with tempfile.TemporaryDirectory() as folder:
        told |= saved(Path(folder)) | commands(Path(folder))
    print(json.dumps(told))


def imported() -> int:
    """Imports every module, and returns how many."""
    import replicax

    found = [module.name for module in pkgutil.walk_packages(replicax.__path__[:1], "replicax.")]
    wanted = [name for name in found if name not in NOT_IMPORTED]
    for name in wanted:
        importlib.import_module(name)
    for name in replicax.__all__:
        getattr(replicax, name)
    return len(wanted)


def trained() -> dict[str, object]:
    """Trains with `fit` and in a loop, on eight virtual devices."""
    import keras
    import numpy as np

    import replicax as rx

    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = x @ np.arange(1, 5, dtype="float32")[:, None]
    rx.config.set_virtual_devices(8)
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        history = model.fit(x, y, batch_size=16, epochs=3, verbose=0)
        weight = rx.Variable(np.zeros((4, 1), "float32"))

    @rx.function
    def step(x, y):
        def replica_step(x, y):
            loss, [gradient] = rx.value_and_grad(
                lambda: rx.compute_average_loss(((x @ weight.value - y) ** 2)[:, 0]), [weight]
            )()
            weight.assign_sub(0.1 * gradient)
            return loss

        return strategy.reduce("sum", strategy.run(replica_step, args=(x, y)), axis=None)

    losses = [float(step(*batch)) for _ in range(3) for batch in strategy.distribute_dataset([(x, y)])]
    return {"fit": history.history["loss"], "loop": losses}


def saved(folder: Path) -> dict[str, object]:
    """Saves and loads a checkpoint, weights and an exported function."""
    import numpy as np

    import replicax as rx

    variable = rx.Variable(np.arange(6, dtype="float32").reshape(2, 3), name="w")
    path = rx.Checkpoint(w=variable).save(folder / "checkpoint")
    rx.weights.save_safetensors({"w": variable}, folder / "weights.safetensors")
    rx.export(rx.function(lambda x: x @ variable.value), folder / "exported", np.ones((1, 2), "float32"))
    exported = rx.load_export(folder / "exported")(np.ones((1, 2), "float32"))
    variable.assign(variable.value * 0)
    rx.Checkpoint(w=variable).restore(path)
    restored = np.asarray(variable.value).tolist()
    variable.assign(variable.value * 0)
    rx.weights.load_safetensors({"w": variable}, folder / "weights.safetensors")
    return {
        "restored": restored,
        "loaded": np.asarray(variable.value).tolist(),
        "exported": np.asarray(exported).tolist(),
    }


def commands(folder: Path) -> dict[str, object]:
    """Runs `replicax demo`, `doctor` and `run`."""
    from typer.testing import CliRunner

    from replicax.cli.app import app

    script = folder / "script.py"
    script.write_text("print('it ran')\n", encoding="utf-8")
    demo = CliRunner().invoke(app, ["demo", "--limit", "256", "--epochs", "1", "--output", str(folder)])
    doctor = CliRunner().invoke(app, ["doctor", "--json"])
    run = CliRunner().invoke(app, ["run", "--workers", "1", "--log-dir", str(folder / "logs"), str(script)])
    return {
        "demo": [demo.exit_code, demo.output, (folder / "curves.png").is_file()],
        "doctor": doctor.output if doctor.exception is None else repr(doctor.exception),
        "run": [run.exit_code, run.output],
    }


if __name__ == "__main__":
    main(sys.argv[1])
