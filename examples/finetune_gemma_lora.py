"""Fine-tunes a small KerasHub Gemma with LoRA, its weights sharded over eight devices.

    python examples/finetune_gemma_lora.py [--devices 8] [--model-parallel 4] [--epochs 60]

No download: the script first trains a Gemma of 0.4 million parameters on prose (the opening of "Alice's Adventures in
Wonderland") and saves it as a preset, the form in which KerasHub's models come. A second part does what one does with a
large model. It loads the preset in the strategy's scope, so that each device gets its part of each weight and no
device ever has the whole model; it freezes the weights and adds low-rank adapters (LoRA; Hu et al., 2021); and it
trains these on verse ("Jabberwocky"). The losses are those of one device. Both texts are Lewis Carroll's, and free.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import keras_hub
import numpy as np

import replicax as rx

TEXTS = Path(__file__).parent / "texts"
CHARACTERS, LENGTH = 128, 64  # ASCII, and how much of it is a row
GEMMA = {
    "vocabulary_size": CHARACTERS,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 4,
    "hidden_dim": 128,
    "intermediate_dim": 256,
    "head_dim": 32,
}


def rows_of(text: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns all stretches of a text, a few characters apart, and for each character the next one."""
    characters = np.frombuffer(text.encode("ascii"), np.uint8).astype("int32")
    windows = np.lib.stride_tricks.sliding_window_view(characters, LENGTH + 1)[::8]
    tokens = windows[:, :-1]
    return {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}, windows[:, 1:]


def trained(model: keras.Model, text: str, rate: float, epochs: int) -> float:
    """Trains a model to go on with a text; returns the loss of the last epoch, per character."""
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
        sampler="greedy",
    )
    inputs, targets = rows_of(text)
    history = model.fit(inputs, targets, batch_size=32, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"][-1]


def said(model: keras.Model, start: str) -> str:
    """Returns how a model goes on with a few words."""
    known = np.arange(LENGTH) < len(start)
    tokens = np.zeros(LENGTH, "int32")
    tokens[: len(start)] = [*start.encode("ascii")]
    told = model.generate({"token_ids": tokens[None], "padding_mask": known[None]}, stop_token_ids=None)
    return bytes(np.asarray(told["token_ids"])[0].astype("uint8")).decode("ascii", "replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices; 0 takes those that are there")
    parser.add_argument("--model-parallel", type=int, default=4, help="devices that share a matrix")
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    if args.devices:
        rx.config.set_virtual_devices(args.devices)
    keras.utils.set_random_seed(0)

    with tempfile.TemporaryDirectory() as preset:
        backbone = keras_hub.models.GemmaBackbone(**GEMMA)
        small = keras_hub.models.GemmaCausalLM(backbone=backbone, preprocessor=None)
        loss = trained(small, (TEXTS / "alice.txt").read_text(), 3e-3, max(1, args.epochs // 4))
        print(f"the preset: {small.count_params():,} parameters, prose at a loss of {loss:.3f}")
        small.save_to_preset(preset)

        strategy = rx.LayoutStrategy(mesh_shape=(-1, args.model_parallel), layout="auto")
        with strategy.scope():
            model = keras_hub.models.GemmaCausalLM.from_preset(preset, preprocessor=None)
            model.backbone.enable_lora(rank=8)

    print(strategy.explain(model))
    trainable = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    print(f"LoRA trains {trainable:,} of {model.count_params():,} parameters")
    verse = (TEXTS / "jabberwocky.txt").read_text()
    print("before:", repr(said(model, "'Twas brillig, and")))
    loss = trained(model, verse, 1e-2, args.epochs)
    print("after: ", repr(said(model, "'Twas brillig, and")))
    print(f"verse at a loss of {loss:.3f}")


if __name__ == "__main__":
    main()
