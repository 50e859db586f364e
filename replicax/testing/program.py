"""What a worker of a test runs: one function of the test's module.

It is started by its path and sets the search path for modules before it imports anything of replicax or the user.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(request_path: str) -> None:
    """Calls the function that a request names, and writes what it returns beside the request.

    Args:
        request_path: A JSON file, written by `replicax.testing.workers`.
    """
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    request = json.loads(Path(request_path).read_text())
    sys.path[:] = request["path"]
    function = _function(_module(request["module"], request["file"]), request["function"])
    from replicax.config import set_virtual_devices
    from replicax.testing.arguments import decoded

    set_virtual_devices(request["devices"])
    result = function(**decoded(request["arguments"]))
    if request["wants_result"]:
        worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        Path(request_path).with_name(f"{worker}.json").write_text(json.dumps(result))


def _module(name: str, file: str) -> Any:
    """Imports the test's module under its own name; if it has none that can be imported, by its file."""
    if name != "__main__":
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # It is found, but what it imports is not.
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


def _function(module: Any, name: str) -> Callable[..., Any]:
    """Returns the function itself, without the decorator that would start workers again."""
    owner, found = None, module
    for part in name.split("."):
        owner, found = found, inspect.getattr_static(found, part)
    function = inspect.unwrap(found)
    return function.__get__(owner()) if inspect.isclass(owner) else function


if __name__ == "__main__":
    main(sys.argv[1])
