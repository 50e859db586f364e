"""The table of a tracker, read back value by value."""

import csv
import json
import random

import pytest

from replicax.errors import ArgumentError
from replicax.tools.trackers import CSV


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def numbers(path):
    return [{name: float(value) for name, value in row.items()} for row in rows(path)]


@pytest.mark.parametrize("seed", range(30))
def test_random_values_are_read_as_they_were_logged(tmp_path, seed):
    draw, path, expected = random.Random(seed), tmp_path / "folder" / "log.csv", {}
    tracker = CSV(path)
    step = 0
    for _ in range(30):
        step += draw.choice([0, 1, 1, 3])
        values = {
            name: draw.gauss(0, 10.0 ** draw.randint(-30, 30)) for name in draw.sample("abcd", draw.randint(1, 3))
        }
        tracker.log(values, step)
        expected.setdefault(step, {"step": float(step)}).update(values)
        assert numbers(path) == list(expected.values())  # Each row is written through at once.
        if draw.random() < 0.1:
            tracker.close()
        if draw.random() < 0.1:
            tracker = CSV(path, append=True)  # after a restart


def test_a_file_is_replaced_unless_it_is_gone_on_with(tmp_path):
    path = tmp_path / "log.csv"
    CSV(path).log({"loss": 1.0}, 0)
    CSV(path).log({"loss": 2.0}, 0)
    assert numbers(path) == [{"step": 0, "loss": 2.0}]
    CSV(path, append=True).log({"loss": 3.0}, 1)
    assert numbers(path) == [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 3.0}]


def test_a_last_row_that_was_cut_off_is_dropped(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,loss,accuracy\n0,1.0,0.5\n1,0.")
    CSV(path, append=True).log({"loss": 0.25}, 2)
    assert numbers(path) == [{"step": 0, "loss": 1.0, "accuracy": 0.5}, {"step": 2, "loss": 0.25}]


def test_names_with_commas_quotes_and_other_scripts(tmp_path):
    path, names = tmp_path / "log.csv", ['a,b"c', "потеря", "x\ny"]
    CSV(path).log(dict.fromkeys(names, 1.5), 0)
    assert numbers(path) == [{"step": 0.0, **dict.fromkeys(names, 1.5)}]


def test_hyperparameters_stand_beside_it(tmp_path):
    CSV(tmp_path / "log.csv").log_hyperparameters({"rate": 0.1, "layers": [3, 4], "path": tmp_path})
    found = json.loads((tmp_path / "log.hyperparameters.json").read_text())
    assert found == {"rate": 0.1, "layers": [3, 4], "path": str(tmp_path)}


def test_what_is_no_table_is_left_alone(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text("dear diary\n")
    with pytest.raises(ArgumentError, match="no table of a tracker"):
        CSV(path, append=True).log({"loss": 1.0}, 0)
    assert path.read_text() == "dear diary\n"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be written"):
        CSV(tmp_path / "file" / "log.csv").log({"loss": 1.0}, 0)
