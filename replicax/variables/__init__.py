"""`rx.Variable`: how it is read (`reading`), assigned (`assigning`) and made. Objects that hold them: `rx.Module`."""

from replicax.variables.assigning import check_not_traced
from replicax.variables.module import Module
from replicax.variables.reading import check_owner
from replicax.variables.variable import Variable
from replicax.variables.whole_values import as_numpy, collected, lies_in_several_processes

__all__ = [
    "Module",
    "Variable",
    "as_numpy",
    "check_not_traced",
    "check_owner",
    "collected",
    "lies_in_several_processes",
]
