"""The configuration of a layer of tables as plain data, in the form of `keras_rs`: shared tables come once."""

from __future__ import annotations

from typing import Any

from replicax.tables.features import Features
from replicax.tables.growing import GrowingTable
from replicax.typing import PyTree


def configuration(features: Features) -> dict[str, Any]:
    """Returns the features with the numbers of their tables, and the tables."""
    import keras

    numbers = {id(each.config): each.table for each in features.by_path.values()}

    def described(config: Any) -> dict[str, Any]:
        return {**config.get_config(), "table": numbers[id(config)]}

    return {
        "feature_configs": keras.tree.map_structure(described, features.configs),
        "tables": [table.get_config() for table in features.tables],
    }


def features_from(features: PyTree, tables: list[dict[str, Any]]) -> PyTree:
    """Returns the structure of `keras_rs.layers.FeatureConfig` that `configuration` has described."""
    import keras
    import keras_rs

    made = [(GrowingTable if "evict" in table else keras_rs.layers.TableConfig).from_config(table) for table in tables]

    def feature(node: Any) -> Any:
        if not isinstance(node, dict) or not isinstance(node.get("name"), str):
            return None  # The structure goes on.
        return keras_rs.layers.FeatureConfig(
            node["name"], made[node["table"]], tuple(node["input_shape"]), tuple(node["output_shape"])
        )

    return keras.tree.traverse(feature, features)
