from __future__ import annotations

import ast
import importlib
import inspect
import re

import pytest

from replicax.compat.ray_channels import CHANNELS
from replicax.compat.ray_node import NODE, NODE_IP_ADDRESS
from tests.compat.guards import compat_file, needs

ray = pytest.importorskip("ray")
NAMES = {
    "ray._private.worker": ["_global_node", "custom_excepthook", "normal_excepthook", "shutdown"],
    "ray._private.services": [NODE, NODE_IP_ADDRESS],
    "ray._private.state": ["state.get_draining_nodes"],
    "ray._raylet": ["Config.initialize", "AuthenticationTokenLoader.instance"],
    "ray.scripts.scripts": ["main"],
    CHANNELS: ["Channel.read", "Channel.write"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_ray_still_has(module, name):
    found = needs("ray", module, lambda: importlib.import_module(module))
    for part in name.split("."):
        found = needs("ray", f"{module}.{name}", lambda: getattr(found, part))  # noqa: B023


@pytest.mark.parametrize("name", ["_node_ip_address", "_temp_dir"])
def test_ray_init_still_takes(name):
    # Ray reads them from its keyword arguments, and refuses those that it does not know.
    source = inspect.getsource(inspect.unwrap(ray.init))
    assert f'"{name}"' in source or name in inspect.signature(ray.init).parameters, f"ray {ray.__version__}"


def test_the_token_that_ray_keeps_can_be_forgotten():
    loader = importlib.import_module("ray._raylet").AuthenticationTokenLoader.instance()
    needs("ray", "AuthenticationTokenLoader.reset_cache", lambda: loader.reset_cache)


def test_the_processes_of_a_node_can_be_killed_at_once():
    node = importlib.import_module("ray._private.node").Node
    needs("ray", "Node.live_processes", lambda: node.live_processes)
    needs("ray", "Node.kill_all_processes", lambda: node.kill_all_processes)


def test_each_private_module_has_a_guard():
    used = set()
    for file in ("ray", "ray_node", "ray_channels"):
        for node in ast.walk(ast.parse(compat_file(file).read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(r"ray\.[\w.]+", str(node.value)):
                used.add(node.value)
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("ray."):
                used.add(f"{node.module}.{node.names[0].name}" if node.module == "ray._private" else node.module)
    assert used == NAMES.keys()


def test_ray_looks_for_its_node_with_the_functions_that_are_replaced():
    # They are called by the modules that start a node, through the module `services`: replacing them there is enough.
    node = importlib.import_module("ray._private.node")
    worker = importlib.import_module("ray._private.worker")
    assert f"services.{NODE}(" in inspect.getsource(node) + inspect.getsource(worker), ray.__version__
    assert f"services.{NODE_IP_ADDRESS}(" in inspect.getsource(node) + inspect.getsource(worker), ray.__version__
