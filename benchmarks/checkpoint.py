"""What it costs to save, and to check a checkpoint while it is restored, beside Orbax.

    python benchmarks/checkpoint.py [--mib 512] [--arrays 40]

One checkpoint of random float32 numbers is restored in turn with the checksums compared, without, and by Orbax's own
`PyTreeCheckpointHandler`, which knows none. The files are in the system's memory when it begins, which is the dearest
case: from a disk, what the checksums take is hidden behind the reading. The same arrays are saved in turn, each time to
a new folder, by `rx.Checkpoint.write` and by Orbax's `PyTreeCheckpointer`, until both have them on the disk.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from timing import interleaved_medians, print_table

import replicax as rx
from replicax.checkpoint import read_metadata


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--arrays", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    length = options.mib * 2**20 // 4 // options.arrays
    values = {f"a{i}": rng.standard_normal(length, np.float32) for i in range(options.arrays)}
    with tempfile.TemporaryDirectory() as folder:
        path = rx.Checkpoint(values=values).write(Path(folder) / "checkpoint")
        target = rx.Checkpoint(values={name: np.zeros_like(value) for name, value in values.items()})
        folders = {entry.folder: entry for entry in read_metadata(path).arrays.values()}
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
        item = {name: jax.ShapeDtypeStruct(entry.shape, entry.dtype) for name, entry in folders.items()}
        arguments = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in folders}

        def by_orbax() -> None:
            handler.restore(epath.Path(path), args=ocp.args.PyTreeRestore(item, restore_args=arguments))

        variants = {
            "checked": lambda: target.restore(path),
            "not checked": lambda: target.restore(path, verify=False),
            "Orbax": by_orbax,
        }
        finish = dict.fromkeys(variants, lambda: None)
        seconds = interleaved_medians(variants, finish, options.rounds, 1)
        handler.close()
        source, numbers, orbax = rx.Checkpoint(values=values), itertools.count(), ocp.PyTreeCheckpointer()
        saves = {
            "replicax": lambda: source.write(Path(folder) / f"ours-{next(numbers)}"),
            "Orbax": lambda: orbax.save(Path(folder) / f"theirs-{next(numbers)}", values),
        }
        written = interleaved_medians(saves, dict.fromkeys(saves, lambda: None), options.rounds, 1)
        orbax.close()
    rows = [(name, f"{1000 * time:.0f} ms", f"{options.mib / time:.0f} MiB/s") for name, time in seconds.items()]
    print_table(f"Restoring {options.mib} MiB in {options.arrays} arrays", ("", "time", "rate"), rows)
    rows = [(name, f"{1000 * time:.0f} ms", f"{options.mib / time:.0f} MiB/s") for name, time in written.items()]
    print_table(f"Saving {options.mib} MiB in {options.arrays} arrays", ("", "time", "rate"), rows)
    print(f"RESULT save_vs_orbax {written['replicax'] / written['Orbax']:.3f}")
    print(f"RESULT restore_checked_ms {1000 * seconds['checked']:.1f}")
    print(f"RESULT restore_checked_vs_unchecked {seconds['checked'] / seconds['not checked']:.3f}")
    print(f"RESULT restore_checked_vs_orbax {seconds['checked'] / seconds['Orbax']:.3f}")


if __name__ == "__main__":
    main()
