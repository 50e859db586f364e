"""A script to plan: KerasHub's GPT-2, Gemma 2B and Gemma 7B, or Keras's ResNet-50, from its configuration.

Usage: plan_models_script.py MODEL ROWS
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicax as rx

_LENGTH = 1024
_GEMMA = {
    "gemma-2b": (18, 8, 1, 2048, 32768),
    "gemma-7b": (28, 16, 16, 3072, 49152),
}


def language_model(name: str) -> keras.Model:
    import keras_hub

    if name == "gpt2":
        backbone = keras_hub.models.GPT2Backbone(
            vocabulary_size=50257, num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=3072
        )
        return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    layers, heads, pairs, width, hidden = _GEMMA[name]
    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=256000,
        num_layers=layers,
        num_query_heads=heads,
        num_key_value_heads=pairs,
        hidden_dim=width,
        intermediate_dim=hidden,
        head_dim=256,
    )
    return keras_hub.models.GemmaCausalLM(backbone=backbone, preprocessor=None)


def main(name: str, rows: int) -> None:
    strategy = rx.FullyShardedStrategy() if name.startswith("gemma") else rx.MirroredStrategy()
    is_resnet = name == "resnet50"
    with strategy.scope():
        model = keras.applications.ResNet50(weights=None) if is_resnet else language_model(name)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=not is_resnet))
    if is_resnet:
        model.fit(np.zeros([rows, 224, 224, 3], "float32"), np.zeros([rows], "int32"), batch_size=rows)
        return
    tokens = np.ones([rows, _LENGTH], "int32")
    model.fit({"token_ids": tokens, "padding_mask": tokens}, tokens, batch_size=rows)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
