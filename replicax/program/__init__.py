"""Programs: functions over variables, lifted, differentiated and compiled."""

from replicax.program.autodiff import grad, value_and_grad
from replicax.program.function import Function, function
from replicax.program.tensor_spec import TensorSpec

__all__ = ["Function", "TensorSpec", "function", "grad", "value_and_grad"]
