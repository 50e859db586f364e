"""How KerasHub reads the files of other libraries. Read in KerasHub 0.32.

Without these names its converters work as before: each tensor comes whole, and what they leave out goes unnoticed.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from replicax.typing import PyTreeFunction


def wrap_loaders(wrap: Callable[[PyTreeFunction], PyTreeFunction], opened: Callable[[str], Any]) -> None:
    """Wraps the loaders that convert files of Transformers and timm into backbones, and how these open safetensors."""
    # `opened` returns None to leave a file to KerasHub.
    from keras_hub.src.utils.timm.preset_loader import TimmPresetLoader
    from keras_hub.src.utils.transformers import safetensor_utils
    from keras_hub.src.utils.transformers.preset_loader import TransformersPresetLoader

    for loader in (TimmPresetLoader, TransformersPresetLoader):
        # The second calls the first.
        loader.load_backbone, loader.load_task = wrap(loader.load_backbone), wrap(loader.load_task)
    library = safetensor_utils.safetensors
    if library is None:  # KerasHub says what to install.
        return

    def safe_open(path: str, framework: str) -> Any:
        file = opened(path) if framework == "np" else None
        return library.safe_open(path, framework=framework) if file is None else file

    safetensor_utils.safetensors = types.SimpleNamespace(safe_open=safe_open)
