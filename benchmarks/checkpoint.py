"""What it costs to save, and to check a checkpoint while it is restored, beside Orbax.

    python benchmarks/checkpoint.py [--mib 512] [--arrays 40] [--store-mib 64]

One checkpoint of random float32 numbers is restored in turn with the checksums compared, without, and by Orbax's own
`PyTreeCheckpointHandler`, which knows none. The files are in the system's memory when it begins, which is the dearest
case: from a disk, what the checksums take is hidden behind the reading. The same arrays are saved in turn, each time to
a new folder, by `rx.Checkpoint.write` and by Orbax's `PyTreeCheckpointer`, until both have them on the disk, and so in
a bucket: a server of GCS on this machine keeps it in memory. Orbax needs the package `gcsfs` for that.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from timing import interleaved_medians, print_table

import replicax as rx
from replicax.checkpoint import read_metadata

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.stores.proxy import Proxy
from tests.stores.servers import BUCKET, environ, environment, store


def random_arrays(mib: int, arrays: int) -> dict[str, np.ndarray]:
    """Returns so many arrays of float32 that take so many MiB together."""
    rng, length = np.random.default_rng(0), mib * 2**20 // 4 // arrays
    return {f"a{i}": rng.standard_normal(length, np.float32) for i in range(arrays)}


def saving(where: str, mib: int, arrays: int, rounds: int) -> float:
    """Saves below a folder or a URL in turn; prints the table and returns the ratio to Orbax."""
    values, numbers = random_arrays(mib, arrays), itertools.count()
    ours, orbax = rx.Checkpoint(values=values), ocp.PyTreeCheckpointer()
    saves = {
        "replicax": lambda: ours.write(f"{where}/ours-{next(numbers)}"),
        "Orbax": lambda: orbax.save(epath.Path(f"{where}/theirs-{next(numbers)}"), values),
    }
    seconds = interleaved_medians(saves, dict.fromkeys(saves, lambda: None), rounds, 1)
    orbax.close()
    rows = [(name, f"{1000 * time:.0f} ms", f"{mib / time:.0f} MiB/s") for name, time in seconds.items()]
    place = "a bucket" if ":" in where else "files"
    print_table(f"Saving {mib} MiB in {place}", ("", "time", "rate"), rows)
    return seconds["replicax"] / seconds["Orbax"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--arrays", type=int, default=40)
    parser.add_argument("--store-mib", type=int, default=64, help="in the bucket")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    values = random_arrays(options.mib, options.arrays)
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
        in_files = saving(folder, options.mib, options.arrays, options.rounds)
    rows = [(name, f"{1000 * time:.0f} ms", f"{options.mib / time:.0f} MiB/s") for name, time in seconds.items()]
    print_table(f"Restoring {options.mib} MiB in {options.arrays} arrays", ("", "time", "rate"), rows)
    print(f"RESULT save_vs_orbax {in_files:.3f}")
    print(f"RESULT restore_checked_ms {1000 * seconds['checked']:.1f}")
    print(f"RESULT restore_checked_vs_unchecked {seconds['checked'] / seconds['not checked']:.3f}")
    print(f"RESULT restore_checked_vs_orbax {seconds['checked'] / seconds['Orbax']:.3f}")
    if importlib.util.find_spec("gcsfs") is None:
        print("Not measured in a bucket: Orbax needs `pip install gcsfs` for it.")
        return
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks what only Google's own servers answer
    # The proxy answers `Expect: 100-continue`, as real stores do: without, a file of 1 MiB waits for a second.
    with store("gs") as port, Proxy(port).running() as proxy, environ(environment("gs", proxy.port)):
        in_a_bucket = saving(f"gs://{BUCKET}", options.store_mib, options.arrays, options.rounds)
    print(f"RESULT save_in_store_vs_orbax {in_a_bucket:.3f}")


if __name__ == "__main__":
    main()
