"""KerasHub's models: each variable has a rule, each large matrix a cut; and their own layout maps."""

import math

import pytest

import replicax as rx
from replicax.errors import LayoutError
from replicax.layouts import role_of
from tests.hub.backbones import BACKBONES

keras_hub = pytest.importorskip("keras_hub")
pytestmark = pytest.mark.nightly
_LARGE = 256  # elements; the models are tiny


@pytest.fixture(scope="module", params=BACKBONES, ids=lambda backbone: backbone.name)
def explained(request):
    strategy = rx.LayoutStrategy(mesh_shape=(2, 4), min_size=_LARGE)
    with strategy.scope():
        model = request.param.build()
    return strategy, model


def test_each_variable_has_a_rule_and_each_large_matrix_is_cut(explained):
    strategy, model = explained
    lines = strategy.explain(model).splitlines()
    assert len(lines) >= len(model.variables) + 1
    for line, variable in zip(lines, model.variables, strict=False):
        assert line.startswith(variable.path)
        assert line.endswith(")")
        assert not line.split("  ")[-1].startswith("()")
        if len(variable.shape) > 1 and math.prod(variable.shape) >= _LARGE:
            assert not strategy.placement.variable_sharding(variable).is_fully_replicated, line


def test_the_types_of_layers_decide_about_each_large_matrix(explained):
    _, model = explained
    large = [each for each in model.variables if len(each.shape) > 1 and math.prod(each.shape) >= _LARGE]
    assert not [each.path for each in large if role_of(each).name.startswith("by shape")]


def test_attention_is_known_in_all_models_that_have_it(explained):
    _, model = explained
    names = [role_of(variable).name for variable in model.variables]
    if any("Attention" in name for name in names):
        for part in ("query", "key", "value", "output"):
            assert any(name.startswith(f"{part} kernel of ") for name in names), part


@pytest.mark.parametrize(("name", "mesh"), [("llama3", (2, 4)), ("gemma", (4, 2)), ("qwen2", (2, 4))])
def test_the_layout_map_of_a_model_is_taken(name, mesh):
    [backbone] = [each for each in BACKBONES if each.name == name]
    kind = getattr(keras_hub.models, backbone.backbone)
    strategy = rx.LayoutStrategy(mesh_shape=mesh, layout=kind.get_layout_map)
    with strategy.scope():
        model = kind(**backbone.config)
    lines = strategy.explain(model).splitlines()
    assert "(pattern 'token_embedding/embeddings')" in lines[0]
    assert sum("(pattern " in line for line in lines) >= 13
    tokens = strategy.placement.variable_sharding(model.variables[0])
    assert tuple(tokens.spec) == ("model", "replica")


def test_a_layout_map_that_does_not_fit_a_model_is_refused_with_its_variable():
    [backbone] = [each for each in BACKBONES if each.name == "gemma"]
    kind = keras_hub.models.GemmaBackbone
    strategy = rx.LayoutStrategy(mesh_shape=(2, 4), layout=kind.get_layout_map)
    with strategy.scope(), pytest.raises(LayoutError, match=r"decoder_block_0/attention/key/kernel.*\(2, 32, 8\)"):
        kind(**backbone.config)
