"""Proof that a converted script computes what it computed before.

`replicax migrate --prove` and the table of converted scripts run a script twice, each time in a process of its own: as
it was on TensorFlow, and converted on replicax. Both runs are controlled in the same way, so that they start from the
same values and see the same batches, and both are recorded in the same way, so that they can be compared:

1. `draws.py`: random initial values come from NumPy, and depend only on the kind of the draw, the shape, and how many
   draws like it there were before.
2. `keras_controls.py`: what both Keras have in common: initializers draw from there, `fit` does not shuffle, and layers
   that need random numbers in training do nothing.
3. `recording.py`: the value of each objective that is differentiated, and after each step the variables that it was
   differentiated with respect to, as they are or as two numbers each.
4. `on_tensorflow.py` and `on_replicax.py` set all this up on either side and run the script.
5. `running.py` starts these processes, and `comparing.py` finds the first number that differs.

`draws`, `keras_controls`, `recording` and `on_tensorflow` run in TensorFlow's interpreter, which need not have
replicax: they import NumPy, each other, and nothing else of this project. There the folder is a package by itself.
"""
