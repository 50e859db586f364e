"""KerasHub's presets, its own and those that it converts, loaded in the scope of a strategy with no change."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
import safetensors.numpy

import replicax as rx
from replicax.contracts.variable_access import array_of
from replicax.errors import WeightsError
from replicax.weights import reading

keras_hub = pytest.importorskip("keras_hub")
pytestmark = pytest.mark.nightly


def gemma() -> keras.Model:
    return keras_hub.models.GemmaBackbone(
        vocabulary_size=256,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=1,
        hidden_dim=32,
        intermediate_dim=64,
        head_dim=8,
    )


@pytest.fixture(scope="module")
def backbone() -> keras.Model:
    return gemma()


@pytest.fixture(scope="module")
def converted(backbone: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as Transformers has it."""
    folder = tmp_path_factory.mktemp("transformers")
    backbone.export_to_transformers(str(folder))
    return folder


def strategy() -> rx.Strategy:
    return rx.FullyShardedStrategy(8, min_size=64)


def check_equal(expected: keras.Model, model: keras.Model, chosen: rx.Strategy) -> None:
    assert len(expected.weights) == len(model.weights)
    for wanted, variable in zip(expected.weights, model.weights, strict=True):
        assert array_of(variable).sharding == chosen.placement.variable_sharding(variable), variable.path
        np.testing.assert_array_equal(np.asarray(wanted), np.asarray(variable))


def placed_one_by_one() -> mock._patch[mock.MagicMock]:
    return mock.patch.object(reading, "placed", side_effect=reading.placed)


@pytest.mark.parametrize("max_shard_size", [10, 4e-5])
def test_a_backbone(backbone: keras.Model, tmp_path: Path, max_shard_size: float) -> None:
    backbone.save_to_preset(tmp_path, max_shard_size=max_shard_size)
    assert ("model.weights.json" in os.listdir(tmp_path)) == (max_shard_size < 1)
    chosen = strategy()
    with chosen.scope(), placed_one_by_one() as placed:
        model = keras_hub.models.Backbone.from_preset(str(tmp_path))
    assert placed.call_count == len(model.weights)
    check_equal(backbone, model, chosen)
    model.save_to_preset(tmp_path / "again", max_shard_size=max_shard_size)
    for wanted, found in zip(
        backbone.weights, keras_hub.models.Backbone.from_preset(str(tmp_path / "again")).weights, strict=True
    ):
        np.testing.assert_array_equal(np.asarray(wanted), np.asarray(found))


def test_a_backbone_in_another_dtype(backbone: keras.Model, tmp_path: Path) -> None:
    backbone.save_to_preset(tmp_path)
    with strategy().scope():
        model = keras_hub.models.Backbone.from_preset(str(tmp_path), dtype="bfloat16")
    plain = keras_hub.models.Backbone.from_preset(str(tmp_path), dtype="bfloat16")
    for wanted, found in zip(plain.weights, model.weights, strict=True):
        assert found.dtype == "bfloat16"
        np.testing.assert_array_equal(np.asarray(wanted), np.asarray(found))


def test_a_task_has_its_own_weights_and_those_of_its_backbone(tmp_path: Path) -> None:
    bert = keras_hub.models.BertBackbone(64, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32)
    task = keras_hub.models.BertTextClassifier(bert, num_classes=3, preprocessor=None)
    task.save_to_preset(tmp_path)
    chosen = strategy()
    with chosen.scope():
        model = keras_hub.models.TextClassifier.from_preset(str(tmp_path), preprocessor=None)
    check_equal(task, model, chosen)


def test_a_preset_that_lacks_a_weight_is_an_error(backbone: keras.Model, tmp_path: Path) -> None:
    import h5py

    backbone.save_to_preset(tmp_path)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        del file["layers/reversible_embedding/vars/0"]
    with strategy().scope(), pytest.raises(WeightsError, match=r"token_embedding/embeddings' .* finds no weight"):
        keras_hub.models.Backbone.from_preset(str(tmp_path))


def test_a_model_of_transformers_is_converted(backbone: keras.Model, converted: Path) -> None:
    chosen = strategy()
    with chosen.scope(), placed_one_by_one() as placed:
        model = keras_hub.models.Backbone.from_preset(str(converted))
    cut = [v for v in model.weights if not array_of(v).sharding.is_fully_replicated]
    assert placed.call_count == len(model.weights) > len(cut) > 5
    check_equal(backbone, model, chosen)


def test_what_a_converter_leaves_out_is_told(backbone: keras.Model, converted: Path, tmp_path: Path) -> None:
    tensors = safetensors.numpy.load_file(converted / "model.safetensors")
    (tmp_path / "config.json").write_bytes((converted / "config.json").read_bytes())
    safetensors.numpy.save_file(tensors | {"lm_head.weight": np.ones((2, 2))}, tmp_path / "model.safetensors")
    with strategy().scope(), pytest.warns(UserWarning, match=r"does not take: lm_head\.weight"):
        keras_hub.models.Backbone.from_preset(str(tmp_path))

    from keras_hub.src.utils.transformers import convert_gemma

    convert = convert_gemma.convert_weights

    def without_the_embedding(model: keras.Model, loader: object, config: object) -> None:
        embedding, model._token_embedding = model.token_embedding, keras.layers.Embedding(256, 32)
        model.token_embedding = model._token_embedding
        model.token_embedding.build()
        convert(model, loader, config)
        model.token_embedding = embedding

    with (
        mock.patch.object(convert_gemma, "convert_weights", without_the_embedding),
        strategy().scope(),
        pytest.raises(WeightsError, match="finds no weight"),
    ):
        keras_hub.models.Backbone.from_preset(str(converted))
