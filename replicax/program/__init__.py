"""Programs: functions over variables, lifted, differentiated and compiled."""

from replicax.program.autodiff import grad, value_and_grad
from replicax.program.function import Function, function

__all__ = ["Function", "function", "grad", "value_and_grad"]
