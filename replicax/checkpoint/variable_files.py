"""Writing variables to a checkpoint and reading their values back, whatever their layout then or now."""

from __future__ import annotations

from collections.abc import Mapping

from replicax.checkpoint.encoding import restored_value, saved_value, wanted_value
from replicax.checkpoint.name_matching import check_names
from replicax.checkpoint.places import Directory, Place, absolute
from replicax.checkpoint.reading import checked_metadata, read_arrays
from replicax.checkpoint.sequential_restore import large_variables, restore_in_turn
from replicax.checkpoint.writing import write_arrays
from replicax.contracts.variable_access import AssignableLike, VariableLike
from replicax.runtime.ending import uninterrupted


def write_variables(directory: Directory, variables: Mapping[str, VariableLike]) -> Place:
    """Writes the values of variables to a new directory and returns its path."""
    return write_arrays(directory, {name: saved_value(variable) for name, variable in variables.items()})


def restore_variables(directory: Directory, variables: Mapping[str, AssignableLike], partial: bool = False) -> None:
    """Gives variables the values that a checkpoint has for them: all of them, or none if anything is wrong."""
    metadata = checked_metadata(directory)
    found = metadata.arrays
    if not partial:
        check_names(directory, found, variables)
    common = {name: variable for name, variable in variables.items() if name in found}
    wanted = {name: wanted_value(variable) for name, variable in common.items()}
    path = absolute(directory)
    large = large_variables(path, wanted, common, metadata, verify=True)
    values = read_arrays(path, {name: spec for name, spec in wanted.items() if name not in large}, metadata)
    with uninterrupted():
        for name, value in values.items():
            common[name].assign(restored_value(value, common[name]))
        restore_in_turn(path, large, common, metadata)
