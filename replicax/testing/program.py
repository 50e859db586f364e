"""The script of a test's worker: it runs one function of the test's module.

It is started by its path, and sets the search path for modules before it imports anything of replicax or the user.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

PlainFunction: TypeAlias = Callable[..., object]


def main(request_path: str) -> None:
    """Calls the function that a request (JSON of `testing.workers`) names, and writes its result beside the request."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    function = _function(_module(request["module"], request["file"]), request["function"])
    from replicax.config import set_virtual_devices
    from replicax.testing.arguments import decoded

    set_virtual_devices(request["devices"])
    arguments = decoded(request["arguments"])
    assert isinstance(arguments, dict)
    result = function(**arguments)
    if request["wants_result"]:
        worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        Path(request_path).with_name(f"{worker}.json").write_text(json.dumps(result), encoding="utf-8")


def _module(name: str, file: str) -> types.ModuleType:
    """Imports the test's module by its name or, if that is not possible, by its file."""
    if name != "__main__":
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # The module exists, but something that it imports does not.
        else:
            if os.path.realpath(module.__file__ or "") == os.path.realpath(file):
                return module
    name = "replicax_test_program" if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, f"{file} holds no Python"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _function(module: types.ModuleType, name: str) -> PlainFunction:
    """Returns the function without the decorator, which would start workers again."""
    owner: object = None
    found: object = module
    for part in name.split("."):
        owner, found = found, inspect.getattr_static(found, part)
    assert callable(found), name
    function: PlainFunction = inspect.unwrap(found)
    return types.MethodType(function, owner()) if inspect.isclass(owner) else function


if __name__ == "__main__":
    main(sys.argv[1])
