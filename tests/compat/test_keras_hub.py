from __future__ import annotations

import importlib

import pytest

from tests.compat.guards import needs

pytest.importorskip("keras_hub")
pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("timm.preset_loader", "TimmPresetLoader.load_backbone"),
        ("timm.preset_loader", "TimmPresetLoader.load_task"),
        ("transformers.preset_loader", "TransformersPresetLoader.load_backbone"),
        ("transformers.preset_loader", "TransformersPresetLoader.load_task"),
        ("transformers.safetensor_utils", "safetensors.safe_open"),
    ],
)
def test_keras_hub_still_has(module: str, name: str):
    owner, _, attribute = name.partition(".")

    def find() -> object:
        return getattr(getattr(importlib.import_module(f"keras_hub.src.utils.{module}"), owner), attribute)

    assert callable(needs("keras-hub", name, find))
