"""Classes and functions of a script go to a process that cannot import them, and train there as they do here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.keras import travelling

READER = """
import sys
from replicax.job.processes.call import Call, unpickled
import ray.cloudpickle as cloudpickle

def called(sent):
    call = unpickled(sent)
    return call.function(*call.args, **call.kwargs)

here = called(open(sys.argv[1], "rb").read())
sent = here.pop("sent")
assert not {"travelling", "beside"} & {*sys.modules}
there, registered = called(sent)
with open(sys.argv[2], "wb") as file:
    file.write(cloudpickle.dumps((here, there, registered)))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("travelling")
    (folder / "reader.py").write_text(READER)
    sent, result = folder / "sent", folder / "result"
    script = Path(travelling.__file__)
    for command in ([str(script), str(sent)], [str(folder / "reader.py"), str(sent), str(result)]):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    import ray.cloudpickle as cloudpickle

    return cloudpickle.loads(result.read_bytes())


@pytest.mark.nightly
@pytest.mark.parametrize("name", travelling.MODELS)
def test_a_model_trains_there_as_it_does_here(found, name: str):
    here, there, _ = found
    assert here[name][:2] == there[name][:2]
    jax.tree.map(np.testing.assert_array_equal, here[name][2], there[name][2])


@pytest.mark.slow  # The first of these tests trains for all.
def test_a_registered_class_is_registered_there(found):
    assert found[2] == ["Custom>Registered"]
