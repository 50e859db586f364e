"""Files of safetensors, read into the variables of a model piece by piece."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from replicax.checks import explained
from replicax.contracts.variable_access import AssignableLike, name_of, shape_of
from replicax.errors import WeightsError
from replicax.runtime.ending import uninterrupted
from replicax.weights.homes import home_of
from replicax.weights.matching import Entry, complaints
from replicax.weights.names import Model, Names, Transform, check_names, named_tensor, named_variables
from replicax.weights.pieces import ArrayTensor
from replicax.weights.reading import place, whole
from replicax.weights.regions import FileRegion
from replicax.weights.safetensors_format import read_tensors


@explained
def load_safetensors(
    model: Model, path: str | os.PathLike[str], names: Names | None = None, *, strict: bool = True
) -> None:
    """Gives a model's variables the values of safetensors files, piece by piece in the layout of each.

    Each process reads only the rows that its devices need. All names and shapes are checked before the first variable
    changes. A value is converted to the variable's dtype while it is read.

    Args:
        model: A Keras model or layer that is built, or a mapping from names to variables.
        path: A file, the `model.safetensors.index.json` that lists several, or a folder with one of these.
        names: Maps the name of a variable to that of its tensor, or to `(name, function)`, where the function makes the
            variable's value of a NumPy array with the tensor's. The name of a Keras variable is its path, without the
            model's name at the beginning. A function that returns the same, or None for no tensor, works too. By
            default tensors have the variables' names.
        strict: Whether each tensor must find a variable and each variable a tensor. Otherwise what is left over on
            either side is ignored.

    Raises:
        ArgumentError: The model is not built, two of its variables have the same name, or `names` has a name that no
            variable has.
        WeightsError: Something is left over on either side, a shape differs, or a file is damaged.

    Example:
        >>> import keras, tempfile, replicax as rx
        >>> with rx.FullyShardedStrategy().scope():
        ...     model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, name="up")])
        >>> folder = tempfile.mkdtemp()
        >>> names = {"up/kernel": "mlp.weight", "up/bias": "mlp.bias"}
        >>> rx.weights.save_safetensors(model, f"{folder}/model.safetensors", names)
        >>> rx.weights.load_safetensors(model, folder, names)
    """
    file = Path(path)
    variables = named_variables(model)
    tensors = read_tensors(file)
    check_names(names, variables)
    wanted = {name: named for name in variables if (named := named_tensor(names, name)) is not None}
    found = {name: (tensors[named[0]], named[1]) for name, named in wanted.items() if named[0] in tensors}
    stored = {name: Entry(name, name, region.shape) for name, region in tensors.items()}
    wrong = [
        (variables[name], stored[wanted[name][0]])
        for name, (region, transform) in found.items()
        if transform is None and region.shape != shape_of(variables[name])
    ]
    used = {wanted[name][0] for name in found}
    without = [variable for name, variable in variables.items() if name not in found] if strict else []
    left = {name: entry for name, entry in stored.items() if name not in used} if strict else {}
    if wrong or without or left:
        raise WeightsError(complaints(str(file), wrong, without, left, list(variables.values()), stored))
    with uninterrupted():
        for name, (region, transform) in found.items():
            _assign(variables[name], region, transform, wanted[name][0])


def _assign(variable: AssignableLike, region: FileRegion, transform: Transform | None, name: str) -> None:
    if transform is None and home_of(variable) is not None:
        place(variable, region)
        return
    values = whole(region, region.dtype)
    if transform is not None:
        values = np.asarray(transform(values))
        if values.shape != shape_of(variable):
            raise WeightsError(
                f"The function of `names` makes an array of shape {values.shape} of {name!r} {region.shape}; variable "
                f"{name_of(variable)!r} has shape {shape_of(variable)}."
            )
    if home_of(variable) is None:
        variable.assign(values)
    else:
        place(variable, ArrayTensor(values))
