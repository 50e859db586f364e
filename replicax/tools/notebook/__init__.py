"""Training on several workers from a notebook: `rx.notebook.launch`."""

from replicax.tools.notebook.launching import launch

__all__ = ["launch"]
