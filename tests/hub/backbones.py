"""KerasHub's models from tiny configurations: what each is made of, what goes in, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

VOCABULARY, LENGTH, WIDTH, HIDDEN, HEADS, LAYERS, CLASSES, IMAGE = 64, 8, 32, 64, 4, 2, 8, 32

Rows = dict[str, np.ndarray] | np.ndarray


@dataclass(frozen=True)
class Backbone:
    """A model of KerasHub's with a head, small enough for a test.

    Attributes:
        name: What the report calls it.
        task: The class in `keras_hub.models` that puts a head on it; None where the backbone itself is trained.
        backbone: The class in `keras_hub.models`.
        config: The backbone's arguments.
        rows: Makes so many rows of input, and their labels.
        head: Further arguments of the task.
        generates: Whether the task has `generate`.
        adapts: Whether `enable_lora` finds layers in it.
        normalizes_batches: Whether it has batch normalization, whose statistics the replicas of a loop must share.
    """

    name: str
    task: str | None
    backbone: str
    config: Mapping[str, Any]
    rows: Callable[[int], tuple[Any, np.ndarray]]
    head: Mapping[str, Any]
    generates: bool = False
    adapts: bool = True
    normalizes_batches: bool = False

    def build(self) -> Any:
        """Returns the model with new weights; Keras's seed decides them."""
        import keras_hub

        backbone = getattr(keras_hub.models, self.backbone)(**self.config)
        if self.task is None:
            return backbone
        return getattr(keras_hub.models, self.task)(backbone=backbone, preprocessor=None, **self.head)

    def load(self, folder: str) -> Any:
        """Returns the model with the weights of a preset in a folder, as a user's script loads one."""
        import keras_hub

        kind = getattr(keras_hub.models, self.task or self.backbone)
        return kind.from_preset(folder) if self.task is None else kind.from_preset(folder, preprocessor=None)


def _tokens(rows: int, length: int = LENGTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, VOCABULARY, (rows, length)).astype("int32")


