"""`rx.Variable`: what it holds and how it is read (`reading`), how it is assigned (`assigning`), and how it is made."""

from replicax.variables.reading import check_owner, lives_elsewhere
from replicax.variables.variable import Variable

__all__ = ["Variable", "check_owner", "lives_elsewhere"]
