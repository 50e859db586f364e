"""`tf.config`: devices and the settings of the process."""

from __future__ import annotations

import libcst as cst

from replicax.tensorflow.codemod.rules import Drop, Refuse, Rewrite, Rewriting, Rule

_C = "tf.config"
_X = "tf.config.experimental"


def _devices(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`tf.config.list_physical_devices("GPU")`: JAX's devices of a kind, of which there may be none."""
    kinds = [arg.value for arg in updated.args]
    if not kinds:
        return rewriting.code("jax.devices()")
    kind = kinds[0]
    if len(kinds) > 1 or not isinstance(kind, cst.SimpleString):
        rewriting.refuse(node, f"{_C}.list_physical_devices", "The kind of device is not a literal.")
        return None
    name = str(kind.evaluated_value).lower()
    if name == "cpu":
        return rewriting.code('jax.devices("cpu")')
    return rewriting.code(f'[device for device in jax.devices() if device.platform == "{name}"]')


def _virtual_devices(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`set_logical_device_configuration(cpus[0], [LogicalDeviceConfiguration()] * 8)`: eight virtual devices."""
    count = _count(rewriting, node.args[1].value) if len(node.args) == 2 else None
    if count is None:
        rewriting.refuse(
            node,
            f"{_C}.set_logical_device_configuration",
            "`rx.config.set_virtual_devices(n)` makes n virtual CPU devices; other devices are not split.",
        )
        return None
    rewriting.replaces(node)
    return rewriting.code("rx.config.set_virtual_devices({count})", count=count)


def _count(rewriting: Rewriting, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Returns how many configurations a list of them has; None if they say more than that there is a device."""
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply):
        one = _count(rewriting, value.left)
        return value.right if one is not None and cst.Module([]).code_for_node(one) == "1" else None
    if not isinstance(value, cst.List) or not all(_is_plain(rewriting, each.value) for each in value.elements):
        return None
    return cst.Integer(str(len(value.elements)))


def _is_plain(rewriting: Rewriting, value: cst.BaseExpression) -> bool:
    names = (f"{_C}.LogicalDeviceConfiguration", f"{_X}.VirtualDeviceConfiguration")
    return isinstance(value, cst.Call) and not value.args and rewriting.script.names.of(value.func) in names


_MEMORY = Drop("JAX reads the environment: `XLA_PYTHON_CLIENT_PREALLOCATE=false` lets memory grow.")
_XLA = Drop("XLA compiles everything, and sets its threads itself.")
_ONE = Refuse("It is converted in a call of `tf.config.set_logical_device_configuration` only.")

RULES: dict[str, Rule] = {
    **{
        f"{module}.{name}": Rewrite(_devices)
        for module in (_C, _X)
        for name in ("list_physical_devices", "list_logical_devices")
    },
    f"{_C}.set_logical_device_configuration": Rewrite(_virtual_devices),
    f"{_X}.set_virtual_device_configuration": Rewrite(_virtual_devices),
    f"{_C}.LogicalDeviceConfiguration": _ONE,
    f"{_X}.VirtualDeviceConfiguration": _ONE,
    f"{_X}.set_memory_growth": _MEMORY,
    f"{_C}.set_soft_device_placement": Drop("There is no device placement to soften."),
    f"{_C}.optimizer.set_jit": _XLA,
    f"{_C}.threading.set_inter_op_parallelism_threads": _XLA,
    f"{_C}.threading.set_intra_op_parallelism_threads": _XLA,
    f"{_C}.set_visible_devices": Refuse(
        "Set `JAX_PLATFORMS`, or `CUDA_VISIBLE_DEVICES`, in the environment; a strategy takes `devices`."
    ),
    f"{_C}.get_visible_devices": Refuse("Take jax.devices(): the devices that this process sees."),
}
