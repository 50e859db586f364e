"""Files of weights, read piece by piece into the layout of the variables that they are for."""