def _mask(rows: int, length: int = LENGTH) -> np.ndarray:
    kept = np.random.default_rng(1).integers(length // 2, length + 1, (rows, 1))
    return (np.arange(length) < kept).astype("int32")


def text(rows: int) -> tuple[Rows, np.ndarray]:
    """Tokens, and for each the next one."""
    tokens = _tokens(rows, LENGTH + 1)
    return {"token_ids": tokens[:, :-1], "padding_mask": _mask(rows)}, tokens[:, 1:]


def masked_text(rows: int) -> tuple[Rows, np.ndarray]:
    """Tokens, the places of those to be guessed, and what they are."""
    places = np.tile(np.arange(1, 4, dtype="int32"), (rows, 1))
    inputs = {"token_ids": _tokens(rows), "padding_mask": _mask(rows), "mask_positions": places}
    return inputs, _tokens(rows, 3, seed=2)


def sentence_pairs(rows: int) -> tuple[Rows, np.ndarray]:
    """Tokens with segments, and a class for each row."""
    segments = (np.arange(LENGTH) >= LENGTH // 2).astype("int32")
    inputs = {"token_ids": _tokens(rows), "padding_mask": _mask(rows), "segment_ids": np.tile(segments, (rows, 1))}
    return inputs, np.random.default_rng(3).integers(0, CLASSES, rows).astype("int32")


def translations(rows: int) -> tuple[Rows, np.ndarray]:
    """Tokens of one language, those of the other, and for each of these the next one."""
    target = _tokens(rows, LENGTH + 1, seed=4)
    inputs = {
        "encoder_token_ids": _tokens(rows),
        "encoder_padding_mask": _mask(rows),
        "decoder_token_ids": target[:, :-1],
        "decoder_padding_mask": np.ones((rows, LENGTH), "int32"),
    }
    return inputs, target[:, 1:]


def prompts(rows: int, kind: Callable[[int], tuple[Rows, np.ndarray]]) -> dict[str, np.ndarray]:
    """The first tokens of some rows, for `generate` to go on with."""
    inputs, _ = kind(rows)
    assert isinstance(inputs, dict)
    known = np.tile(np.arange(LENGTH) < 3, (rows, 1))
    prefix = "decoder_" if "decoder_token_ids" in inputs else ""
    prompt = {f"{prefix}token_ids": inputs[f"{prefix}token_ids"] * known, f"{prefix}padding_mask": known}
    # Gemma 3 wants to be told that there are none.
    no_images = np.zeros((rows, 0, 16, 16, 3), "float32")
    return {**inputs, **prompt} if prefix else {**prompt, "images": no_images}


def images(rows: int) -> tuple[Rows, np.ndarray]:
    """Images, and a class for each."""
    generator = np.random.default_rng(5)
    pixels = generator.normal(size=(rows, IMAGE, IMAGE, 3)).astype("float32")
    return pixels, generator.integers(0, CLASSES, rows).astype("int32")


def speech(rows: int) -> tuple[Rows, np.ndarray]:
    """Spectrograms and the tokens said; what the backbone makes of them is to become small."""
    spectrum = np.random.default_rng(6).normal(size=(rows, 2 * LENGTH, 8)).astype("float32")
    inputs = {
        "encoder_features": spectrum,
        "decoder_token_ids": _tokens(rows),
        "decoder_padding_mask": np.ones((rows, LENGTH), "int32"),
    }
    return inputs, np.zeros((rows, LENGTH, WIDTH), "float32")


_SIZES = {"vocabulary_size": VOCABULARY, "num_layers": LAYERS, "hidden_dim": WIDTH, "intermediate_dim": HIDDEN}
_ENCODER = {**_SIZES, "num_heads": HEADS, "dropout": 0.0, "max_sequence_length": LENGTH}
_GROUPED = {**_SIZES, "num_query_heads": HEADS, "num_key_value_heads": HEADS // 2}
_GEMMA = {**_GROUPED, "head_dim": 8}
_CLASSES = {"num_classes": CLASSES}
BACKBONES = [
    Backbone("gpt2", "GPT2CausalLM", "GPT2Backbone", _ENCODER, text, {}, generates=True),
    Backbone("llama3", "Llama3CausalLM", "Llama3Backbone", _GROUPED, text, {}, generates=True),
    Backbone("mistral", "MistralCausalLM", "MistralBackbone", _GROUPED, text, {}, generates=True),
    Backbone("gemma", "GemmaCausalLM", "GemmaBackbone", _GEMMA, text, {}, generates=True),
    Backbone("gemma3", "Gemma3CausalLM", "Gemma3Backbone", {**_GEMMA, "image_size": 16}, text, {}, generates=True),
    Backbone("qwen2", "QwenCausalLM", "QwenBackbone", _GROUPED, text, {}, generates=True),
    Backbone("bert", "BertTextClassifier", "BertBackbone", _ENCODER, sentence_pairs, {**_CLASSES, "dropout": 0.0}),
    Backbone("roberta", "RobertaMaskedLM", "RobertaBackbone", _ENCODER, masked_text, {}),
    Backbone(
        "t5",
        "T5Seq2SeqLM",
        "T5Backbone",
        {**_SIZES, "num_heads": HEADS, "dropout": 0.0},
        translations,
        {},
        generates=True,
        adapts=False,  # Its layers have names of their own.
    ),
    Backbone("bart", "BartSeq2SeqLM", "BartBackbone", _ENCODER, translations, {}, generates=True),
    Backbone(
        "vit",
        "ViTImageClassifier",
        "ViTBackbone",
        {
            "image_shape": (IMAGE, IMAGE, 3),
            "patch_size": (8, 8),
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "hidden_dim": WIDTH,
            "mlp_dim": HIDDEN,
        },
        images,
        _CLASSES,
    ),
    Backbone(
        "resnet",
        "ResNetImageClassifier",
        "ResNetBackbone",
        {
            "input_conv_filters": [64],
            "input_conv_kernel_sizes": [3],
            "stackwise_num_filters": [64, 64],
            "stackwise_num_blocks": [1, 1],
            "stackwise_num_strides": [1, 2],
            "block_type": "basic_block",
            "image_shape": (IMAGE, IMAGE, 3),
        },
        images,
        _CLASSES,
        adapts=False,
        normalizes_batches=True,
    ),
    Backbone(
        "whisper",
        None,
        "WhisperBackbone",
        {
            **_SIZES,
            "num_heads": HEADS,
            "num_mels": 8,
            "max_encoder_sequence_length": 2 * LENGTH,
            "max_decoder_sequence_length": LENGTH,
        },
        speech,
        {},
    ),
]
BY_NAME = {each.name: each for each in BACKBONES}
